"""Faults planted in the bench, in describe, in the X-ray and in the page of watch."""

from __future__ import annotations

from mutants.mutant import Mutant

TOOLS = (
    # ------------------------------------------------------------------------------------------------ bench, describe
    Mutant(
        "noise is a sum and not the larger of two",
        "bench/statistics.py",
        "max(noise * old.median_us, noise_us)",
        "noise * old.median_us + noise_us",
        ("tests/bench/test_statistics.py::test_the_larger_of_both_noises_counts_and_not_their_sum",),
    ),
    Mutant(
        "quartiles of five samples are those of a larger population",
        "bench/statistics.py",
        'method="inclusive"',
        'method="exclusive"',
        ("tests/bench/test_statistics.py",),
    ),
    Mutant(
        "an error that is NaN passes the gate",
        "bench/gate.py",
        'return None if worst <= 1 else f"the error is {worst:.3g} times the bound"',
        'return f"the error is {worst:.3g} times the bound" if worst > 1 else None',
        ("tests/bench/test_gate.py::test_one_element_that_is_no_number_is_found",),
    ),
    Mutant(
        "an answer is compared with one probe alone",
        "bench/gate.py",
        "for probe in reversed(probes):",
        "for probe in probes[:1]:",
        ("tests/bench/test_gate.py::test_an_output_kept_from_an_earlier_call_is_found_out",),
    ),
    Mutant(
        "a slow call takes part in one turn too many",
        "bench/timing.py",
        "return (turn + 1) * turns // total > turn * turns // total",
        "return (turn + 1) * turns // total >= turn * turns // total",
        ("tests/bench/test_timing.py::test_a_slow_call_takes_part_evenly",),
    ),
    Mutant(
        "totals of a file count its tensors' bytes as elements",
        "describe.py",
        'for key in ("bytes", *COUNTS)}',
        'for key in ("count", *COUNTS)}',
        ("tests/test_describe.py::test_totals",),
    ),
    # ------------------------------------------------------------------------------------------------ X-ray
    Mutant(
        "a program that has ended may still be written into",
        "xray/machine/cluster.py",
        "if not found.begun or found.gone.all():",
        "if not found.begun:",
        ("tests/xray/test_clusters.py::test_what_no_chip_defines_is_said[too late]",),
    ),
    Mutant(
        "only the program's own threads wait at a cluster's barrier",
        "xray/machine/cluster.py",
        "for m in self.members)",
        "for m in self.members[:1])",
        ("tests/xray/test_clusters.py::test_a_program_reads_its_neighbours_memory",),
    ),
    Mutant(
        "a sector is counted for each lane",
        "xray/machine/counts.py",
        "sectors = len(np.unique(addresses // SECTOR))",
        "sectors = len(addresses // SECTOR)",
        ("tests/xray/test_counts.py",),
    ),
    Mutant(
        "lanes that ask for one word count as a conflict",
        "xray/machine/counts.py",
        "touched = np.unique(addresses[:, None] // BANK + np.arange(words))",
        "touched = (addresses[:, None] // BANK + np.arange(words)).ravel()",
        ("tests/xray/test_counts.py::test_bank_conflicts_of_single_words",),
    ),
    Mutant(
        "lanes that are off ask too",
        "xray/machine/counts.py",
        "yield addresses[active]",
        "yield addresses",
        ("tests/xray/test_counts.py::test_lanes_that_are_off_ask_for_nothing",),
    ),
    Mutant(
        "threads that write one value are a race",
        "xray/machine/races.py",
        "differ = several & (np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts))",
        "differ = several",
        ("tests/xray/test_races.py::test_threads_that_write_what_all_write",),
    ),
    Mutant(
        "boxes reach memory in the order of their stores",
        "xray/machine/cta.py",
        "for box in reversed(self.late or ()):",
        "for box in self.late or ():",
        (
            "tests/xray/observe/test_boxes.py::test_a_box_that_meets_other_accesses_is_an_error_with_what_is_stored",
        ),
    ),
    Mutant(
        "a box that is loaded sees what threads stored",
        "xray/machine/bulk/moves.py",
        "seen = cta.memory.earlier or cta.memory",
        "seen = cta.memory",
        (
            "tests/xray/observe/test_boxes.py::test_a_box_that_meets_other_accesses_is_an_error_with_what_is_stored",
        ),
    ),
    Mutant(
        "lanes that no other fills are taken as they are",
        "xray/observe/masked.py",
        "    if len(suspect.load.operands) > 2:\n        return None",
        "    if len(suspect.load.operands) > 1:\n        return None",
        ("tests/xray/observe/test_undefined.py::test_a_fold_of_lanes_that_no_other_fills_is_said",),
    ),
    Mutant(
        "rows that were folded are not followed",
        "xray/observe/values.py",
        "if kind in MOVES or name in self._world.through:",
        "if kind in MOVES:",
        ("tests/xray/observe/test_undefined.py::test_masked_rows_whose_distance_is_the_least_are_an_error",),
    ),
    Mutant(
        "a fold behind its loop forgets what the loop began with",
        "xray/observe/rewrites.py",
        'f"{mark}_all = {user.name} {start}, {mark}_folded : {narrow}"',
        'f"{mark}_all = {user.name} {mark}_folded, {mark}_folded : {narrow}"',
        ("tests/xray/observe/test_rewrites.py::test_folds_behind_a_loop_are_tried_together",),
    ),
    Mutant(
        "windows beside each other are one tile",
        "xray/observe/again.py",
        "return bool(len(values)) and bool(values[counts.argmax()]) and",
        "return not len(values) and",
        ("tests/xray/observe/test_rewrites.py::test_a_window_beside_another_is_not_the_same_tile",),
    ),
    # ------------------------------------------------------------------------------------------------ the page of watch
    Mutant(
        "chunks are combined out of order",
        "watch/stream.py",
        "parts = combined(program, [field[:, ::2] for field in parts], [field[:, 1::2] for field in parts])",
        "parts = combined(program, [field[:, 1::2] for field in parts], [field[:, ::2] for field in parts])",
        ("tests/watch/test_stream.py::test_every_state_is_that_of_the_prefix_read",),
    ),
    Mutant(
        "the positions of a filled boundary tile begin at 0",
        "watch/stream.py",
        "own = fold_chunks(program, lifted(program, filled, begin), size)",
        "own = fold_chunks(program, lifted(program, filled), size)",
        ("tests/watch/test_stream.py::test_the_wrong_fill_is_the_fold_of_the_padded_row",),
    ),
    Mutant(
        "a name in the page's data ends its script",
        "watch/page.py",
        'for sign in "<>&":',
        'for sign in "&":',
        ("tests/watch/test_page.py::test_names_are_text",),
    ),
    Mutant(
        "masked elements of a fold of all dims are told apart behind its reshape",
        "xray/observe/masked.py",
        "return source if _reorders(source) else None",
        "return None",
        (
            "tests/xray/observe/test_undefined.py::test_a_fold_of_all_dims_that_happens_to_be_right_is_no_error",
        ),
    ),
    Mutant(
        "an atomic behind a store orders programs",
        "xray/observe/unordered.py",
        "return one.side.last_order > one.access and other.side.first_order < other.access",
        "return one.side.last_order > one.access",
        ("tests/xray/observe/test_unordered.py::test_an_atomic_behind_both_orders_nothing",),
    ),
    Mutant(
        "a round in which a variable changes is idle",
        "xray/observe/rewrites.py",
        "busy.append(made.changed(spelled(before), spelled(after), kind))",
        "pass",
        ("tests/xray/observe/test_loops.py::test_rounds_with_a_lane_or_something_else_to_do",),
    ),
)
