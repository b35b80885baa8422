"""Faults planted in maps, scans, moves, selections and ragged folds."""

from __future__ import annotations

from mutants.mutant import Mutant

OPERATIONS = (
    # ----------------------------------------------------------------------------------- layouts and selections
    Mutant(
        "dims that one step cannot walk are one dim of a tile",
        "planner/moves.py",
        "elif steps[-1] == step(d) * d.size:",
        "elif steps[-1] >= step(d) * d.size:",
        ("tests/test_transposition.py::test_layouts",),
    ),
    Mutant(
        "a tile's last rows are those of the next place",
        "backends/triton/move_calls.py",
        '"MASK_M": move.rows.size % move.block_rows != 0',
        '"MASK_M": False',
        ("tests/test_transposition.py::test_edges_from_the_ptx",),
    ),
    Mutant(
        "ties go to the higher index",
        "backends/triton/kernels/selections.py",
        "(key_b == key_a) & (place_b < place_a)",
        "(key_b == key_a) & (place_b > place_a)",
        ("tests/test_selection.py::test_dtypes[torch.int64]",),
    ),
    Mutant(
        "zeros of two signs differ",
        "backends/triton/kernels/selections.py",
        "bits = (wide + 0.0).to(tl.int32, bitcast=True)",
        "bits = wide.to(tl.int32, bitcast=True)",
        ("tests/test_selection.py::test_zeros_of_both_signs_tie",),
    ),
    Mutant(
        "torch's choice among equal elements is kept",
        "backends/selecting.py",
        "one_more = min(k + 1, flat.shape[1])",
        "one_more = min(k, flat.shape[1])",
        ("tests/test_selection.py::test_ties_that_torch_settles_otherwise",),
    ),
    # ------------------------------------------------------------------------------------------------ maps
    Mutant(
        "a window is mapped before it is folded",
        "backends/triton/kernels/map_windows.py",
        "tl.where(maps, slot // 2 - 1, (slot + 1) // 2)",
        "tl.where(maps, slot // 2, (slot + 1) // 2)",
        ("tests/test_mapped.py::test_every_job_comes_once_and_after_what_it_waits_for",),
    ),
    Mutant(
        "the first parts' states are combined twice",
        "backends/triton/kernels/map_windows.py",
        "for first in range(PARTS, splits, PARTS):",
        "for first in range(0, splits, PARTS):",
        ("tests/test_mapped.py::test_windows_executed_from_ptx[rows]",),
    ),
    Mutant(
        "counters begin with what memory held",
        "backends/triton/kernels/map_windows.py",
        "tl.full([BLOCK], 0, tl.int32)",
        "tl.load(y_ptrs[0] + place, mask=place < length)",
        ("tests/test_mapped.py::test_windows_executed_from_ptx[rows]",),
    ),
    Mutant(
        "a row's first elements are not stored where its first vector is another's too",
        "backends/triton/kernels/map_rows.py",
        "(at >= 0) & (at < length) & (whole == 0) & ((edge < RUN) | (last > 0))",
        "(at >= RUN) & (at < length) & (whole == 0) & ((edge < RUN) | (last > 0))",
        ("tests/test_mapped.py::test_executed_from_ptx[odd rows]",),
    ),
    Mutant(
        "every program of a cluster leaves its state where the receiver's own belongs",
        "backends/triton/kernels/clusters.py",
        "mad.lo.u32 word, rank, $1, word;",
        "mad.lo.u32 word, to, $1, word;",
        ("tests/test_mapped.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "the last program's state is left out of a cluster's",
        "backends/triton/kernels/clusters.py",
        "mask = part < CLUSTER\n",
        "mask = part < CLUSTER - 1\n",
        ("tests/test_mapped.py::test_clusters_executed_from_ptx[odd rows]",),
    ),
    Mutant(
        "a cluster's barrier expects the bytes of all programs but one",
        "backends/triton/kernels/clusters.py",
        "[meeting_barrier], {4 * words * cluster};",
        "[meeting_barrier], {4 * words * (cluster - 1)};",
        ("tests/test_mapped.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "a cluster's programs send before all have begun",
        "backends/triton/kernels/clusters.py",
        "        barrier.cluster.wait.acquire.aligned;\n",
        "",
        ("tests/test_mapped.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "no fence shows a cluster's barriers to the other programs",
        "backends/triton/kernels/clusters.py",
        "@first fence.mbarrier_init.release.cluster;\n",
        "",
        ("tests/test_mapped.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "a cluster's program does not wait for what the others send",
        "backends/triton/kernels/clusters.py",
        "        @!come bra WAITING;\n",
        "",
        ("tests/test_mapped.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "a result may overlap an input somehow",
        "validate.py",
        "and not (in_place and _is_exactly(target, t))",
        "and not in_place",
        ("tests/test_mapped.py::test_a_refused_call_leaves_its_input",),
    ),
    # ------------------------------------------------------------------------------------------------ segments, atomics
    Mutant(
        "the last piece of a segment that crosses chunks is lost",
        "backends/triton/kernels/segments.py",
        "state = COMBINE(*state, *heads)",
        "heads = COMBINE(*state, *heads)",
        ("tests/test_ragged.py::test_under_the_interpreter[one long among empty ones-affine]",),
    ),
    Mutant(
        "a window's first border is taken for its last",
        "backends/triton/kernels/segments.py",
        "tail = fold_side(xs, places, newest_at, lead,",
        "tail = fold_side(xs, places, border_at, lead,",
        ("tests/test_ragged.py::test_under_the_interpreter[short-weighted]",),
    ),
    Mutant(
        "offsets are not clamped",
        "backends/triton/kernels/segments.py",
        "return tl.minimum(tl.maximum(offset.to(tl.int64), 0), size)",
        "return offset.to(tl.int64)",
        ("tests/backends/test_segments.py::test_offsets_beyond_the_dim_are_clamped[rows]",),
    ),
    Mutant(
        "a maximum of floats is an atomic operation",
        "planner/atomics.py",
        ' or (is_float(program.state[0]) and operation != "add")',
        "",
        ("tests/backends/test_segments.py::test_an_atomic_operation_is_known_by_its_graph",),
    ),
    Mutant(
        "programs' results overwrite each other",
        "backends/triton/atomic_calls.py",
        "tl.atomic_{atomic_of(program)}(ptr, x, mask=mask, sem='relaxed')",
        "tl.store(ptr, x, mask=mask)",
        ("tests/backends/test_segments.py::test_programs_meet_in_one_atomic_operation_each[max]",),
    ),
    # ------------------------------------------------------------------------------------------------ scans
    Mutant(
        "groups of shares are combined before what came before them",
        "backends/triton/kernels/scans.py",
        "before = COMBINE(*before, *far)",
        "before = COMBINE(*far, *before)",
        ("tests/backends/test_scans.py::test_rows[shared-backward]",),
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
        "backends/triton/kernels/scans.py",
        "carry = AS_STATE(*COMBINE(*carry, *last_slots(state, NUMBER, BY_ROWS)))",
        "carry = AS_STATE(*last_slots(state, NUMBER, BY_ROWS))",
        ("tests/backends/test_scans.py::test_rows[walked-backward]",),
    ),
    Mutant(
        "an exclusive scan on a CPU begins with the first element",
        "backends/scans.py",
        "            t[0].copy_(b)\n            if carry is None:",
        "            t[0].copy_(f[0])\n            if carry is None:",
        ("tests/fuzz/test_fuzz.py::test_random_cases_agree_with_the_definition[scans-by-cpu-and-auto]",),
    ),
    Mutant(
        "lanes of a scan on a CPU meet in the wrong order",
        "backends/scans.py",
        "pairs = [s[:-reach] for s in state] + [s[reach:] for s in state]",
        "pairs = [s[reach:] for s in state] + [s[:-reach] for s in state]",
        ("tests/test_scan.py::test_long_rows",),
    ),
    # ------------------------------------------------------------------------------------------------ maps held as blocks
    Mutant(
        "a program's exponentials are taken for the row's",
        "functional/normalized.py",
        "return own, share * catalogue.rescaled(own, largest)",
        "return own, share",
        ("tests/test_mapped.py::test_programs_whose_elements_are_far_from_the_rows_largest[4]",),
    ),
    Mutant(
        "a block's last tile counts what is beyond the row's end",
        "planner/blocks.py",
        "for t in range(stage.tiles) if t >= whole)",
        "for t in range(stage.tiles) if t > whole)",
        ("tests/test_mapped.py::test_clusters_executed_from_ptx[rows]",),
    ),
)
