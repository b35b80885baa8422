"""The steps of a product's plan: operands that are packed, shares of K, and what each launch reads and writes."""

from __future__ import annotations

import pytest

from backends.test_packed_products import matrices, planned


@pytest.mark.parametrize(
    ("packed", "shapes"),
    [((True, True), {"packed0": (37, 144), "packed1": (131, 64)}), ((True, False), {"packed0": (37, 144)}),
     ((False, True), {"packed1": (131, 64)})],
    ids=["both", "a", "b"],
)  # fmt: skip
@pytest.mark.parametrize("splits", [1, 3])
def test_packed_operands_have_rows_of_whole_vectors(
    packed: tuple[bool, bool], shapes: dict[str, tuple[int, int]], splits: int
) -> None:
    """A product of [37, 131] and [131, 51]: both operands lie in rows of odd length."""
    plan, _, _ = planned(*matrices(37, 51, 131), packed, splits)
    pack, product, *finish = plan.launched
    assert pack.kernel == "pack_operands"
    assert pack.writes == tuple(shapes)
    assert pack.reads == tuple(name.replace("packed", "input") for name in shapes)
    assert product.reads[:2] == tuple(
        f"{'packed' if is_packed else 'input'}{n}" for n, is_packed in enumerate(packed)
    )
    assert {name: plan.shape_of(name) for name in shapes} == shapes
    assert [step.kernel for step in finish] == ["finish_products"] * (splits > 1)
    assert plan.launched[-1].writes == ("output0",)


def test_the_launch_that_packs_lets_the_product_begin_early():
    plan, _, _ = planned(*matrices(37, 51, 131), (False, True), 3)
    assert [step.kernel for step in plan.launched] == ["pack_operands", "product_partials", "finish_products"]
    assert [step.early for step in plan.launched] == [False, True, True]
    assert plan.launched[0].releases
    assert plan.launched[1].reads == ("input0", "packed1")
    assert plan.shape_of("packed1") == (131, 64)
