"""The command line: each command's module reads options and shows the result of one public function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tilefold.cli.output import complain, run_command
from tilefold.cli.parser import EXIT_CODES, Parser
from tilefold.errors import CompileError, TilefoldError

COMMANDS = {
    "describe": "statistics of every tensor of checkpoints",
    "plan": "how a GPU would run an operation, without one",
    "xray": "what the compiler made of a Triton kernel, without a GPU; diff compares two",
    "watch": "a page on which a row streams through a monoid's recurrence",
    "bench": "time folds beside torch and others; compare, plot, merge and show results",
}
MODULES = {
    "describe": "tilefold.checkpoints.command",
    "plan": "tilefold.cli.plan",
}  # the others stand beside their packages

__all__ = ["COMMANDS", "main", "run"]


def main() -> None:
    """The console script."""
    run_command(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. What cannot be done is one line on stderr and 2, Ctrl-C is 130."""
    command = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    try:
        if not command:
            return _help(arguments)
        code: int = importlib.import_module(MODULES.get(command, f"tilefold.{command}.command")).run(
            arguments[1:]
        )
    except TilefoldError as error:
        said = _named(str(error), command)
        # Triton's own message points at places in the kernel, over several lines.
        for line in said.splitlines() if isinstance(error, CompileError) else [said]:
            complain(line)
        return 2
    except KeyboardInterrupt:
        complain(f"{command or 'tilefold'}: interrupted")
        return 130
    except SystemExit as ended:  # --help and --version
        return int(ended.code or 0)
    return code


def _named(text: str, command: str) -> str:
    """An error that begins with the command, whichever function said it."""
    said = text.removeprefix("explain_plan: ")
    return said if not command or said.startswith(f"{command}: ") else f"{command}: {said}"


def _help(arguments: Sequence[str]) -> int:
    """Without a command: help, the version, or an error."""
    parser = top_parser()
    parser.parse_args(arguments)
    parser.print_help()
    return 0


def top_parser() -> Parser:
    """`tilefold` without a command."""
    from tilefold import __version__

    commands = "\n".join(f"  {name:10s}{about}" for name, about in COMMANDS.items())
    parser = Parser(
        "",
        f"Fold any tensor with any monoid, and see what became of it.\n\ncommands:\n{commands}",
        usage="tilefold COMMAND ...",
        examples={
            "describe model.safetensors": "statistics of a checkpoint's tensors",
            "plan 16384x8192 --monoid logsumexp --dim 1": "how an H200 would fold it",
            "xray kernels.py::softmax --arg x_ptr=*fp32": "a kernel line by line",
            "watch logsumexp --html page.html": "its states chunk by chunk, in a browser",
            "bench folds --device cpu": "measure, here at small sizes",
        },
        exit_codes={**EXIT_CODES, 1: "a finding that the command was to look for: its own help says which"},
        notes="tilefold COMMAND --help has a command's options.",
    )
    parser.add_argument("--version", action="version", version=f"tilefold {__version__}")
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help="one of the above")
    return parser
