"""Faults of kinds that have happened, each with the tests that must fail when it is planted.

`old` stands exactly once in its file, so that an entry that no longer fits its code is noticed. What a fault is about stands
in its name.
"""

from __future__ import annotations

from mutants.mutant import Mutant
from mutants.planted_gradients import GRADIENTS
from mutants.planted_losses import LOSSES
from mutants.planted_many import MANY
from mutants.planted_maps import MAPS
from mutants.planted_modules import MODULES
from mutants.planted_operations import OPERATIONS
from mutants.planted_quantized import QUANTIZED
from mutants.planted_scans import SCANS
from mutants.planted_sharded import SHARDED
from mutants.planted_tools import TOOLS
from mutants.planted_xray import XRAY

__all__ = ["MUTANTS", "Mutant"]

SIZES = "tests/backends/test_products.py::test_sizes_and_strides"
MUTANTS = (
    # ------------------------------------------------------------------------------------------------- calls
    Mutant(
        "lanes share a row in order however much of it is masked",
        "planner/in_order.py",
        "_places(tile, reading.length) > MORE_PLACES * _places(alone, reading.length)",
        "_places(tile, reading.length) < MORE_PLACES * _places(alone, reading.length)",
        (
            "tests/planner/test_in_order.py::test_rows_of_any_length_are_read_in_vectors_with_few_masked_loads",
        ),
    ),
    Mutant(
        "a sum is linear in one operand alone",
        "algebra/operations.py",
        'block="block_sum", atomic="add", linear="together"',
        'block="block_sum", atomic="add", linear="one"',
        ("tests/watch/test_stream.py::test_a_field_is_said_to_be_a_sum_of_scaled_parts_where_it_is_linear",),
    ),
    Mutant(
        "offsets that end before the last element lose the rest",
        "api/segment_reduce.py",
        "if whole and (low > 0 or high < length):",
        "if whole and low > 0:",
        ("tests/api/test_segment_reduce.py::test_offsets_that_do_not_fit",),
    ),
    Mutant(
        "a product under the reference is torch's",
        "api/on_cpu.py",
        "torch_product.by_elements if defined else ",
        "",
        ("tests/planner/products/test_matmul.py::test_the_reference_adds_one_product_after_another",),
    ),
    Mutant(
        "an out of torch.vmap is written to",
        "planner/problem/validate.py",
        '    _check_mapped(target, "`out`", call)\n',
        "",
        ("tests/test_errors.py::test_rule_and_form",),
    ),
    # ------------------------------------------------------------------------------------------------- in order
    Mutant(
        "a lane's part of all tiles is as long as its part of one",
        "backends/triton/kernels/in_order.py",
        "share = tiles * (RUN * UNROLL)",
        "share = RUN * UNROLL",
        ("tests/backends/test_in_order.py::test_columns_on_the_machine",),
    ),
    Mutant(
        "the first lane's state is stored",
        "backends/triton/kernels/in_order.py",
        "mask = mask[None, :] & (lane[:, None] == LANES - 1)",
        "mask = mask[None, :] & (lane[:, None] == 0)",
        ("tests/backends/test_in_order.py::test_rows_on_the_machine",),
    ),
    Mutant(
        "elements before a row that starts between two vectors count",
        "backends/triton/kernels/in_order.py",
        "mask = mask & (run >= lead - begin)",
        "mask = mask & (run >= -begin)",
        ("tests/backends/test_in_order.py::test_rows_on_the_machine",),
    ),
    # ------------------------------------------------------------------------------------------------ algebra
    Mutant(
        "each thread takes its own element for a block's first",
        "planner/thread_order.py",
        "if not stage.absorb or not asks_for_first(program) or keeps_runs(problem, stage):",
        "if True:",
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
        "return torch.amax(value, tuple(dims), keepdim)",
        "return torch.amin(value, tuple(dims), keepdim)",
        (
            "tests/algebra/proofs/test_laws.py::test_catalogue_keeps_the_laws_and_its_declared_order[logsumexp]",
            "tests/algebra/proofs/test_laws.py::test_catalogue_keeps_the_laws_and_its_declared_order[describe]",
        ),
    ),
    Mutant(
        "laws are tried on states of a thousand lifts at most",
        "algebra/proofs/reach.py",
        "_DOUBLINGS, _FEW_DOUBLINGS = 40, 6",
        "_DOUBLINGS, _FEW_DOUBLINGS = 10, 6",
        (
            "tests/algebra/proofs/test_reach.py::test_every_lift_is_combined_with_itself_up_to_2_to_the_40",
            "tests/algebra/proofs/test_laws.py::"
            "test_a_sum_that_is_reset_is_refused_however_many_lifts_it_takes[a + b-8589934592]",
        ),
    ),
    Mutant(
        "without rounding, shifts to the right go to the left",
        "algebra/proofs/exact.py",
        '"rshift": lambda x, n: x >>',
        '"rshift": lambda x, n: x <<',
        (
            "tests/algebra/proofs/test_exact.py::test_arithmetic_is_exact",
            "tests/algebra/proofs/test_laws.py::test_a_combine_that_turns_at_high_bits_is_refused[two bits]",
        ),
    ),
    Mutant(
        "a sum forgets the errors of its operands",
        "algebra/proofs/exact.py",
        "return _made(a.value + b.value, a.error + b.error)",
        "return _made(a.value + b.value, _ZERO)",
        ("tests/algebra/proofs/test_exact.py::test_an_error_holds_what_it_bounds",),
    ),
    Mutant(
        "rounding breaks a law",
        "algebra/proofs/agreement.py",
        "    exact = Exact(pool.program.algebra, pool.program.state)\n    return next(",
        "    return int(rows.nonzero()[0])\n    return next(",
        ("tests/algebra/proofs/test_laws.py::test_rounding_breaks_no_law",),
    ),
    Mutant(
        "of two positions that are compared the other way round the left is taken for the later one",
        "algebra/written.py",
        "return OPS[op].python(1, 0)",
        "return OPS[op].python(0, 1)",
        ("tests/backends/test_interpret.py::test_ties_within_a_lane_go_to_the_first",),
    ),
    Mutant(
        "one symmetric part makes a combine symmetric",
        "algebra/proofs/symmetry.py",
        "self._is_itself(node) or all(self.itself[a] for a in node.args)",
        "self._is_itself(node) or any(self.itself[a] for a in node.args)",
        (
            "tests/algebra/proofs/test_symmetry.py::test_only_what_a_rounding_reads_is_ordered",
            "tests/algebra/proofs/test_symmetry.py::test_a_products_order_shows_in_a_fused_sum",
            "tests/algebra/proofs/test_symmetry.py::test_a_sum_of_products_rounds_by_its_order",
        ),
    ),
    Mutant(
        "of equal elements the last is the argmax",
        "monoids.py",
        "take = better | (equal & (b.index < a.index))",
        "take = better | (equal & (b.index > a.index))",
        ("tests/test_monoids.py::test_located_extremes",),
    ),
    Mutant(
        "an infinite maximum is subtracted from itself in a log-sum-exp",
        "monoids.py",
        "finite = math.where(abs(largest) == INFINITY, 0.0, largest)",
        "finite = largest",
        ("tests/backends/cpu/test_loops.py::test_an_infinite_maximum_is_not_subtracted_from_itself",),
    ),
    Mutant(
        "moving a sum of squares to another pivot has a sign swapped",
        "algebra/powers.py",
        "squares = (a.squares + left * (a.sum + sum_a)) + (b.squares + right * (b.sum + sum_b))",
        "squares = (a.squares + left * (a.sum - sum_a)) + (b.squares + right * (b.sum - sum_b))",
        ("tests/algebra/test_powers.py::test_states_of_unlike_units",),
    ),
    Mutant(
        "a sum of squares is moved to a larger unit by the ratio and not its square",
        "algebra/powers.py",
        "_WELFORD = Sums((0, 1, 1, 2),",
        "_WELFORD = Sums((0, 1, 1, 1),",
        ("tests/algebra/test_powers.py::test_states_of_unlike_units",),
    ),
    Mutant(
        "a row of huge elements is multiplied by a root that is subnormal",
        "functional/normalized.py",
        "huge, tiny = whole == INFINITY,",
        "huge, tiny = whole < 0.0,",
        ("tests/algebra/test_powers.py::test_rows_that_leave_the_range",),
    ),
    Mutant(
        "rows whose squares went beyond the range are not folded again",
        "algebra/powers.py",
        "beyond & (scale > DOWN * DOWN)",
        "beyond & (scale > 1.0)",
        ("tests/planner/test_rings.py::test_rows_beyond_the_range_of_squares[rows-layer_norm-False-0.0]",),
    ),
    Mutant(
        "a row that is longer than its ring is folded again from what the ring holds",
        "backends/triton/kernels/map_rings.py",
        "inputs, block * RING.ROWS + member, turn, (oldest + turn) % RING.DEPTH,",
        "inputs, block * RING.ROWS + member, turn + AGAIN, (oldest + turn) % RING.DEPTH,",
        (
            "tests/planner/test_rings.py::test_rows_beyond_the_range_of_squares[longer than a ring-layer_norm-False-0.0]",
        ),
    ),
    Mutant(
        "maps are composed in the wrong order",
        "monoids.py",
        '    lambda f, g: (g.a * f.a, g.a * f.b + g.b),\n    (1, 0),\n    fields=("a", "b"),\n    commutative=False,',
        '    lambda g, f: (g.a * f.a, g.a * f.b + g.b),\n    (1, 0),\n    fields=("a", "b"),\n    commutative=False,',
        ("tests/test_monoids.py::test_affine_applies_the_first_map_first",),
    ),
    # ------------------------------------------------------------------------------------------------ problem, calls
    Mutant(
        "dims are joined by the outer size instead of the inner one",
        "planner/problem/canonical.py",
        "far == near * inner.size for far, near in zip",
        "far == near * outer.size for far, near in zip",
        ("tests/planner/problem/test_canonical.py::test_dims_of_a_contiguous_tensor_are_one",),
    ),
    Mutant(
        "dims are sorted by stride where order matters",
        "planner/problem/canonical.py",
        "merged(inner if ordered else by_stride(inner))",
        "merged(by_stride(inner) if ordered else inner)",
        (
            "tests/planner/problem/test_canonical.py::test_dims_of_a_permuted_tensor_keep_their_order_where_it_matters",
        ),
    ),
    Mutant(
        "alignment is promised beyond what an address has",
        "planner/problem/canonical.py",
        "return min(address & -address, 16) if address else 16",
        "return 16",
        ("tests/planner/problem/test_canonical.py::test_alignment_is_that_of_the_first_element",),
    ),
    Mutant(
        "dims are folded in the order in which they are named",
        "planner/problem/canonical.py",
        "return tuple(sorted(result)) if ndim else ()",
        "return tuple(result) if ndim else ()",
        ("tests/planner/problem/test_canonical.py::test_dims_become_sorted_numbers",),
    ),
    Mutant(
        "an `out` that begins inside an input is let through",
        "planner/problem/validate.py",
        "return first_a < last_b and first_b < last_a",
        "return first_a == first_b",
        ("tests/api/test_reduce.py::test_out_within_the_input",),
    ),
    Mutant(
        "a product's result may be an input's own memory",
        "backends/cpu/torch_product.py",
        "and not any(shares(result, t) for t in inputs)",
        "and True",
        ("tests/planner/products/test_matmul.py::test_results_own_their_memory",),
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
        "few rows are walked by one program each",
        "planner/few_programs.py",
        "return least if then <= GAIN * now else stage",
        "return stage",
        ("tests/planner/test_few_programs.py::test_rows_are_read_by_more_warps_or_in_parts",),
    ),
    Mutant(
        "a second launch that waits for the first costs what one that begins early does",
        "planner/few_programs.py",
        "SECOND_US if device.overlaps else EMPTY_US",
        "SECOND_US",
        ("tests/planner/test_few_programs.py::test_a_second_launch_that_waits_for_the_first_costs_as_much",),
    ),
    Mutant(
        "columns of groups that lie apart count as one piece of memory",
        "planner/form_choice.py",
        "if len(geometry.flat) > 1 and operand.outer[-1] != geometry.flat[-1]:",
        "if False:",
        ("tests/planner/test_form_choice.py::test_groups_that_lie_apart_are_pieces_of_their_own",),
    ),
    Mutant(
        "blocks of rows that begin between two vectors are absorbed under masks alone",
        "planner/first_tile.py",
        "while stage.absorb and has_no_whole_tile(stage, reading):",
        "while False:",
        ("tests/planner/test_choose.py::test_rows_from_anywhere_have_a_tile_without_masks",),
    ),
    Mutant(
        "a batch-invariant plan sees how many results there are",
        "planner/reading.py",
        "        inner=1 << 20,\n        outer=1,",
        "        outer=1,",
        ("tests/planner/test_choose.py::test_a_batch_invariant_plan_of_many_results_is_that_of_one",),
    ),
    Mutant(
        "lanes count as ordered though inputs are shared out in several ways",
        "planner/thread_order.py",
        "return len(alike) == 1 and runs",
        "return runs",
        ("tests/planner/test_choose.py::test_a_lane_is_in_order_only_where_its_positions_surely_are",),
    ),
    # ------------------------------------------------------------------------------------------------ CPU
    Mutant(
        "the last tile along a dim is left out where it is short",
        "backends/cpu/tiles.py",
        "for start in range(0, dim.size, length)]",
        "for start in range(0, dim.size - length + 1, length)]",
        ("tests/backends/cpu/test_loops.py::test_every_length_is_cut_right",),
    ),
    Mutant(
        "positions beyond 2^31 are carried in 32 bits on the CPU",
        "planner/folds.py",
        "if labels and 0 < length <= NARROW else",
        "if labels and 0 < length <= 4 * NARROW else",
        ("tests/backends/cpu/test_loops.py::test_positions_are_as_wide_as_the_last_one_needs",),
    ),
    Mutant(
        "a later part's positions begin at 0 again",
        "backends/cpu/tiles.py",
        "first = self.first + whole * dim.position",
        "first = self.first",
        (
            "tests/backends/cpu/test_loops.py::test_positions_of_parts_beyond_32_bits_go_on_where_the_part_before_ends",
        ),
    ),
    Mutant(
        "torch's sum of floats stands in for a batch-invariant one",
        "planner/library.py",
        'monoids.SUM: Native("torch.sum", exact=_INTEGERS, fast_dtypes=sums)',
        'monoids.SUM: Native("torch.sum", fast_dtypes=sums)',
        ("tests/backends/cpu/test_native.py::test_batch_invariant_floats_stay_with_the_lanes",),
    ),
    Mutant(
        "the first element stands in for the last",
        "backends/cpu/native.py",
        "x.shape[dim] - 1 if last else 0",
        "0 if last else x.shape[dim] - 1",
        ("tests/backends/cpu/test_native.py::test_the_references_own_answer",),
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
        "a row's last tile reads beyond its end",
        "backends/triton/kernels/tiles.py",
        "            mask = keep if bound is None else keep & bound\n",
        "            mask = keep\n",
        ("tests/backends/test_interpret.py::test_cases[rows of 300 from odd places-sum]",),
    ),
    Mutant(
        "results taken along all output dims lie where another dim's do",
        "backends/triton/kernels/tiles.py",
        "outer = [(number // size[1] % size[0]).to(tl.int64) for size in sizes.outer]",
        "outer = [(number // size[1] % (size[0] - 1)).to(tl.int64) for size in sizes.outer]",
        ("tests/planner/test_first_launch.py::test_results_along_all_dims",),
    ),
    Mutant(
        "a program that begins before the first result stores one place too early",
        "backends/triton/kernels/tiles.py",
        "result = place - OWNS.SHIFT",
        "result = place - OWNS.SHIFT + (OWNS.SHIFT > 1)",
        ("tests/planner/test_first_launch.py::test_results_from_a_vector_before_the_first",),
    ),
    Mutant(
        "a reduced position's outer part is its inner one",
        "backends/triton/kernels/tiles.py",
        "offset = (places % dims[1]) * steps[1] + outer_offset(places // dims[1], dims[0], steps[0])",
        "offset = (places // dims[1]) * steps[1] + outer_offset(places % dims[1], dims[0], steps[0])",
        (
            "tests/backends/test_interpret.py::test_cases[outer and inner-sum]",
            "tests/backends/test_interpret.py::test_cases[three reduced dims apart-sum]",
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
    Mutant(
        "what lies behind a copied row is not zero",
        "backends/triton/kernels/products.py",
        "mask=inside & (place < x.length)[None, :], other=0.0",
        "mask=inside, other=0.0",
        ("tests/backends/test_packed_products.py::test_copied_rows_end_in_zeros",),
    ),
    Mutant(
        "the second copied operand has the first one's rows",
        "backends/triton/kernels/products.py",
        "pack_lines(operands[1], y_ptrs[1], pid - programs, ELEMENTS // BLOCKS[1], BLOCKS[1], WIDE)",
        "pack_lines(operands[1], y_ptrs[1], pid, ELEMENTS // BLOCKS[1], BLOCKS[1], WIDE)",
        ("tests/backends/test_packed_products.py::test_copied_rows_end_in_zeros",),
    ),
    Mutant(
        "a copy lets the product begin early on a chip that cannot",
        "planner/products/steps.py",
        "early = chained or (bool(before) and candidate.overlap)",
        "early = chained or bool(before)",
        ("tests/backends/test_packed_products.py::test_nothing_begins_early_where_a_chip_cannot",),
    ),
    # ------------------------------------------------------------------------------------------------ contract
    Mutant(
        "without a bias the first extra tensor is left out",
        "planner/products/epilogue.py",
        "*values[with_bias:])",
        "*values[1:])",
        ("tests/planner/products/test_matmul.py::test_an_epilogue_of_extra_tensors",),
    ),
    Mutant(
        "partial products' time is off by 1000",
        "planner/products/costs.py",
        "partial_us = sizes.outputs * splits * 4 / costs.partial_gb_per_s / 1e3",
        "partial_us = sizes.outputs * splits * 4 / costs.partial_gb_per_s / 1e6",
        ("tests/planner/products/test_costs.py::test_partial_products_cost_their_bytes_over_the_bandwidth",),
    ),
    Mutant(
        "a step of K that is not whole is left out of the costs",
        "planner/products/costs.py",
        "steps = math.ceil(math.ceil(sizes.depth / tile.block_k) / splits)",
        "steps = math.floor(sizes.depth / tile.block_k / splits)",
        ("tests/planner/products/test_costs.py::test_steps_of_k_that_are_not_whole_count_as_whole",),
    ),
    Mutant(
        "a batch-invariant product is a fold, whose plan sees its rows",
        "planner/products/folded.py",
        'guarantee != "batch_invariant"',
        'guarantee != "none"',
        ("tests/planner/products/test_folded.py::test_what_is_no_fold",),
    ),
    Mutant(
        "a fold of odd rows knows one operand's address better than the other's rows",
        "planner/products/folded.py",
        "return common, common",
        "return aligned",
        ("tests/planner/products/test_folded.py::test_an_address_says_no_more_than_the_other_operands_rows",),
    ),
    Mutant(
        "four times the partial products are held",
        "planner/products/choose.py",
        "PARTIAL_BYTES = 64 << 20",
        "PARTIAL_BYTES = 256 << 20",
        ("tests/planner/products/test_costs.py::test_no_plan_holds_more_partial_products_than_their_bound",),
    ),
    Mutant(
        "splits are left without elements",
        "planner/products/tiles.py",
        "return math.ceil(steps / math.ceil(steps / splits))",
        "return splits",
        ("tests/planner/products/test_plan.py::test_no_split_is_without_elements",),
    ),
    Mutant(
        "an SM has room for one program more than its share",
        "planner/products/tiles.py",
        "reserved = device.shared_bytes // (share + 1)",
        "reserved = device.shared_bytes // (share + 2)",
        (
            "tests/planner/products/test_plan.py::test_of_programs_that_begin_early_no_sm_holds_more_than_its_share",
        ),
    ),
    Mutant(
        "a batch-invariant product sees its rows",
        "planner/products/choose.py",
        "sizes = replace(sizes, rows=INVARIANT_ROWS, batches=1, loose=(False, False), across=(False, True))",
        "pass",
        ("tests/planner/products/test_plan.py::test_a_batch_invariant_plan_sees_neither_rows_nor_cores",),
    ),
    Mutant(
        "torch is asked for products that it sums in half precision",
        "planner/products/cublas.py",
        "return setting == (precision if dtype == torch.float32 else False)",
        "return dtype == torch.float16 or setting == precision",
        ("tests/planner/products/test_plan.py::test_cublas_multiplies_as_torch_is_set",),
    ),
    *SCANS,
    *MAPS,
    *GRADIENTS,
    *LOSSES,
    *SHARDED,
    *MODULES,
    *MANY,
    *OPERATIONS,
    *QUANTIZED,
    *TOOLS,
    *XRAY,
)
