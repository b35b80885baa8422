"""Sharded calls on two GPUs, by NCCL: what `test_sharded` has of more processes on gloo."""

from __future__ import annotations

import pytest
import torch

import drawn_on_ranks
import dtensors_on_ranks
import graphs_on_ranks
import on_ranks
import refused_on_ranks
from ranks import Ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

EXCHANGES = ["reduce", "reduce_map", "scan", "topk", "cross_entropy", "matmul", "segment_reduce"]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    ranks = Ranks(2, tmp_path_factory.mktemp("ranks"), engine="nccl")
    yield ranks
    ranks.close()


# Twenty cases a test, so that several processes share what Triton's compiler has to do.
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        (kind, seed)
        for kind, first, count in [
            ("drawn", 5000, 100),
            ("losses", 6000, 60),
            ("maps", 7000, 100),
            ("selections", 8000, 100),
            ("products", 9000, 60),
            ("segments", 10000, 80),
        ]
        for seed in range(first, first + count, 20)
    ],
)
def test_drawn_calls_are_those_of_the_whole(two, kind, seed):
    assert two.run(getattr(drawn_on_ranks, kind), seed, 20)[0] == 20


@pytest.mark.parametrize(
    "names", [["SUM", "LOGSUMEXP", "WELFORD"], ["MAX", "MAX_WITH_INDEX"], ["PROD", "AFFINE"]]
)
def test_gradients_are_the_shards_of_the_whole_one(two, names):
    two.run(on_ranks.gradients, names, "MAX" in names)


def test_compiled_maps_are_one_graph_forward_and_backward(two):
    two.run(graphs_on_ranks.compiled_maps)


def test_segments_of_dtensors_are_those_of_the_whole(two):
    two.run(dtensors_on_ranks.segments)


def test_compiled_segments_are_one_graph_forward_and_backward(two):
    two.run(graphs_on_ranks.compiled_segments)


def test_plain_calls_of_dtensors_are_those_of_the_whole(two):
    assert two.run(dtensors_on_ranks.plain_calls)[0] > 100


def test_scans_of_dtensors_are_those_of_the_whole(two):
    two.run(dtensors_on_ranks.scans)


def test_products_of_dtensors_are_those_of_the_whole(two):
    assert two.run(dtensors_on_ranks.products, 0, 40)[0] == 40


def test_losses_of_dtensors_are_those_of_the_whole(two):
    assert two.run(dtensors_on_ranks.losses, 0, 40)[0] == 40


def test_scans_begin_with_the_state_of_the_ranks_before(two):
    two.run(on_ranks.scans)


def test_gradients_of_scans_are_the_shards_of_the_whole_ones(two):
    two.run(on_ranks.scan_gradients, ["MAX", "MINMAX", "no identity", "CUMMAX"])


def test_named_folds_are_those_of_the_whole(two):
    two.run(on_ranks.named)


def test_compiled_calls_are_one_graph_forward_and_backward(two):
    two.run(graphs_on_ranks.compiled, ["LOGSUMEXP", "MAX_WITH_INDEX"])


def test_bits_do_not_depend_on_who_is_late(two):
    runs = [two.run(on_ranks.bits, late) for late in (-1, 0, 1)]
    assert all(made == runs[0][0] for ranks in runs for made in ranks)


@pytest.mark.parametrize("what", ["shape", "dtype", "monoid", "guarantee"])
def test_ranks_that_disagree_are_named_on_each_rank(two, what):
    errors = two.run(refused_on_ranks.disagreeing, what)
    assert len(set(errors)) == 1
    assert f"ranks must agree on {what}" in errors[0]


@pytest.mark.parametrize("name", EXCHANGES)
def test_ranks_that_disagree_are_named_by_every_operation(two, name):
    errors = two.run(refused_on_ranks.disagreeing_call, name, "dtype")
    assert len(set(errors)) == 1
    assert "ranks must agree on dtype" in errors[0]
