"""Faults planted in scans."""

from __future__ import annotations

from mutants.mutant import Mutant

SCANS = (
    # ---------------------------------------------------------------------------------------------- kernels and plans
    Mutant(
        "a chunk's first state lacks what is before the tile",
        "backends/triton/kernels/scan_prefixes.py",
        "given = SELECT(first, *given, *COMBINE(*given, *earlier))",
        "given = SELECT(first, *given, *earlier)",
        ("tests/backends/test_scans.py::test_rows",),
    ),
    Mutant(
        "a reverse scan combines a chunk's elements forwards",
        "backends/triton/kernels/scan_elements.py",
        "PLACE: tl.constexpr = CHUNK - 1 - TURN if REVERSE else TURN\n    xs = found[PLACE]",
        "PLACE: tl.constexpr = TURN\n    xs = found[PLACE]",
        ("tests/backends/test_scans.py::test_rows",),
    ),
    Mutant(
        "programs take shares by their own numbers",
        "backends/triton/kernels/scans.py",
        'ticket = tl.atomic_add(words_ptr, 1, sem="relaxed")',
        "ticket = tl.program_id(0).to(tl.int64)",
        ("tests/backends/test_scans.py::test_tickets_give_the_order_whichever_program_begins_first",),
    ),
    Mutant(
        "rows of later bands are the first band's",
        "backends/triton/kernels/scans.py",
        "block = band * BAND + ticket % beside",
        "block = ticket % beside",
        ("tests/backends/test_scans.py::test_rows[aligned, shared in bands-exclusive]",),
    ),
    Mutant(
        "the first share of a row that begins between vectors is taken for whole",
        "backends/triton/kernels/scans.py",
        "& ((place > 0) | (ALIGN == 1))",
        "& ((place >= 0) | (ALIGN == 1))",
        ("tests/backends/test_scans.py::test_rows[aligned, shared in bands-backward]",),
    ),
    Mutant(
        "a carry of one look forgets the groups before it",
        "backends/triton/kernels/scans.py",
        "* LINES + lane, beyond, keep, carries)",
        "* LINES + lane, own, keep, carries)",
        ("tests/backends/test_scans.py::test_rows[shared, one look-backward]",),
    ),
    Mutant(
        "prefixes far below their chunk's base are taken for sums",
        "backends/triton/kernels/scan_prefixes.py",
        "if tl.reduce(near.to(tl.int32), None, both_bits) == 0:",
        "if tl.reduce(near.to(tl.int32), None, both_bits) < 0:",
        ("tests/backends/test_scan_sums.py::test_sums_of_exponentials[rows]",),
    ),
    Mutant(
        "positions of an aligned row count from the vector before it",
        "backends/triton/kernels/scan_elements.py",
        "place = at if len(span) == 1 else at - over_tile(span[0], BY_ROWS)",
        "place = at",
        ("tests/backends/test_scans.py::test_rows_that_begin_anywhere_between_vectors[33]",),
    ),
    Mutant(
        "a row's first element is not stored where its vector begins before it",
        "backends/triton/kernels/scan_elements.py",
        "return (vector >= begin) & (vector + span[2] <= end), at >= begin, at < end",
        "return (vector >= begin) & (vector + span[2] <= end), at > begin, at < end",
        ("tests/backends/test_scans.py::test_rows_that_begin_anywhere_between_vectors[33]",),
    ),
    Mutant(
        "a scan's kernels write into the input that they read",
        "scan.py",
        "if targets is None or any(overlap(target, t) for target in targets for t in tensors):",
        "if targets is None:",
        ("tests/backends/test_scans_in_place.py::test_in_place_is_by_memory_of_its_own",),
    ),
    Mutant(
        "groups of shares are combined before what came before them",
        "backends/triton/kernels/scans.py",
        "before = COMBINE(*SELECT(big > 0, *given, *start), *far)",
        "before = COMBINE(*far, *SELECT(big > 0, *given, *start))",
        ("tests/backends/test_scans.py::test_rows[shared-backward]",),
    ),
    Mutant(
        "lines that are counted across the outer dims are all of the first",
        "backends/triton/kernels/scan_elements.py",
        "outer, line = number // lines, (number % lines)",
        "outer, line = number // lines * 0, (number % lines)",
        ("tests/backends/test_scans.py::test_columns[walked, of all outer dims-backward]",),
    ),
    Mutant(
        "a block's carry forgets the blocks before it",
        "backends/triton/kernels/scans.py",
        "* LINES + lane, beyond, keep, stride_carries)",
        "* LINES + lane, since, keep, stride_carries)",
        ("tests/backends/test_scans.py::test_rows[shared-backward]",),
    ),
    Mutant(
        "the way from tile to tile begins anew",
        "backends/triton/kernels/scan_prefixes.py",
        "carry = AS_STATE(*COMBINE(*carry, *last_slots(state, NUMBER, BY_ROWS)))",
        "carry = AS_STATE(*last_slots(state, NUMBER, BY_ROWS))",
        ("tests/backends/test_scans.py::test_rows[walked-backward]",),
    ),
    Mutant(
        "a scan of a copied input reads it as it lay",
        "planner/moves.py",
        "renamed.get(r, r)",
        "r",
        ("tests/planner/test_inputs_copied.py::test_scans_of_copies",),
    ),
    Mutant(
        "results are neighbours along the elements' dim",
        "backends/triton/kernels/scan_elements.py",
        "line_offset(before * size, outer_sizes, y_outer) + number + along * y_line",
        "line_offset(before * size, outer_sizes, y_outer) + along + number * y_line",
        ("tests/backends/test_scans_across.py::test_orders_directions_and_states",),
    ),
    # -------------------------------------------------------------------------------------------------- a CPU's loops
    Mutant(
        "an exclusive scan on a CPU begins with the first element",
        "backends/scan_tapes.py",
        "self._run(kernel, before, self._steps(values)[0])",
        "self._run(kernel, self._steps(state)[0], self._steps(values)[0])",
        ("tests/backends/test_scan_tapes.py::test_any_tile_gives_every_prefix",),
    ),
    Mutant(
        "a level's first half on a CPU is combined with its second",
        "backends/scan_tapes.py",
        "self._run(self.kernels.combine, [*given, *states], states)",
        "self._run(self.kernels.combine, [*states, *given], states)",
        ("tests/backends/test_scan_tapes.py::test_any_tile_gives_every_prefix",),
    ),
    Mutant(
        "a lane that was folded first goes on without what is before it",
        "backends/scan_tapes.py",
        "given = states[(m - 1) % size] if m else before",
        "given = states[(m - 1) % size]",
        ("tests/backends/test_scan_tapes.py::test_any_tile_gives_every_prefix",),
    ),
    Mutant(
        "a field is overwritten while others are to be computed from it",
        "backends/step_lists.py",
        "if not others:",
        "if True:",
        ("tests/backends/test_step_lists.py::test_a_state_is_combined_into_the_second_ones_memory",),
    ),
    Mutant(
        "lanes of a scan on a CPU are combined in the wrong order",
        "backends/scan_tapes.py",
        "states = [*self._some(state, 0, left), *self._some(state, reach, left)]",
        "states = [*self._some(state, reach, left), *self._some(state, 0, left)]",
        ("tests/backends/test_scan_tapes.py::test_any_tile_gives_every_prefix",),
    ),
    Mutant(
        "a scan's buffers are seen in the shape of an earlier scan",
        "backends/scans.py",
        "self._parts = (program, tile, shape, dim, alone, exclusive, reverse)",
        "self._parts = (program, tile, self.outer, self.length, self.inner, alone, exclusive, reverse)",
        (
            "tests/backends/test_scan_tapes.py::test_scans_of_as_many_rows_in_other_shapes_have_results_of_their_own_shape",
        ),
    ),
    Mutant(
        "a scan on a few of a caller's threads leaves it no others",
        "backends/workers.py",
        "torch.set_num_threads(callers)",
        "torch.set_num_threads(threads)",
        ("tests/backends/test_loops.py::test_the_callers_number_of_threads_stays",),
    ),
    Mutant(
        "a state of unsigned numbers goes on as others do",
        "backends/scan_tapes.py",
        "self._of_rows(stored(d)) for d in program.state] if carried",
        "self._of_rows(d) for d in program.state] if carried",
        ("tests/backends/test_scan_tapes.py::test_a_state_of_unsigned_numbers_goes_on",),
    ),
    # ---------------------------------------------------------------------------------------------------------- calls
    Mutant(
        "another thread count answers a repeated scan",
        "switch.py",
        "return (t.shape, t.stride(), t.dtype, address & 15, get_num_threads())",
        "return (t.shape, t.stride(), t.dtype, address & 15)",
        ("tests/backends/test_scans_on_cpu.py::test_a_repeated_scan_is_planned_for_its_threads",),
    ),
)
