"""Plain calls of DTensors: on gloo, by four processes that run all cases."""

from __future__ import annotations

import os
import re

import pytest

import dtensors_on_ranks
from ranks import Ranks

CASES = int(os.environ.get("TILEFOLD_DTENSORS", "12"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


def test_plain_calls_are_those_of_the_whole(four):
    assert four.run(dtensors_on_ranks.plain_calls)[0] > 100


def test_dims_that_several_dims_of_the_mesh_divide(four):
    assert four.run(dtensors_on_ranks.several_dims, 100, CASES)[0] == CASES


def test_chunks_begin_with_the_state_of_those_before(four):
    four.run(dtensors_on_ranks.chunks)


def test_scans_are_those_of_the_whole(four):
    four.run(dtensors_on_ranks.scans)


def test_selections_are_those_of_the_whole(four):
    four.run(dtensors_on_ranks.selections)


def test_segments_are_those_of_the_whole(four):
    four.run(dtensors_on_ranks.segments)


def test_losses_are_those_of_the_whole(four):
    assert four.run(dtensors_on_ranks.losses, 500, CASES)[0] == CASES


def test_products_are_those_of_the_whole(four):
    assert four.run(dtensors_on_ranks.products, 300, CASES)[0] == CASES


def test_a_compiled_norm_and_a_fold_are_one_graph(four):
    four.run(dtensors_on_ranks.compiled, False)


def test_calls_like_earlier_ones_are_those_of_their_own_elements(four):
    four.run(dtensors_on_ranks.again)


def test_plain_targets_and_weights_are_every_ranks(four):
    four.run(dtensors_on_ranks.plain_targets)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("logsumexp", {"all_gather_into_tensor": [4 * 8]}),
        ("softmax", {"all_gather_into_tensor": [4 * 8]}),
        ("rms_norm", {"all_gather_into_tensor": [4 * 8]}),
        ("argmax", {"all_gather_into_tensor": [8, 4 * 12]}),
        ("topk", {"all_gather_into_tensor": [4 * 2 * 12 + 8]}),
        ("cross_entropy", {"all_gather_into_tensor": [4 * 12 + 16]}),
        ("matmul", {"all_reduce": [4 * 3 * 4]}),
        ("scan", {"all_gather_into_tensor": [4 * 4]}),
        ("segment_reduce", {"all_gather_into_tensor": [8, 2 * 4 * 8], "all_reduce": [4 * 4 * 4]}),
    ],
)
def test_a_graph_exchanges_states_and_nothing_else(four, name, sent):
    found = [(kind, n) for kind, numbers in sent.items() for n in numbers]
    assert four.run(dtensors_on_ranks.in_graph, name) == [found] * 4


def test_operations_of_torch_refuse_dtensors_in_one_line(four):
    for errors in four.run(dtensors_on_ranks.as_operations):
        assert all(
            re.fullmatch("tilefold::.* must get plain tensors, got a DTensor, .*", error) for error in errors
        )


def test_several_cotangents_at_once_are_refused(four):
    for errors in four.run(dtensors_on_ranks.batched):
        assert all("softmax: a DTensor's cotangent must be one" in error for error in errors), errors


def test_calls_that_are_refused(four):
    rules = (
        "sum: placements must be Shard or Replicate, got P",
        "rms_norm: tensors must all be DTensors where one is, got Tensor",
        r"rms_norm: tensors must be sharded as the input is.*got S\(1\) where S\(0\) is needed",
        "reduce: tensors must all be DTensors where one is, got Tensor",
        "scan: a scan of DTensors takes no `init`",
        "softmax: a map of DTensors takes no `out`",
        "topk: a selection of DTensors takes no `out`",
        "rms_norm: tensors must be on one mesh",
        r"reduce: one DTensor must have the shape \[4, 6\]",
        "cross_entropy: a loss of DTensors takes no `inplace_backward`",
        "cross_entropy: one dim of the mesh may divide the classes, got 2",
        r"matmul: a dim of the mesh may divide rows, columns, batches or K, one of these, got S\(0\) and S\(1\)",
        "reduce: over several dims of a mesh a fold has a derivative where that needs the total alone, got prod",
    )
    for errors in four.run(dtensors_on_ranks.refused):
        assert all(re.search(rule, error) for rule, error in zip(rules, errors, strict=True)), errors


@pytest.mark.parametrize("order", [2.0, 3.0, float("inf"), 0.0])
def test_gradients_are_clipped_to_the_norm_of_the_whole(four, order):
    four.run(dtensors_on_ranks.clips, order)


def test_clips_that_are_refused(four):
    errors = four.run(dtensors_on_ranks.unclipped)
    assert all(
        "a gradient's placements must be Shard or Replicate, got P" in partial for partial, _ in errors
    )
    said = [disagreed for _, disagreed in errors]
    assert said[0] == said[2] == ""  # the dim of the mesh that divides the gradient has two groups
    assert re.search("clip_grad_norm_: ranks must agree on norm, got .* on rank 1 and .* on rank 3", said[1])
    assert said[1] == said[3]


def test_states_that_wait_for_their_exchange(four):
    four.run(dtensors_on_ranks.partials)


def test_states_that_are_refused(four):
    rules = (
        "partial_reduce: `inputs` must be DTensors, got Tensor",
        "the order counts for first: one dim of the mesh may divide the first reduced dim alone",
        "states have no derivative, got an input that requires grad",
        r"states may become Replicate, or Shard of a dim of results, got S\(1\) of 2 dims",
        r"states must be those of sum, got Partial\(logsumexp\)",
        "project: `states` must be a DTensor",
        "Partial: a tensor is folded with a tilefold.Monoid",
    )
    for errors in four.run(dtensors_on_ranks.refused_partials):
        assert all(re.search(rule, error) for rule, error in zip(rules, errors, strict=True)), errors
