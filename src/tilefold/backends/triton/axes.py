"""Which axis of a tile Triton shares among threads first, beside the contiguous one.

A tile is [RUN, LANES, BLOCK_OUTPUTS, UNROLL], and a lane's own elements, RUN and UNROLL, must stay in one thread: they are
absorbed as a block, and their order is settled when code is generated. Triton gives threads to the contiguous axis and
then to the others from the left; since 3.7 from the right, so there LANES and UNROLL change places.
"""

from __future__ import annotations

import triton

LANES_LAST = tuple(int(n) for n in triton.__version__.split(".")[:2]) >= (3, 7)
# In a tile, and in what is left once runs are folded.
UNROLL = 1 if LANES_LAST else 3
UNROLL_OF_RUNS = UNROLL - 1
# A state, [LANES, BLOCK_OUTPUTS] or [BLOCK_OUTPUTS, LANES], beside a tile.
SPREAD = "[None, None, :, :]" if LANES_LAST else "[None, :, :, None]"
# Lanes, once runs and unrolled runs are folded; and what a whole tile folds to, beside it.
LANES_OF_BLOCKS = 1 if LANES_LAST else 0
SPREAD_WHOLE = "[None, None, :, None]"
LANES = 3 if LANES_LAST else 1
