"""Where a combine turns: its comparisons, and the outcome of each for two states."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefold.algebra.expression import Node, needed
from tilefold.algebra.operations import values_of
from tilefold.algebra.proofs.samples import State
from tilefold.algebra.written import Program

_MOST = 16  # comparisons looked at


class Turns:
    """The comparisons of a program's combine, `steps` if it has any or is not smooth otherwise."""

    def __init__(self, program: Program) -> None:
        graph = program.combine.graph
        nodes, used = graph.nodes, needed(graph.nodes, graph.outputs)
        turns = [turn for p in used if (turn := _turn_of(nodes, p)) is not None]
        self._program, few = program, min(len(turns), _MOST)
        self._turns = [turns[i * len(turns) // few] for i in range(few)]
        self.steps = bool(turns) or any(values_of(nodes[p].op).turns == "steps" for p in used)

    def __len__(self) -> int:
        return len(self._turns)

    def told(self, a: State, b: State) -> torch.Tensor:
        """Of each comparison, whether its left operand is below its right one, a row each."""
        values, rows, found = self._program.every_node([*a, *b]), len(a[0]), []
        for turn in self._turns:
            x, y = (torch.as_tensor(0 if p is None else values[p], dtype=torch.float64) for p in turn)
            found.append((x < y).expand(rows))
        return torch.stack(found)


def _turn_of(nodes: Sequence[Node], position: int) -> tuple[int, int | None] | None:
    """The two nodes that a node turns where they are equal, None for 0; None where it turns nowhere."""
    op, args = nodes[position].op, nodes[position].args
    if values_of(op).turns == "compares" and args[0] != args[1]:
        return args[0], args[1]
    # What is even turns at 0.
    even = (
        op == "abs" or (op == "mul" and args[0] == args[1]) or (op == "pow" and nodes[args[1]].op == "const")
    )
    return (args[0], None) if even and nodes[args[0]].op != "input" else None
