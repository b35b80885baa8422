"""Faults planted in sharded maps and selections."""

from __future__ import annotations

from mutants.mutant import Mutant

FILE = "tests/distributed/test_sharded.py"
DTENSORS = "tests/distributed/test_dtensors.py"
AGAIN = (f"{FILE}::test_calls_like_earlier_ones_are_those_of_their_own_elements",)
MAPPED = (f"{FILE}::test_maps_of_sharded_rows_are_those_of_the_whole",)

SHARDED = (
    Mutant(
        "a backward sums along this rank's part of a row alone",
        "distributed/reduce_map.py",
        "sums = self._folded(terms, values) if terms else []",
        "sums = fold_of_text(values, terms, self.dims, True, None, None, self.guarantee) if terms else []",
        MAPPED,
    ),
    Mutant(
        "a norm's count of elements is left out of its backward",
        "functional/normalized.py",
        "row[-1] if counts else length",
        "1.0 if counts else length",
        MAPPED,
    ),
    Mutant(
        "the cotangents of rows are those of the last results",
        "distributed/reduce_map.py",
        'grads[i if kind == "of_result" else results + i]',
        "grads[i]",
        MAPPED,
    ),
    Mutant(
        "what a short part lacks is selected before other ranks' equal elements",
        "distributed/topk.py",
        "missing.flatten().to(torch.uint8).argsort(stable=True)",
        "torch.arange(missing.numel(), device=missing.device)",
        (f"{FILE}::test_selections_are_those_of_the_whole",),
    ),
    Mutant(
        "positions are those in a rank's part",
        "distributed/topk.py",
        "starts = ends - lengths",
        "starts = ends - ends",
        (f"{FILE}::test_selections_are_those_of_the_whole",),
    ),
    Mutant(
        "a DTensor's weight has the whole gradient on each rank that has other rows",
        "distributed/spread.py",
        "wanted[-1] if lies_along or d < 0 else Partial()",
        "wanted[-1]",
        (f"{DTENSORS}::test_plain_calls_are_those_of_the_whole",),
    ),
    Mutant(
        "a dim that two dims of a mesh divide is in the order of the mesh's last dim",
        "distributed/reduce.py",
        "order = sorted(range(len(steps)), key=lambda i: (steps[i].axis, i), reverse=True)",
        "order = sorted(range(len(steps)), key=lambda i: (-steps[i].axis, i))",
        (f"{DTENSORS}::test_dims_that_several_dims_of_the_mesh_divide",),
    ),
    Mutant(
        "a rank's state has its own cotangent alone, and not those of the ranks after it",
        "distributed/scan.py",
        '(found[i],) = fold_of_text([own], SUM.text, (axis,), True, None, None, "run_to_run")',
        "found[i] = own.narrow(axis, ranks.rank, 1)",
        (f"{DTENSORS}::test_scans_are_those_of_the_whole",),
    ),
    Mutant(
        "a mean over all ranks' rows is one over the number of rows, whatever their weights",
        "distributed/dtensors.py",
        "    if weight is None:\n",
        "    if True:\n",
        (f"{DTENSORS}::test_losses_are_those_of_the_whole",),
    ),
    Mutant(
        "the norm of a gradient is that of this rank's part",
        "distributed/dtensors.py",
        "for group in reversed(groups):",
        "for group in ():",
        (f"{DTENSORS}::test_gradients_are_clipped_to_the_norm_of_the_whole",),
    ),
    Mutant(
        "cotangents of scattered rows are in another order",
        "distributed/matmul.py",
        "return every.movedim(0, -2).contiguous(), None, None",
        "return every.flip(0).movedim(0, -2).contiguous(), None, None",
        (f"{FILE}::test_products_of_parts_of_k_are_those_of_the_whole",),
    ),
    Mutant(
        "the first segment of a rank has no state before it in a backward",
        "distributed/segments.py",
        "place = 2 * self.rank + reverse",
        "place = 2 * self.rank + 1",
        (f"{FILE}::test_segments_that_cross_ranks_are_those_of_the_whole",),
    ),
    Mutant(
        "a segment that is a rank's first and last one counts twice",
        "distributed/segments.py",
        "torch.where(mine[:1] == mine[1:], count, mine[1:])",
        "mine[1:]",
        (f"{FILE}::test_segments_that_cross_ranks_are_those_of_the_whole",),
    ),
    Mutant(
        "every rank sends the results of edges, which are summed",
        "distributed/segments.py",
        "holds & ~are_edges if place_of(self.steps) else holds | are_edges",
        "holds | are_edges",
        (f"{FILE}::test_segments_that_cross_ranks_are_those_of_the_whole",),
    ),
    Mutant(
        "positions in a segment count from this rank's first element",
        "distributed/segments.py",
        "(-offsets[segment.clamp(0, max(len(offsets) - 2, 0))]).clamp(min=0)",
        "torch.zeros_like(at)",
        (f"{FILE}::test_segments_that_cross_ranks_are_those_of_the_whole",),
    ),
    Mutant(
        "a call is answered as the same one over another group was",
        "distributed/exchange.py",
        "(*rest, sharded_dim, places)",
        "(*rest, sharded_dim)",
        AGAIN,
    ),
    Mutant(
        "a call of DTensors is answered as that of others with as large parts was",
        "distributed/dtensors.py",
        "return (function, seen, lie, names, _written(arguments)), own",
        "return (function, seen, names, _written(arguments)), own",
        (f"{DTENSORS}::test_calls_like_earlier_ones_are_those_of_their_own_elements",),
    ),
    Mutant(
        "a call like an earlier one is not compared with the other ranks'",
        "distributed/exchange.py",
        "is_dynamo_compiling() or not are_dims or compares()",
        "is_dynamo_compiling() or not are_dims",
        AGAIN,
    ),
    Mutant(
        "fields of one dtype come back in another order",
        "distributed/exchange.py",
        "every.unbind() if len(fields) > 1",
        "every.unbind()[::-1] if len(fields) > 1",
        (f"{FILE}::test_a_sharded_fold_is_the_fold_of_the_whole",),
    ),
    Mutant(
        "a selection is answered as that of another number of elements was",
        "distributed/topk.py",
        "(*flags, guarantee)",
        "(*flags[1:], guarantee)",
        AGAIN,
    ),
    Mutant(
        "the number of elements to select may be a tensor's, which changes",
        "distributed/topk.py",
        "if tuple(map(type, flags)) == (int, bool, bool):",
        "if True:",
        AGAIN,
    ),
    Mutant(
        "a selection that was differentiated once may be differentiated twice",
        "distributed/topk.py",
        '        check_order(CALL, "selection")\n',
        "",
        AGAIN,
    ),
    Mutant(
        "segments of a call like an earlier one lie where those lay",
        "distributed/segments.py",
        "lies = dispatch.noted(lambda t: [*_lies(self.cut, self.without, length, steps, t)], numbers)",
        "lies = [dispatch.constant(t) for t in _lies(self.cut, self.without, length, steps, numbers)]",
        AGAIN,
    ),
    Mutant(
        "the state before a shard is that of an earlier call",
        "distributed/scan.py",
        "dispatch.noted(_as_states, t.squeeze(axis))[0]",
        "dispatch.constant(_as_states(t.squeeze(axis))[0])",
        AGAIN,
    ),
    Mutant(
        "the state before a scan like an earlier one is left out on a CPU",
        "api/on_cpu.py",
        "settled(tensors[:n], tensors[n:])",
        "settled(tensors[:n])",
        ("tests/api/test_on_cpu.py::test_calls_that_come_again_give_the_same_bits",),
    ),
    Mutant(
        "several cotangents at once are exchanged, which nobody waits for",
        "distributed/exchange.py",
        "elif is_batched(t) or torch._C._functorch.is_batchedtensor(t):",
        "elif False:",
        (f"{FILE}::test_several_cotangents_at_once_have_the_gradients_of_each",),
    ),
    Mutant(
        "several cotangents of DTensors come to torch's own derivative",
        "distributed/spread.py",
        "if is_batched(g):",
        "if False:",
        (f"{DTENSORS}::test_several_cotangents_at_once_are_refused",),
    ),
    Mutant(
        "ranks may ask for other gradients of a map",
        "distributed/reduce_map.py",
        '"what requires grad": asks_gradients(every),',
        "",
        (f"{FILE}::test_ranks_that_disagree_of_a_map_are_named",),
    ),
)
