"""Folds of sharded tensors: on gloo, by a few processes that run all cases."""

from __future__ import annotations

import os
import re

import pytest
import torch

import drawn_on_ranks
import graphs_on_ranks
import on_ranks
import refused_on_ranks
import repeated_on_ranks
import tilefold.distributed as sharded
from ranks import Ranks
from tilefold.errors import ArgumentError

LOSSES = int(os.environ.get("TILEFOLD_LOSSES", "100"))
MAPS = int(os.environ.get("TILEFOLD_SHARDED_MAPS", "100"))
SELECTIONS = int(os.environ.get("TILEFOLD_SELECTIONS", "60"))
SEGMENTS = int(os.environ.get("TILEFOLD_SHARDED_SEGMENTS", "60"))
SHARDINGS = int(os.environ.get("TILEFOLD_SHARDINGS", "80"))

EXCHANGES = ["reduce", "reduce_map", "scan", "topk", "cross_entropy", "matmul", "segment_reduce"]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


def test_a_sharded_fold_is_the_fold_of_the_whole(four):
    assert four.run(drawn_on_ranks.drawn, 1000, SHARDINGS)[0] == SHARDINGS


@pytest.mark.parametrize(
    "names",
    [
        ["SUM", "LOGSUMEXP", "WELFORD", "NORM(2.0)", "NORM(3.0)", "DESCRIBE"],
        ["MAX", "MINMAX", "NORM(inf)", "MAX_WITH_INDEX", "ARGMIN"],
        ["PROD", "AFFINE", "MATMUL2X2", "FIRST", "LAST"],
    ],
    ids=["total", "ties", "around"],
)
def test_gradients_are_the_shards_of_the_whole_one(four, names):
    four.run(on_ranks.gradients, names, "MAX" in names)


def test_compiled_calls_are_one_graph_forward_and_backward(four):
    four.run(graphs_on_ranks.compiled, ["LOGSUMEXP", "MAX_WITH_INDEX"])


def test_compiled_maps_are_one_graph_forward_and_backward(four):
    four.run(graphs_on_ranks.compiled_maps)


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "cumsum"])
def test_there_is_no_second_derivative(four, name):
    assert all(
        "a first derivative alone" in error for error in four.run(refused_on_ranks.second_derivative, name)
    )


@pytest.mark.parametrize("name", EXCHANGES)
def test_transforms_of_torch_func_have_no_gradient(four, name):
    assert all("must be asked of autograd" in error for error in four.run(refused_on_ranks.transformed, name))


@pytest.mark.parametrize("name", EXCHANGES)
def test_several_cotangents_at_once_have_the_gradients_of_each(four, name):
    four.run(refused_on_ranks.batched, name)


def test_several_calls_at_once_are_refused(four):
    for errors in four.run(refused_on_ranks.mapped):
        assert all("an exchange must be of one call" in error for error in errors), errors


def test_calls_like_earlier_ones_are_those_of_their_own_elements(four):
    four.run(repeated_on_ranks.again)


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "scan", "cross_entropy"])
def test_there_is_no_forward_derivative(four, name):
    assert all(
        "no forward derivative" in error for error in four.run(refused_on_ranks.forward_derivative, name)
    )


def test_a_map_of_extremes_has_no_gradient(four):
    assert all(
        "where those of its fold need the total alone" in error
        for error in four.run(refused_on_ranks.underived)
    )


def test_a_loss_of_sharded_classes_is_that_of_all(four):
    assert four.run(drawn_on_ranks.losses, 2000, LOSSES)[0] == LOSSES


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("uneven", r"ranks must hold as many classes as `sizes` says.*got \[2, 3, 3, 3\]"),
        ("sizes", "`sizes` must hold the number of classes of each of 4 ranks"),
        ("target", r"targets must be classes in \[0, 10\]"),
        ("second", "a first derivative alone"),
    ],
)
def test_losses_that_are_refused(four, what, said):
    assert all(re.search(said, error) for error in four.run(refused_on_ranks.losses_beside, what))


