"""Faults planted in folds of many tensors."""

from __future__ import annotations

from mutants.mutant import Mutant

FILE = "tests/api/test_reduce_many.py"

MANY = (
    Mutant(
        "the last block of a tensor has as many elements as the others",
        "planner/tables.py",
        "np.minimum(size, np.repeat(np.array(counts, np.int64), blocks) - position)",
        "np.maximum(size, np.repeat(np.array(counts, np.int64), blocks) - position)",
        (f"{FILE}::test_tables_hold_every_element_once",),
    ),
    Mutant(
        "elements ahead of a tensor that begins inside of a vector are folded",
        "backends/triton/kernels/tables.py",
        "begin_masked((places >= lead) & (places < end), xs",
        "begin_masked(places < end, xs",
        (f"{FILE}::test_kernels_from_their_ptx[norm]",),
    ),
    Mutant(
        "positions count from the vector in which a tensor begins",
        "backends/triton/kernels/tables.py",
        "state = fold_across(row, lead, lead + count, first - lead,",
        "state = fold_across(row, lead, lead + count, first,",
        (f"{FILE}::test_kernels_from_their_ptx[weighted]",),
    ),
    Mutant(
        "a call of tensors of another shape at the same addresses is taken for an earlier one",
        "api/reduce_many.py",
        "if each.alike(tensors, placed=True):",
        "if here:",
        (f"{FILE}::test_another_layout_at_a_known_address_is_no_repeated_call",),
    ),
    Mutant(
        "a nested tensor comes to torch's guards, which end the process",
        "api/reduce_many.py",
        "if any(map(_is_nested, tensors)):",
        "if False:",
        (f"{FILE}::test_a_nested_tensor_at_a_known_address_is_refused",),
    ),
    Mutant(
        "tensors of known layouts are read where those of an earlier call lay",
        "api/reduce_many.py",
        "_keep(site, each._replace(addresses=addresses, tables=tables))",
        "tables = each.tables",
        (f"{FILE}::test_tensors_of_known_layouts_at_other_addresses_are_read_there",),
    ),
    Mutant(
        "an address goes to the tensor before its own, where that is empty",
        "api/reduce_many.py",
        'np.searchsorted(first[1:], rows[3], side="right")',
        'np.searchsorted(first[1:], rows[3], side="left")',
        (f"{FILE}::test_a_repeated_call_is_answered_by_the_earlier_one",),
    ),
    Mutant(
        "a tensor whose order in memory is another is read as it lies where the order counts",
        "api/reduce_many.py",
        "return t if not ordered and t.permute(nearest_last)",
        "return t if t.permute(nearest_last)",
        (f"{FILE}::test_tensors_without_gaps_are_read_where_they_lie_unless_order_counts",),
    ),
    Mutant(
        "norms of narrow gradients are rounded before they are folded",
        "functional/clipping.py",
        "None if wide == held else wide",
        "None",
        ("tests/functional/test_clipping.py::test_a_norm_of_narrow_gradients_is_rounded_once",),
    ),
)
