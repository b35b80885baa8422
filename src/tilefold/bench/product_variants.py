"""The ways to multiply skinny matrices that suites time beside each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import tilefold
from tilefold.bench import timing
from tilefold.bench.cases import DTYPES, Choice, Variant
from tilefold.bench.inductor_choices import (
    Build,
    build_compiled,
    build_custom_op,
    build_ranges,
    check_compiled,
    chosen_in_graphs,
    compile_ranges,
    compiled_choice,
    compiled_only,
)
from tilefold.bench.ours import last_plan_note
from tilefold.bench.product_cases import Pair, ProductCase, finished
from tilefold.integration.inductor import SPLITS, decomposed, divides

Tensor = torch.Tensor
KEPT = 4  # of a search inside a graph: so many go on to the table's own clock
LIKELY_SPLITS = (16, 32, 64, 128)
STEPS = 2  # of K that Triton keeps in shared memory by default
SHARED_BYTES = 227 * 1024  # that a program may have on sm_90 and sm_100
SMALL_TILES = ((16, 16), (32, 16), (32, 32), (64, 32), (64, 64))


def build_ours(case: Any, x: Tensor) -> Sequence[Choice]:
    """`tilefold.matmul` as it plans, nothing searched."""
    a, b = case.pair(x)
    epilogue = "relu" if case.relu else None
    return [Choice("default", lambda x: tilefold.matmul(a, b, epilogue=epilogue))]


def build_cublas(case: Any, x: Tensor) -> Sequence[Choice]:
    """cuBLAS, and the epilogue after it."""
    a, b = case.pair(x)
    return [Choice("eager", lambda x: finished(a, b, case.relu))]


def build_cublaslt(case: Any, x: Tensor) -> Sequence[Choice]:
    """CuBLASLt with ReLU in its epilogue, which takes a bias as well: zeros, written once.

    Where torch allows it, it sums its splits in half precision, and may exceed the suite's bound
    (docs/experiments/products.md#packed).
    """
    if not case.relu:
        return []
    a, b = case.pair(x)
    zeros = b.new_zeros(b.shape[1])
    return [Choice("activation", lambda x: torch._addmm_activation(zeros, a, b))]


def build_bmm(case: Any, x: Tensor) -> Sequence[Choice]:
    """A batched product with float32 results, their sum, and the epilogue after it: the best splits."""
    return _fastest([choice for _, choice in _bmm_choices(case, x)], x)


def _bmm_choices(case: ProductCase, x: Tensor) -> Iterator[tuple[int, Choice]]:
    a, b = case.pair(x)
    epilogue = "relu" if case.relu else None
    for splits in SPLITS:
        if divides(splits, case.shape[2]):
            yield splits, Choice(f"S {splits}", _constant(a, b, epilogue, splits))


def _constant(a: Tensor, b: Tensor, epilogue: str | None, splits: int) -> Callable[[Tensor], Tensor]:
    return lambda x: decomposed(a, b, epilogue=epilogue, k_splits=splits)


def build_bmm_compiled(case: Any, x: Tensor) -> Sequence[Choice]:
    """The same compiled, with the split that is the fastest in eager mode."""
    choices = dict(_bmm_choices(case, x))
    if not choices:
        return []
    best = min(choices, key=lambda s: _graph_us(choices[s], x)) if x.is_cuda else min(choices)
    return [_compiled_bmm(case, x, best)]


def compile_bmm(case: Any, x: Tensor) -> Sequence[Choice]:
    """The splits that are likely to be the fastest: among other processes' kernels a choice would be one by chance."""
    return [_compiled_bmm(case, x, s) for s, _ in _bmm_choices(case, x) if s in LIKELY_SPLITS]


def _compiled_bmm(case: ProductCase, x: Tensor, splits: int) -> Choice:
    epilogue = "relu" if case.relu else None

    def product(pair: Pair) -> Tensor:
        return decomposed(*pair, epilogue=epilogue, k_splits=splits)

    made = compiled_choice(case, x, product)
    return Choice(f"S {splits}, bmm by {made.label}", made.call)


def _fastest(choices: Sequence[Choice], x: Tensor) -> Sequence[Choice]:
    """The choices that go on to the table's own clock."""
    if len(choices) <= KEPT or not x.is_cuda:
        return choices[:KEPT]
    times = {choice.label: _graph_us(choice, x) for choice in choices}
    torch.cuda.empty_cache()  # each graph had memory of its own
    return sorted(choices, key=lambda choice: times[choice.label])[:KEPT]


def _graph_us(choice: Choice, x: Tensor) -> float:
    """A quick look: hundreds of configurations are searched for a case."""
    return timing.graph_us(lambda: choice.call(x), 5.0, most=10, replays=2)


Config = dict[str, int]
Configurations = Callable[[ProductCase], Iterator[Config]]


def build_two_launches(
    reducer: str, fused: bool, configurations: Configurations
) -> Callable[[Any, Tensor], Sequence[Choice]]:
    """Partial products by one kernel, their sum by another; the fastest of a search go on.

    `fused`: ReLU is in the reducer; else it is an operation in place, of which a case without ReLU has none. The
    configurations that are the fastest with ReLU fused are those that go on without.
    """

    def build(case: Any, x: Tensor) -> Sequence[Choice]:
        if not fused and not case.relu:
            return []
        if _latest.get(reducer, ("", ()))[0] != case.name:
            choices = {str(c): _two_launches(case, x, reducer, True, c) for c in configurations(case)}
            best = _fastest(list(choices.values()), x)
            kept = [c for c in configurations(case) if choices[str(c)] in best]
            _latest[reducer] = case.name, kept
        return [_two_launches(case, x, reducer, fused, config) for config in _latest[reducer][1]]

    return build


# By reducer: the case that was searched, and what was found.
_latest: dict[str, tuple[str, Sequence[Config]]] = {}


def compile_two_launches(
    reducer: str, fused: bool, configurations: Configurations
) -> Callable[[Any, Tensor], Sequence[Choice]]:
    """One choice for each kernel that a search may take."""

    def build(case: Any, x: Tensor) -> Sequence[Choice]:
        made: set[tuple[int, ...]] = set()
        choices = []
        for config in configurations(case) if fused or case.relu else ():
            kernels: set[tuple[int, ...]] = {(config["S"], config.get("x", 0), config.get("rw", 0))}
            if fused:  # else the first kernel is compiled there
                kernels.add(tuple(config[name] for name in ("m", "n", "k", "w")))
            if not kernels <= made:
                choices.append(_two_launches(case, x, reducer, fused, config))
            made |= kernels
        return choices

    return build


def _two_launches(case: ProductCase, x: Tensor, reducer: str, fused: bool, config: Config) -> Choice:
    from tilefold.bench.kernels import split_k

    (a, b), (rows, columns, depth) = case.pair(x), case.shape
    splits, m, n, k = (config[name] for name in ("S", "m", "n", "k"))
    tiles = -(-rows // m) * -(-columns // n)
    partials = torch.empty(splits * rows * columns, device=x.device, dtype=torch.float32)
    relu = case.relu and fused

    def call(x: Tensor) -> Tensor:
        c = torch.empty(rows, columns, device=x.device, dtype=x.dtype)
        split_k.partial_products[(tiles, splits)](
            a, b, partials, rows, columns, depth, depth // splits, m, n, k, "ieee", num_warps=config["w"]
        )
        if reducer == "serial":
            split_k.reduce_serial[(tiles,)](partials, c, rows, columns, splits, m, n, relu)
        else:
            grid = (-(-rows * columns // config["x"]),)
            split_k.reduce_vector[grid](
                partials, c, rows * columns, splits, config["x"], relu, num_warps=config["rw"]
            )
        return c if fused or not case.relu else c.relu_()

    return Choice(" ".join(f"{name}{value}" for name, value in config.items()), call)


def serial_configurations(case: ProductCase) -> Iterator[Config]:
    """Splits, tiles, steps of K and warps of the first kernel; the second has the same tile."""
    for splits, (m, n), k, warps in itertools.product(SPLITS, _tiles(case), (64, 128, 256), (1, 2, 4)):
        on_their_way = STEPS * (m + n) * k * DTYPES[case.dtype].itemsize
        if case.shape[2] % (splits * k) == 0 and on_their_way <= SHARED_BYTES:
            yield {"S": splits, "m": m, "n": n, "k": k, "w": warps}


def vector_configurations(case: ProductCase) -> Iterator[Config]:
    """The same, and the second kernel's block: few warps where it is small."""
    for config, block in itertools.product(serial_configurations(case), (32, 128)):
        elements = block * config["S"]
        yield config | {"x": block, "rw": 1 if elements <= 1024 else 2 if elements <= 4096 else 4}


def _tiles(case: ProductCase) -> list[tuple[int, int]]:
    """Tiles that are not twice as large as the product."""
    rows, columns, _ = case.shape
    return [(m, n) for m, n in SMALL_TILES if m < max(32, 2 * rows) and n < max(32, 2 * columns)]


OURS = Variant("ours", build_ours, warms=True, graphs=True, plan=last_plan_note)
CUBLAS = Variant("torch", build_cublas, graphs=True)
CUBLASLT = Variant("cublaslt", build_cublaslt, graphs=True)


def _inductor(name: str, build: Build, compiles: Build | None = None, check: Any = check_compiled) -> Variant:
    """A variant that Inductor makes: compiled in workers, chosen where it is timed."""
    workers = compiled_only(compiles or build)
    return Variant(name, chosen_in_graphs(build), warms=True, compiles=workers, graphs=True, check=check)


COMPILED = _inductor("compile", build_compiled)
CUSTOM_OP = _inductor("custom op", build_custom_op(ours=False))
CUSTOM_OP_OURS = _inductor("custom op with ours", build_custom_op(ours=True))
RANGES, RANGES_OURS = (
    _inductor(f"custom op{' with ours' * ours}, ranges", build_ranges(ours), compile_ranges(ours), None)
    for ours in (False, True)
)
BMM = Variant("bmm", build_bmm, graphs=True)
BMM_COMPILED = _inductor("bmm compiled", build_bmm_compiled, compile_bmm)
SERIAL, SERIAL_APART, VECTOR, VECTOR_APART = (
    Variant(
        f"{reducer} reducer{'' if fused else ', ReLU apart'}",
        build_two_launches(reducer, fused, configurations),
        gpu_only=True,
        warms=True,
        compiles=compile_two_launches(reducer, fused, configurations),
        graphs=True,
    )
    for reducer, configurations in (("serial", serial_configurations), ("vector", vector_configurations))
    for fused in (True, False)
)
