"""A model that FSDP2 divides, on gloo. Its import alone takes seconds in each process."""

from __future__ import annotations

import dtensors_on_ranks
from ranks import Ranks


def test_gradients_are_clipped_as_those_of_the_whole_model(tmp_path):
    four = Ranks(4, tmp_path)
    try:
        four.run(dtensors_on_ranks.fsdp)
    finally:
        four.close()
