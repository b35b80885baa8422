"""Faults of kinds that have happened, each with the tests that must fail when it is planted.

`old` stands exactly once in its file, so that an entry that no longer fits its code is noticed. What a fault is about stands
in its name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault: in which file below src/tilefold `old` becomes `new`, and which tests must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


SIZES = "tests/backends/test_products.py::test_sizes_and_strides"
MUTANTS = (
    # ------------------------------------------------------------------------------------------------ algebra
    Mutant(
        "each thread takes its own element for a block's first",
        "planner/settled.py",
        "absorb=stage.absorb and (not first or keeps_runs(problem, stage))",
        "absorb=stage.absorb",
        ("tests/backends/test_edges.py::test_a_block_of_several_threads_has_one_first_element",),
    ),
    Mutant(
        "bool arithmetic is promoted to int32",
        "algebra/typing.py",
        "        operand = torch.int64\n    return operand, operand",
        "        operand = torch.int32\n    return operand, operand",
        ("tests/algebra/test_evaluate.py::test_result_dtypes",),
    ),
    Mutant(
        "a uint32 field is carried in 32 bits",
        "algebra/dtypes.py",
        "return torch.int64 if dtype == torch.uint32 else torch.int32",
        "return torch.int32",
        ("tests/algebra/test_narrow.py::test_what_is_lifted_wraps[torch.uint32-declared-reference]",),
    ),
    Mutant(
        "an infinite identity is the wrong limit of an integer",
        "algebra/dtypes.py",
        "number = greatest if number > 0 else least",
        "number = least if number > 0 else greatest",
        ("tests/algebra/test_narrow.py::test_an_infinite_identity_is_the_fields_own_limit",),
    ),
    Mutant(
        "what goes into a uint64 from a float is not taken modulo 2^64",
        "algebra/arithmetic.py",
        "low = torch.where(large, value - 2.0**64, value)",
        "low = value",
        ("tests/algebra/test_unsigned.py::test_floats_become_uint64",),
    ),
    Mutant(
        "an unsigned shift drags the sign along",
        "algebra/unsigned.py",
        "return (value >> 1) & GREATEST",
        "return value >> 1",
        (
            "tests/algebra/test_unsigned.py::test_a_fold_shifts_without_the_sign",
            "tests/algebra/test_unsigned.py::test_operations_on_both_sides_of_half_the_range[floordiv-reference]",
        ),
    ),
    Mutant(
        "a choice of two numbers is rounded to the default dtype",
        "algebra/evaluate.py",
        "branches = [_tensor(branches[0], dtype, condition.device), branches[1]]",
        "pass",
        ("tests/algebra/test_evaluate.py::test_a_choice_of_two_numbers_has_all_their_bits",),
    ),
    Mutant(
        "a block's maximum is its minimum on tensors",
        "algebra/operations.py",
        "return torch.amax(value, tuple(dims), keepdim=True)",
        "return torch.amin(value, tuple(dims), keepdim=True)",
        (
            "tests/algebra/test_laws.py::test_catalogue_keeps_the_laws_and_its_declared_order[logsumexp]",
            "tests/algebra/test_laws.py::test_catalogue_keeps_the_laws_and_its_declared_order[describe]",
        ),
    ),
    Mutant(
        "of two positions in order the left is taken for the later one",
        "algebra/written.py",
        '_IN_ORDER = {"lt": True, "le": True, "ne": True, "gt": False, "ge": False, "eq": False}',
        '_IN_ORDER = {"lt": False, "le": False, "ne": True, "gt": True, "ge": True, "eq": False}',
        ("tests/backends/test_interpret.py::test_ties_within_a_lane_go_to_the_first",),
    ),
    Mutant(
        "one symmetric part makes a combine symmetric",
        "algebra/symmetry.py",
        "self._is_itself(node) or all(self.itself[a] for a in node.args)",
        "self._is_itself(node) or any(self.itself[a] for a in node.args)",
        (
            "tests/algebra/test_symmetry.py::test_only_what_a_rounding_reads_is_ordered",
            "tests/algebra/test_symmetry.py::test_a_products_order_shows_in_a_fused_sum",
            "tests/algebra/test_symmetry.py::test_a_sum_of_products_rounds_by_its_order",
        ),
    ),
    Mutant(
        "of equal elements the last is the argmax",
        "algebra/catalogue.py",
        "take = better | (equal & (b.index < a.index))",
        "take = better | (equal & (b.index > a.index))",
        ("tests/algebra/test_catalogue.py::test_located_extremes",),
    ),
    Mutant(
        "an infinite maximum is subtracted from itself in a log-sum-exp",
        "algebra/catalogue.py",
        "finite = math.where(abs(largest) == INFINITY, 0.0, largest)",
        "finite = largest",
        ("tests/backends/test_loops.py::test_an_infinite_maximum_is_not_subtracted_from_itself",),
    ),
    Mutant(
        "moving a sum of squares to another pivot has a sign swapped",
        "algebra/catalogue.py",
        "squares = (a.squares + left * (a.sum + sum_a)) + (b.squares + right * (b.sum + sum_b))",
        "squares = (a.squares + left * (a.sum - sum_a)) + (b.squares + right * (b.sum - sum_b))",
        ("tests/algebra/test_laws.py::test_catalogue_keeps_the_laws_and_its_declared_order[welford]",),
    ),
    Mutant(
        "maps are composed in the wrong order",
        "algebra/catalogue.py",
        '    lambda f, g: (g.a * f.a, g.a * f.b + g.b),\n    (1, 0),\n    fields=("a", "b"),\n    commutative=False,',
        '    lambda g, f: (g.a * f.a, g.a * f.b + g.b),\n    (1, 0),\n    fields=("a", "b"),\n    commutative=False,',
        ("tests/algebra/test_catalogue.py::test_affine_applies_the_first_map_first",),
    ),
    # ------------------------------------------------------------------------------------------------ problem, calls
    Mutant(
        "dims are joined by the outer size instead of the inner one",
        "problem.py",
        "far == near * inner.size for far, near in zip",
        "far == near * outer.size for far, near in zip",
        ("tests/test_problem.py::test_dims_of_a_contiguous_tensor_are_one",),
    ),
    Mutant(
        "dims are sorted by stride where order matters",
        "problem.py",
        "merged(inner if ordered else by_stride(inner))",
        "merged(by_stride(inner) if ordered else inner)",
        ("tests/test_problem.py::test_dims_of_a_permuted_tensor_keep_their_order_where_it_matters",),
    ),
    Mutant(
        "alignment is promised beyond what an address has",
        "problem.py",
        "return min(address & -address, 16) if address else 16",
        "return 16",
        ("tests/test_problem.py::test_alignment_is_that_of_the_first_element",),
    ),
    Mutant(
        "dims are folded in the order in which they are named",
        "problem.py",
        "return tuple(sorted(result)) if ndim else ()",
        "return tuple(result) if ndim else ()",
        ("tests/test_problem.py::test_dims_become_sorted_numbers",),
    ),
    Mutant(
        "an `out` that begins inside an input is let through",
        "validate.py",
        "return first_a < last_b and first_b < last_a",
        "return first_a == first_b",
        ("tests/test_fold.py::test_out_within_the_input",),
    ),
    Mutant(
        "a product's result may be an input's own memory",
        "backends/torch_product.py",
        "and not any(shares(result, t) for t in inputs)",
        "and True",
        ("tests/contract/test_matmul.py::test_results_own_their_memory",),
    ),
    # ------------------------------------------------------------------------------------------------ planner
    Mutant(
        "a second launch begins early on a chip that has no such launch",
        "planner/choose.py",
        "overlaps=device.overlaps, guarantee=guarantee, reason=reason",
        "overlaps=True, guarantee=guarantee, reason=reason",
        ("tests/planner/test_choose.py::test_early_start_needs_a_chip_that_can",),
    ),
    Mutant(
        "a batch-invariant plan sees how many results there are",
        "planner/view.py",
        "view, by_rows=by_rows, inner=1 << 20, outer=1,",
        "view, by_rows=by_rows, outer=1,",
        ("tests/planner/test_choose.py::test_a_batch_invariant_plan_of_many_results_is_that_of_one",),
    ),
    Mutant(
        "lanes count as ordered though inputs are shared out in several ways",
        "planner/settled.py",
        "return len(alike) == 1 and runs",
        "return runs",
        ("tests/planner/test_choose.py::test_a_lane_is_in_order_only_where_its_positions_surely_are",),
    ),
    # ------------------------------------------------------------------------------------------------ CPU
    Mutant(
        "the last box along a dim is left out where it is short",
        "backends/tiles.py",
        "for start in range(0, dim.size, length)]",
        "for start in range(0, dim.size - length + 1, length)]",
        ("tests/backends/test_loops.py::test_every_length_is_cut_right",),
    ),
    Mutant(
        "positions beyond 2^31 are carried in 32 bits on the CPU",
        "planner/cpu.py",
        "labels and 0 < length < 1 << 31",
        "labels and 0 < length < 1 << 33",
        ("tests/backends/test_loops.py::test_positions_are_as_wide_as_the_last_one_needs",),
    ),
    Mutant(
        "a later part's positions begin at 0 again",
        "backends/tiles.py",
        "first = self.first + whole * dim.position",
        "first = self.first",
        (
            "tests/backends/test_loops.py::test_positions_of_parts_beyond_32_bits_go_on_where_the_part_before_ends",
        ),
    ),
    Mutant(
        "torch's sum of floats stands in for a batch-invariant one",
        "planner/library.py",
        'catalogue.SUM: Native("torch.sum", exact=_INTEGERS, fast_dtypes=sums)',
        'catalogue.SUM: Native("torch.sum", fast_dtypes=sums)',
        ("tests/backends/test_native.py::test_batch_invariant_floats_stay_with_the_lanes",),
    ),
    Mutant(
        "the first element stands in for the last",
        "backends/native.py",
        "x.shape[dim] - 1 if last else 0",
        "0 if last else x.shape[dim] - 1",
        ("tests/backends/test_native.py::test_the_references_own_answer",),
    ),
    # ------------------------------------------------------------------------------------------------ Triton: folds
    Mutant(
        "tl.maximum without propagate_nan",
        "algebra/operations.py",
        "{{1}}, propagate_nan=tl.PropagateNan.ALL)",
        "{{1}})",
        ("tests/xray/test_folds.py::test_a_nan_is_the_largest_of_its_row",),
    ),
    Mutant(
        "absent elements count as 0 in a block's minimum",
        "algebra/operations.py",
        '_block_extreme("minimum", math.inf)',
        '_block_extreme("minimum", 0)',
        ("tests/backends/test_interpret.py::test_what_is_absent_is_no_extreme",),
    ),
    Mutant(
        "absent elements add 1 to a block's sum",
        "algebra/operations.py",
        'Torch(_sum), Triton("{0} + {1}", absent=0)',
        'Torch(_sum), Triton("{0} + {1}", absent=1)',
        (
            "tests/backends/test_interpret.py::test_monoids[welford]",
            "tests/backends/test_interpret.py::test_monoids[pair]",
        ),
    ),
    Mutant(
        "an absent state is 0 and not the identity",
        "backends/triton/emit.py",
        'f"tl.where(mask, {name}, tl.full([], {v}, {t}))"',
        'f"tl.where(mask, {name}, tl.full([], 0, {t}))"',
        (
            "tests/backends/test_interpret.py::test_cases[row of 100-argmax]",
            "tests/backends/test_interpret.py::test_cases[columns-argmax]",
            "tests/backends/test_interpret.py::test_cases[row of 100-affine]",
        ),
    ),
    Mutant(
        "steps of a tile overlap: the lanes' run is left out of them",
        "backends/triton/kernels/tiles.py",
        "step = tl.arange(0, UNROLL)[None, None, None, :] * (LANES * RUN)",
        "step = tl.arange(0, UNROLL)[None, None, None, :] * LANES",
        ("tests/backends/test_interpret.py::test_cases[row of 100-sum]",),
    ),
    Mutant(
        "a folded position's outer part is its inner one",
        "backends/triton/kernels/tiles.py",
        "offset = (places % folded_size) * reduced_step + outer_offset(places // folded_size, deep_sizes, deep_steps)",
        "offset = (places // folded_size) * reduced_step + outer_offset(places % folded_size, deep_sizes, deep_steps)",
        (
            "tests/backends/test_interpret.py::test_cases[outer and inner-sum]",
            "tests/backends/test_interpret.py::test_cases[three folded dims apart-sum]",
        ),
    ),
    Mutant(
        "partial states are projected before they are combined",
        "backends/triton/kernels/tiles.py",
        "    if PARTIAL:\n        results = state\n",
        "    if False:\n        results = state\n",
        ("tests/backends/test_interpret.py::test_two_stages",),
    ),
    Mutant(
        "kernels with and without reserved shared memory share a cache entry",
        "backends/triton/launch.py",
        "*options, call.shared_bytes, call.cluster, index)",
        "*options, call.cluster, index)",
        ("tests/backends/test_edges.py::test_a_launch_that_reserves_shared_memory_has_a_kernel_of_its_own",),
    ),
    # ------------------------------------------------------------------------------------------------ Triton: products
    Mutant(
        "a split reads on into the next one's share of K",
        "backends/triton/kernels/products.py",
        "stop = tl.minimum(start + chunk, depth)",
        "stop = depth",
        (
            f"{SIZES}[split-(5, 155, 33)-('contiguous', 'transposed')]",
            f"{SIZES}[whole-(17, 131, 16)-('transposed', 'cut')]",
        ),
    ),
    Mutant(
        "a lane without partial products adds another lane's",
        "backends/triton/kernels/products.py",
        "parts += load_splits(begin + s * PITCH, lanes, keep, SPLITS - s, LANES)",
        "parts += load_splits(begin + s * PITCH, lanes, keep, SPLITS, LANES)",
        (
            f"{SIZES}[more lanes than splits-(5, 155, 33)-('contiguous', 'transposed')]",
            f"{SIZES}[split-(5, 155, 33)-('contiguous', 'transposed')]",
        ),
    ),
    Mutant(
        "an extra tensor is read at the wrong row of its batch",
        "backends/triton/kernels/products.py",
        "taken = load_extras(extras, row // rows, row % rows, x % columns, batch_sizes, mask)",
        "taken = load_extras(extras, row % rows, row // rows, x % columns, batch_sizes, mask)",
        ("tests/backends/test_products.py::test_extra_tensors_of_other_dtypes",),
    ),
    Mutant(
        "a batch's partial products overwrite each other",
        "backends/triton/kernels/products.py",
        "begin = split.to(tl.int64) * pitch + batch * rows * columns",
        "begin = split.to(tl.int64) * pitch",
        ("tests/backends/test_products.py::test_batches",),
    ),
    # ------------------------------------------------------------------------------------------------ contract
    Mutant(
        "without a bias the first extra tensor is left out",
        "contract/epilogue.py",
        "*values[with_bias:])",
        "*values[1:])",
        ("tests/contract/test_matmul.py::test_an_epilogue_of_extra_tensors",),
    ),
    Mutant(
        "partial products' time is off by 1000",
        "contract/costs.py",
        "partial_us = sizes.outputs * splits * 4 / costs.partial_gb_per_s / 1e3",
        "partial_us = sizes.outputs * splits * 4 / costs.partial_gb_per_s / 1e6",
        ("tests/contract/test_costs.py::test_partial_products_cost_their_bytes_over_the_bandwidth",),
    ),
    Mutant(
        "a step of K that is not whole is left out of the costs",
        "contract/costs.py",
        "steps = math.ceil(math.ceil(sizes.depth / tile.block_k) / splits)",
        "steps = math.floor(sizes.depth / tile.block_k / splits)",
        ("tests/contract/test_costs.py::test_steps_of_k_that_are_not_whole_count_as_whole",),
    ),
    Mutant(
        "four times the partial products are held",
        "contract/choose.py",
        "PARTIAL_BYTES = 64 << 20",
        "PARTIAL_BYTES = 256 << 20",
        ("tests/contract/test_costs.py::test_no_plan_holds_more_partial_products_than_their_bound",),
    ),
    Mutant(
        "splits are left without elements",
        "contract/tiles.py",
        "return math.ceil(steps / math.ceil(steps / splits))",
        "return splits",
        ("tests/contract/test_plan.py::test_no_split_is_without_elements",),
    ),
    Mutant(
        "an SM has room for one program more than its share",
        "contract/tiles.py",
        "reserved = device.shared_bytes // (share + 1)",
        "reserved = device.shared_bytes // (share + 2)",
        ("tests/contract/test_plan.py::test_of_programs_that_begin_early_no_sm_holds_more_than_its_share",),
    ),
    Mutant(
        "a batch-invariant product sees its rows",
        "contract/choose.py",
        "sizes, chip = replace(sizes, rows=INVARIANT_ROWS, batches=1), NOMINAL",
        "chip = NOMINAL",
        ("tests/contract/test_plan.py::test_a_batch_invariant_plan_sees_neither_rows_nor_cores",),
    ),
    Mutant(
        "torch is asked for products that it sums in half precision",
        "contract/cublas.py",
        "return setting == (precision if dtype == torch.float32 else False)",
        "return dtype == torch.float16 or setting == precision",
        ("tests/contract/test_plan.py::test_cublas_multiplies_as_torch_is_set",),
    ),
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
        "a program's exponentials are taken for the row's",
        "functional/normalized.py",
        "return own, share * catalogue.rescaled(own, largest)",
        "return own, share",
        ("tests/test_mapped.py::test_programs_whose_elements_are_far_from_the_rows_largest",),
    ),
    Mutant(
        "a block's last tile counts what is beyond the row's end",
        "planner/blocks.py",
        "for t in range(stage.tiles) if t >= whole)",
        "for t in range(stage.tiles) if t > whole)",
        ("tests/test_mapped.py::test_clusters_executed_from_ptx[rows]",),
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
    # ------------------------------------------------------------------------------------------------ X-ray
    Mutant(
        "a program that has ended may still be written into",
        "xray/machine/cluster.py",
        "if not found.begun or found.gone.all():",
        "if not found.begun:",
        ("tests/xray/test_clusters.py::test_what_no_chip_defines_is_said[too late]",),
    ),
    Mutant(
        "only the program's own threads meet at a cluster's barrier",
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
        "tail = fold_side(xs, newest_at, lead,",
        "tail = fold_side(xs, border_at, lead,",
        ("tests/test_ragged.py::test_under_the_interpreter[short-affine]",),
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
)
