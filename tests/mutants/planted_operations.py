"""Faults planted in layouts, selections, ragged and atomic folds, and folds of short rows."""

from __future__ import annotations

from mutants.mutant import Mutant

OPERATIONS = (
    # ----------------------------------------------------------------------------------------- layouts and selections
    Mutant(
        "with batch_invariant a single odd row is promised to be stored in vectors",
        "backends/triton/map_calls.py",
        "problem.length * d.itemsize if invariant else 0",
        "0",
        (
            "tests/planner/test_batches.py::test_bits_of_a_single_odd_row[held]",
            "tests/planner/test_batches.py::test_bits_of_a_single_odd_row[in windows]",
        ),
    ),
    Mutant(
        "lanes of segments' rows in order take neighbouring ones",
        "planner/segments.py",
        "lanes > 1 and program.algebra.commutative",
        "lanes > 1",
        ("tests/planner/test_odd_columns.py::test_segments_of_odd_columns[7-in order]",),
    ),
    Mutant(
        "dims without a common step are one dim of a tile",
        "planner/stages/moves.py",
        "elif steps[-1] == step(d) * d.size:",
        "elif steps[-1] >= step(d) * d.size:",
        ("tests/api/test_transpose.py::test_layouts",),
    ),
    Mutant(
        "a tile's last rows are those of the next place",
        "backends/triton/move_calls.py",
        '"MASK_M": move.rows.size % move.block_rows != 0',
        '"MASK_M": False',
        ("tests/api/test_transpose.py::test_edges_from_the_ptx",),
    ),
    Mutant(
        "threads load a transpose's tile along what lies far apart",
        "backends/triton/move_calls.py",
        '"LOADS": move.loads_along',
        '"LOADS": ""',
        ("tests/api/test_transpose.py::test_threads_go_along_what_lies_side_by_side",),
    ),
    Mutant(
        "threads store a transpose's tile along what lies far apart",
        "backends/triton/kernels/moves.py",
        'BLOCK_N if STORES == "columns" else 0',
        "0",
        ("tests/api/test_transpose.py::test_threads_go_along_what_lies_side_by_side",),
    ),
    Mutant(
        "ties go to the higher index",
        "backends/triton/kernels/selections.py",
        "(key_b == key_a) & (place_b < place_a)",
        "(key_b == key_a) & (place_b > place_a)",
        ("tests/api/test_topk.py::test_dtypes[torch.int64]",),
    ),
    Mutant(
        "zeros of two signs differ",
        "backends/triton/kernels/selections.py",
        "bits = (wide + 0.0).to(tl.int32, bitcast=True)",
        "bits = wide.to(tl.int32, bitcast=True)",
        ("tests/api/test_topk.py::test_zeros_of_both_signs_tie",),
    ),
    Mutant(
        "torch's choice among equal elements is kept",
        "backends/cpu/selecting.py",
        "one_more = min(k + 1, flat.shape[1])",
        "one_more = min(k, flat.shape[1])",
        ("tests/api/test_topk.py::test_ties_that_torch_settles_otherwise",),
    ),
    Mutant(
        "the last group of a transpose has as many tiles as others",
        "backends/triton/kernels/moves.py",
        "height = tl.minimum(row_blocks - first, group)",
        "height = group",
        ("tests/api/test_transpose.py::test_groups_of_tiles",),
    ),
    Mutant(
        "runs of memory shorter than a line are copied one by one, longer ones are not",
        "planner/moves.py",
        "across.size < line and",
        "across.size >= line and",
        ("tests/api/test_transpose.py::test_what_stays_nearest_is_copied_in_runs",),
    ),
    Mutant(
        "a side that is one tile's is cut before SMs are idle",
        "planner/moves.py",
        "FEW if whole or height",
        "FEW if height",
        ("tests/api/test_transpose.py::test_small_tensors_are_more_and_smaller_tiles",),
    ),
    Mutant(
        "a plain copy of any size is a kernel's",
        "planner/moves.py",
        "2 * problem.bytes_read > most",
        "2 * problem.bytes_read < 0",
        ("tests/api/test_transpose.py::test_what_changes_no_places_is_a_plain_copy",),
    ),
    Mutant(
        "a tile of runs stores what lies beyond a run",
        "backends/triton/kernels/moves.py",
        "stored = tl.broadcast_to(stored & (run < RUN), y.shape)",
        "stored = tl.broadcast_to(stored & (run < SLOTS), y.shape)",
        ("tests/api/test_transpose.py::test_short_runs_from_the_ptx",),
    ),
    # ---------------------------------------------------------------------------------------------- segments, atomics
    Mutant(
        "the last piece of a segment that crosses chunks is lost",
        "backends/triton/kernels/segments.py",
        "state = COMBINE(*state, *heads)",
        "heads = COMBINE(*state, *heads)",
        ("tests/api/test_segment_reduce.py::test_under_the_interpreter[one long among empty ones-affine]",),
    ),
    Mutant(
        "a window's first border is taken for its last",
        "backends/triton/kernels/segments.py",
        "tail = fold_side(xs, places, newest_at, lead,",
        "tail = fold_side(xs, places, border_at, lead,",
        ("tests/api/test_segment_reduce.py::test_under_the_interpreter[short-weighted]",),
    ),
    Mutant(
        "the runs of a segment's last window are lost",
        "backends/triton/kernels/segment_runs.py",
        "other = tl.where(last_window > window,",
        "other = tl.where(last_window < window,",
        ("tests/api/test_segment_reduce.py::test_under_the_interpreter[lengths around a window-affine]",),
    ),
    Mutant(
        "the last of the segments that are folded at a time goes on into the next one",
        "backends/triton/kernels/segment_runs.py",
        "lane * 0 + many < LANES, *carried",
        "lane * 0 + many <= LANES, *carried",
        ("tests/api/test_segment_reduce.py::test_under_the_interpreter[short-affine]",),
    ),
    Mutant(
        "offsets are not clamped",
        "backends/triton/kernels/segments.py",
        "return tl.minimum(tl.maximum(offset.to(tl.int64), 0), size)",
        "return offset.to(tl.int64)",
        ("tests/backends/cpu/test_segments.py::test_offsets_beyond_the_dim_are_clamped[rows]",),
    ),
    Mutant(
        "a maximum of floats is an atomic operation",
        "planner/atomics.py",
        ' or (is_float(program.state[0]) and operation != "add")',
        "",
        ("tests/backends/cpu/test_segments.py::test_an_atomic_operation_is_known_by_its_graph",),
    ),
    Mutant(
        "programs' results overwrite each other",
        "backends/triton/atomic_calls.py",
        "tl.atomic_{atomic_of(program)}(ptr, x, mask=mask, sem='relaxed')",
        "tl.store(ptr, x, mask=mask)",
        ("tests/backends/cpu/test_segments.py::test_programs_meet_in_one_atomic_operation_each[max]",),
    ),
    # -------------------------------------------------------------------------------------------- folds of short rows
    Mutant(
        "a group's columns begin where rows do",
        "backends/triton/kernels/gathered.py",
        "first = result // INNER * BETWEEN + result % INNER",
        "first = result * BETWEEN",
        ("tests/planner/test_gathered.py::test_groups_of_short_columns",),
    ),
    Mutant(
        "what lies between the last element and the power of two above counts",
        "backends/triton/kernels/gathered.py",
        "mask = tl.broadcast_to(place < LENGTH, elements.shape)",
        "mask = tl.broadcast_to(place <= LENGTH, elements.shape)",
        ("tests/planner/test_gathered.py::test_rows_under_the_interpreter",),
    ),
    Mutant(
        "one segment that fits keeps all from being folded again",
        "backends/cpu/segments.py",
        "if trusted.all():",
        "if trusted.any():",
        (
            "tests/api/test_segment_reduce.py::test_values_that_float32_does_not_hold_are_folded_in_float64",
            "tests/api/test_segment_reduce.py::test_segments_of_every_magnitude_beside_each_other",
        ),
    ),
    Mutant(
        "equal segments have an order of their own",
        "backends/cpu/segments.py",
        'if guarantee != "batch_invariant" and count and lengths[0] > 0',
        "if count and lengths[0] > 0",
        ("tests/api/test_segment_reduce.py::test_bits_of_a_segment_do_not_depend_on_the_others_lengths",),
    ),
    Mutant(
        "a negated out is written as it lies",
        "api/transpose.py",
        "if target.is_conj() or target.is_neg():",
        "if target.is_conj():",
        ("tests/api/test_transpose.py::test_memory_that_is_not_what_it_shows",),
    ),
)