def test_a_compiled_loss_is_one_graph_with_the_same_bits(four):
    assert four.run(refused_on_ranks.losses_beside, "compiled") == [None] * 4


def test_maps_of_sharded_rows_are_those_of_the_whole(four):
    assert four.run(drawn_on_ranks.maps, 3000, MAPS)[0] == MAPS


def test_selections_are_those_of_the_whole(four):
    assert four.run(drawn_on_ranks.selections, 4000, SELECTIONS)[0] == SELECTIONS


def test_segments_that_cross_ranks_are_those_of_the_whole(four):
    assert four.run(drawn_on_ranks.segments, 10000, SEGMENTS)[0] == SEGMENTS


def test_compiled_segments_are_one_graph_forward_and_backward(four):
    four.run(graphs_on_ranks.compiled_segments)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("by", "`by` must come with `num_segments`"),
        ("keys", r"`by` must be sorted over all ranks, got .* \[3, 3, 2, 2, 1, 1, 0, 0\]"),
        ("offsets", "`offsets` must begin at 0 and end at the dim's length 8, got 0 and 7"),
        ("lengths", "`lengths` must sum to the dim's length 8, got 9"),
        ("both", "segments must be given by `offsets`, by `lengths` or by `by`, got both"),
        ("empty", "got the empty segment 0 and first without one"),
    ],
)
def test_segments_that_are_refused(four, what, said):
    assert all(re.search(said, error) for error in four.run(refused_on_ranks.segments_beside, what))


def test_products_of_parts_of_k_are_those_of_the_whole(four):
    assert four.run(drawn_on_ranks.products, 5000, 40)[0] == 40


def test_a_compiled_product_is_one_graph(four):
    four.run(graphs_on_ranks.compiled_product)


def test_products_that_are_refused(four):
    rules = (
        "must be run_to_run or none",
        "rows must be a multiple of 4, the number of ranks",
        "with `row` b must have columns",
    )
    for errors in four.run(refused_on_ranks.refused_products):
        assert all(re.search(rule, error) for rule, error in zip(rules, errors, strict=True)), errors


def test_more_than_all_ranks_have_is_refused_on_each(four):
    assert all(
        "`k` must be at most 4, the length of dim 1 on all ranks" in error
        for error in four.run(refused_on_ranks.too_many)
    )


def test_calls_without_a_sharded_dim_or_with_other_keywords_are_refused_by_name(four):
    missing = "`sharded_dim` must be named, got none"
    rules = (
        *(
            f"distributed.{name}: {missing}"
            for name in ("softmax", "sum", "rms_norm", "topk", "reduce", "scan", "reduce_map")
        ),
        "distributed.var: further keywords must be among sharded_dim, group, mesh, guarantee, got 'unbiased'",
        "distributed.layer_norm: further keywords must be among .*, got 'sharded'",
    )
    for errors in four.run(refused_on_ranks.unnamed):
        assert all(re.search(rule, error) for rule, error in zip(rules, errors, strict=True)), errors


def test_parts_without_dims_are_refused(four):
    for errors in four.run(refused_on_ranks.without_dims):
        assert all("`sharded_dim` must be a dim of the parts, got 0" in error for error in errors), errors


def test_sharded_chunks_begin_with_the_state_of_those_before(four):
    four.run(on_ranks.chunks)


def test_scans_begin_with_the_state_of_the_ranks_before(four):
    four.run(on_ranks.scans)


@pytest.mark.parametrize(
    "names",
    [["MAX", "MIN"], ["MINMAX", "NORM(inf)", "no identity"], ["CUMMIN", "MAX_WITH_INDEX", "LAST"]],
    ids=lambda names: ",".join(names),
)
def test_gradients_of_scans_are_the_shards_of_the_whole_ones(four, names):
    four.run(on_ranks.scan_gradients, names)


def test_named_folds_are_those_of_the_whole(four):
    four.run(on_ranks.named)


@pytest.mark.parametrize("correction", [2, 2.5])
def test_numbers_that_are_symbols_of_a_graph(four, correction):
    four.run(graphs_on_ranks.symbols, correction)


