"""What takes longest: 420 shardings beside the 80 of `test_sharded`, and of DTensors graphs of every call, and a model that
FSDP2 divides, whose import alone takes seconds."""

from __future__ import annotations

import pytest

import drawn_on_ranks
import dtensors_on_ranks
from ranks import Ranks


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


def test_a_sharded_fold_is_the_fold_of_the_whole(four):
    assert four.run(drawn_on_ranks.drawn, 1080, 420)[0] == 420


def test_every_compiled_call_is_one_graph(four):
    four.run(dtensors_on_ranks.compiled, True)


def test_gradients_of_fsdp2_are_clipped_as_those_of_the_whole_model(four):
    four.run(dtensors_on_ranks.fsdp)
