"""Faults planted in maps."""

from __future__ import annotations

from mutants.mutant import Mutant

MAPS = (
    # ----------------------------------------------------------------------------------------------------------- maps
    Mutant(
        "threads of a map have the neighbours of its inputs' vectors alone",
        "planner/maps.py",
        "reading = replace(reading, vector=max(reading.vector, widest))",
        "reading = replace(reading, vector=reading.vector)",
        (
            "tests/planner/test_offset_rows.py::test_a_lanes_elements_are_one_threads_where_results_have_wider_vectors",
        ),
    ),
    Mutant(
        "a window is mapped before it is folded",
        "backends/triton/kernels/map_windows.py",
        "tl.where(maps, slot // 2 - 1, (slot + 1) // 2)",
        "tl.where(maps, slot // 2, (slot + 1) // 2)",
        ("tests/planner/test_windows.py::test_every_job_comes_once_and_after_what_it_waits_for",),
    ),
    Mutant(
        "the sum that a norm takes on a CPU is rounded to its dtype first",
        "backends/cpu/native.py",
        "total = x.to(wide) + residual.to(wide)",
        "total = (x + residual).to(wide)",
        (
            "tests/fuzz/test_fuzz.py::test_random_cases_agree_with_the_definition[norms-of-layers-by-cpu-and-auto]",
        ),
    ),
    Mutant(
        "a group norm's bias alone is taken for its weight",
        "backends/cpu/native.py",
        "weight, bias = (next(given) if some else None for some in which)",
        "weight, bias = (next(given) if some else None for some in sorted(which, reverse=True))",
        (
            "tests/fuzz/test_fuzz.py::test_random_cases_agree_with_the_definition[norms-of-layers-by-cpu-and-auto]",
        ),
    ),
    Mutant(
        "the least norm is added to the norm",
        "functional/normalized.py",
        "return units.inverse, math.maximum(norm, eps * units.inverse)",
        "return units.inverse, norm + eps * units.inverse",
        (
            "tests/fuzz/test_fuzz.py::test_random_cases_agree_with_the_definition[shares-of-rows-by-cpu-and-auto]",
        ),
    ),
    Mutant(
        "a window's one odd row is stored element by element",
        "planner/maps.py",
        "if align == 1 and reading.aligns and _stores_singly(reading, rows, results, run):",
        "if False:",
        (
            "tests/backends/test_operations_offline.py::test_as_many_sectors_are_moved_as_the_plan_says[windows, odd]",
        ),
    ),
    Mutant(
        "a plan says that the second launch of a top-k reads whole rows",
        "planner/least_time.py",
        "if isinstance(settings, Gathering):",
        "if False:",
        (
            "tests/backends/test_operations_offline.py::test_as_many_sectors_are_moved_as_the_plan_says[split selections]",
        ),
    ),
    Mutant(
        "a plan says that the second launch of segments stores all results",
        "planner/least_time.py",
        "* min(settings.chunks, segments) // segments",
        "",
        (
            "tests/backends/test_operations_offline.py::test_as_many_sectors_are_moved_as_the_plan_says[columns]",
        ),
    ),
    Mutant(
        "the first parts' states are combined twice",
        "backends/triton/kernels/map_windows.py",
        "for first in range(PARTS, splits, PARTS):",
        "for first in range(0, splits, PARTS):",
        ("tests/planner/test_windows.py::test_windows_executed_from_ptx[rows]",),
    ),
    Mutant(
        "counters begin with what memory held",
        "backends/triton/kernels/map_windows.py",
        "tl.full([BLOCK], 0, tl.int32)",
        "tl.load(y_ptrs[0] + place, mask=place < length)",
        ("tests/planner/test_windows.py::test_windows_executed_from_ptx[rows]",),
    ),
    Mutant(
        "a row's first elements are not stored where its first vector is another's too",
        "backends/triton/kernels/map_rows.py",
        "(at >= 0) & (at < length) & (whole == 0)",
        "(at >= RUN) & (at < length) & (whole == 0)",
        ("tests/planner/test_blocks.py::test_executed_from_ptx[odd rows]",),
    ),
    Mutant(
        "every program of a cluster leaves its state where the receiver's own belongs",
        "backends/triton/kernels/clusters.py",
        "mad.lo.u32 word, rank, $1, word;\n        mov.u32",
        "mad.lo.u32 word, to, $1, word;\n        mov.u32",
        ("tests/planner/test_blocks.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "the last program's state is left out of a cluster's",
        "backends/triton/kernels/clusters.py",
        "mask = part < CLUSTER\n",
        "mask = part < CLUSTER - 1\n",
        ("tests/planner/test_blocks.py::test_clusters_executed_from_ptx[odd rows]",),
    ),
    Mutant(
        "a cluster's barrier expects the bytes of all programs but one",
        "backends/triton/kernels/clusters.py",
        "[exchange_barrier], {4 * words * cluster};",
        "[exchange_barrier], {4 * words * (cluster - 1)};",
        ("tests/planner/test_blocks.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "a cluster's programs send before all have begun",
        "backends/triton/kernels/clusters.py",
        "        barrier.cluster.wait.acquire.aligned;\n",
        "",
        ("tests/planner/test_blocks.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "no fence shows a cluster's barriers to the other programs",
        "backends/triton/kernels/clusters.py",
        "fence.mbarrier_init.release.cluster;\n",
        "",
        ("tests/planner/test_blocks.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "a cluster's program does not wait for what the others send",
        "backends/triton/kernels/clusters.py",
        "        @!come bra WAITING;\n        mov.u32",
        "        mov.u32",
        ("tests/planner/test_blocks.py::test_clusters_executed_from_ptx[rows]",),
    ),
    Mutant(
        "a result may overlap an input somehow",
        "problem/validate.py",
        "and not (in_place and _is_exactly(target, t))",
        "and not in_place",
        ("tests/api/test_reduce_map.py::test_a_refused_call_leaves_its_input",),
    ),
    # -------------------------------------------------------------------------------------------- maps held as blocks
    Mutant(
        "a program's exponentials are taken for the row's",
        "functional/normalized.py",
        "return own, share * monoids.rescaled(own, largest)",
        "return own, share",
        ("tests/planner/test_blocks.py::test_programs_whose_elements_are_far_from_the_rows_largest[4]",),
    ),
    Mutant(
        "a block's last tile counts what is beyond the row's end",
        "planner/blocks.py",
        "for t in range(stage.tiles) if t >= whole)",
        "for t in range(stage.tiles) if t > whole)",
        ("tests/planner/test_blocks.py::test_clusters_executed_from_ptx[rows]",),
    ),
    # --------------------------------------------------------------------------------------------- maps held in rings
    Mutant(
        "a ring's turns are read before they have come",
        "backends/triton/shared_calls.py",
        "return [stage.depth - turn for turn",
        "return [stage.depth for turn",
        ("tests/planner/test_rings.py::test_softmax[persistent programs]",),
    ),
    Mutant(
        "words of a weight that are kept are those of another turn",
        "backends/triton/kernels/map_rings.py",
        "ahead = some_of(ahead, len(ahead) // AHEAD, len(ahead) // AHEAD * (AHEAD - 1)) + words",
        "ahead = words + some_of(ahead, len(ahead) // AHEAD, len(ahead) // AHEAD * (AHEAD - 1))",
        (
            "tests/planner/test_rings.py::test_words_of_weights_read_ahead[all kept for all rows-layer_norm-False]",
        ),
    ),
    Mutant(
        "turns that come again are mapped before they have",
        "backends/triton/shared_calls.py",
        "return [*whole, stage.depth - 1]",
        "return [*whole, stage.depth]",
        ("tests/planner/test_rings.py::test_a_row_longer_than_a_ring_in_place",),
    ),
    Mutant(
        "a cluster's programs take the states of another exchange",
        "backends/triton/kernels/clusters.py",
        "+ (number & 1) * (CLUSTER * WORDS)",
        "+ 0 * number",
        ("tests/planner/test_rings.py::test_softmax[persistent clusters]",),
    ),
    Mutant(
        "weights beside odd rows are one element off",
        "backends/triton/kernels/map_rings.py",
        "ahead = (W * EACH - lead) % (W * EACH)",
        "ahead = (W * EACH - lead + 1) % (W * EACH)",
        ("tests/planner/test_rings.py::test_norms[odd rows-layer_norm-False]",),
    ),
    Mutant(
        "a row's elements that share a vector with another row's are written with it",
        "backends/triton/kernels/map_rings.py",
        "whole = some & ((place >= lead) & (place + RUN <= lead + length)).to(tl.int32)",
        "whole = some & (place < lead + length).to(tl.int32)",
        ("tests/planner/test_rings.py::test_in_place",),
    ),
    # --------------------------------------------------------------------------------------------- maps of flat spans
    Mutant(
        "a span's first vector is written where it is not whole",
        "backends/triton/kernels/map_spans.py",
        "whole = ((place >= lead) & (place + RUN <= lead + number)).to(tl.int32)",
        "whole = (place + RUN <= lead + number).to(tl.int32)",
        ("tests/planner/test_spans.py::test_softmax[spans that begin anywhere]",),
    ),
    Mutant(
        "what a row's last thread has beyond its end is written",
        "backends/triton/kernels/map_spans.py",
        "put(place, element, some, y.dtype.element_ty, MASKED)",
        "put(place, element, some, y.dtype.element_ty, False)",
        ("tests/planner/test_spans.py::test_softmax[eight threads a row]",),
    ),
    Mutant(
        "a misaligned result takes the place of an element elsewhere",
        "planner/spans.py",
        "if flat and begins:",
        "if flat:",
        ("tests/planner/test_spans.py::test_results_take_the_places_of_elements_that_begin_alike",),
    ),
    Mutant(
        "rows at a distance from each other are read as a span",
        "planner/stages/rows.py",
        "inner.strides[i] == inner.output and [d.strides[i] for d in problem.output_dims] == steps",
        "inner.strides[i] == inner.output",
        ("tests/planner/test_spans.py::test_what_is_no_span[rows apart]",),
    ),
    Mutant(
        "pieces of columns of odd width all begin as the first one does",
        "backends/triton/kernels/map_spans.py",
        "own = (lead + number * (inner % RUN)) & (RUN - 1)",
        "own = lead + number * 0",
        ("tests/planner/test_spans.py::test_columns_in_pieces[of odd width]",),
    ),
    Mutant(
        "the last block of columns writes beyond its group",
        "backends/triton/kernels/map_spans.py",
        "present = tl.minimum(output_size - column, TAKEN).to(tl.int32)",
        "present = tl.minimum(output_size, TAKEN).to(tl.int32)",
        ("tests/planner/test_spans.py::test_columns_in_pieces[blocks, the last one in part]",),
    ),
    Mutant(
        "columns of a group are taken for rows",
        "backends/triton/kernels/map_spans.py",
        "place = lead + (row // INNER) * (INNER * length) + row % INNER + at * INNER + AFTER * INNER",
        "place = lead + row * length + at + AFTER",
        ("tests/planner/test_spans.py::test_groups_of_columns[a thread a column]",),
    ),
    # ------------------------------------------------------------------------------- maps of rows that begin anywhere
    Mutant(
        "words of extra tensors are one run behind their elements",
        "backends/triton/kernels/map_offset.py",
        "beside = beside + beside_run(extras[i], first + place, RUN)",
        "beside = beside + beside_run(extras[i], first + place + RUN, RUN)",
        ("tests/planner/test_offset_rows.py::test_norms[one turn-layer_norm-False]",),
    ),
    Mutant(
        "elements beyond an odd row's end are folded",
        "backends/triton/kernels/map_offset.py",
        "masks = masks + (at + (u * LANES * RUN + e) < number,)",
        "masks = masks + (at + (u * LANES * RUN + e) < number + 1,)",
        ("tests/planner/test_offset_rows.py::test_what_rows_fold_to_where_numbers_are_none",),
    ),
    Mutant(
        "a program of a cluster begins where its elements' vector does",
        "backends/triton/kernels/map_offset.py",
        "return area + lead * size",
        "return area",
        ("tests/planner/test_offset_rows.py::test_softmax[three programs]",),
    ),
    Mutant(
        "a column's last row is not folded",
        "backends/triton/kernels/map_stripes.py",
        "masks = masks + (start + line * UNROLL + u < length,)",
        "masks = masks + (start + line * UNROLL + u < length - 1,)",
        ("tests/planner/test_stripes.py::test_what_columns_fold_to_where_numbers_are_none",),
    ),
    Mutant(
        "both threads that share out their columns leave the first half",
        "backends/triton/kernels/map_stripes.py",
        "column += tl.where(upper, len(states) // FIELDS // 2, 0)",
        "column += 0",
        ("tests/planner/test_stripes.py::test_softmax[one program a stripe]",),
    ),
    Mutant(
        "a persistent program fetches its first stripe again",
        "backends/triton/kernels/map_stripes.py",
        "x, stripe + later // TURNS * clusters, later % TURNS, slot,",
        "x, stripe, later % TURNS, slot,",
        ("tests/planner/test_stripes.py::test_softmax[persistent programs]",),
    ),
    Mutant(
        "rows of one vector are read as a first and a last one",
        "planner/maps.py",
        "narrow = reading.vector < reading.full_vector and reading.length >= 2 * reading.full_vector",
        "narrow = reading.vector < reading.full_vector",
        ("tests/planner/test_blocks.py::test_rows_that_begin_between_vectors_are_two_of_these",),
    ),
)