def test_meshes_of_two_dims(four):
    four.run(on_ranks.meshes)


def test_the_exchange_moves_states_and_nothing_else(four):
    assert (
        four.run(on_ranks.exchanged)
        == [
            [
                5 * (4 + 4),
                5 * (4 + 8) + 8,
                5 * 1,
                0,
                0,
                5 * (4 + 4),
                5 * 3 * 4,
                5 * 5 * 4,
                5 * 2 * (2 + 8) + 8,
            ]
        ]
        * 4
    )


def test_bits_do_not_depend_on_who_is_late(four):
    runs = [four.run(on_ranks.bits, late) for late in (-1, 0, 3)]
    assert all(made == runs[0][0] for ranks in runs for made in ranks)


@pytest.mark.parametrize("what", ["shape", "dtype", "monoid", "guarantee"])
def test_ranks_that_disagree_are_named_on_each_rank(four, what):
    errors = four.run(refused_on_ranks.disagreeing, what)
    assert len(set(errors)) == 1
    assert f"ranks must agree on {what}" in errors[0]
    assert re.search("on ranks 0, 1, 3 and .* on rank 2;", errors[0])


@pytest.mark.parametrize(
    "what",
    ["function", "read as", "what requires grad", "k", "epilogue", "reverse", "return_state", "segments"],
)
def test_ranks_that_disagree_of_a_map_are_named(four, what):
    for error in four.run(refused_on_ranks.disagreeing_map, what):
        assert f"ranks must agree on {what}" in error
        assert re.search("on ranks 0, 1, 3 and .* on rank 2;", error)


def test_nothing_on_all_ranks_needs_an_identity(four):
    assert all("needs an identity" in error for error in four.run(refused_on_ranks.nothing))


@pytest.mark.parametrize("what", ["shape", "dtype"])
@pytest.mark.parametrize("name", EXCHANGES)
def test_ranks_that_disagree_are_named_by_every_operation(four, name, what):
    errors = four.run(refused_on_ranks.disagreeing_call, name, what)
    assert len(set(errors)) == 1
    assert f"ranks must agree on {what}" in errors[0]
    assert re.search("on ranks 0, 1, 3 and .* on rank 2;", errors[0])


@pytest.mark.parametrize("what", ["gradient", "no gradient"])
@pytest.mark.parametrize("name", ["reduce", "reduce_map", "scan", "matmul", "segment_reduce"])
def test_ranks_that_disagree_on_a_gradient_are_named(four, name, what):
    """It is part of what they exchange: a leaf that requires none, or `torch.no_grad()`, on one rank."""
    for error in four.run(refused_on_ranks.disagreeing_call, name, what):
        assert "ranks must agree on what requires grad" in error


def test_a_rank_that_dies_is_an_error_of_every_operation_within_the_time_out(tmp_path):
    ranks = Ranks(2, tmp_path, timeout_s=10)
    try:
        for pipe in ranks.pipes:
            pipe.send((refused_on_ranks.killed, ()))
        is_good, found = ranks.pipes[0].recv()
        assert is_good, found
        assert list(found) == EXCHANGES
        for name, (waited_s, error) in found.items():
            assert error, name
            assert waited_s < 15, name
    finally:
        ranks.close()


@pytest.mark.parametrize("name", ["argmax", "segment_reduce"])
def test_a_rank_that_dies_between_two_exchanges_of_a_call_is_an_error_within_the_time_out(tmp_path, name):
    ranks = Ranks(2, tmp_path, timeout_s=10)
    try:
        for pipe in ranks.pipes:
            pipe.send((refused_on_ranks.killed_between, (name,)))
        is_good, found = ranks.pipes[0].recv()
        assert is_good, found
        begun, waited_s, error = found
        assert begun == 2
        assert error
        assert waited_s < 15
    finally:
        ranks.close()


def test_a_group_is_needed():
    with pytest.raises(ArgumentError, match="must be initialized, got no process group"):
        sharded.sum(torch.ones(3), 0, sharded_dim=0)
