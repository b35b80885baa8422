"""What the kernels of ragged folds share: where segments begin and end, and states of their elements.

Offsets are used only after they are clamped to the dim, so that no load or store leaves its tensor whatever they hold.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import last_along, tree


def plus(a, b):
    """The sum of two counts."""
    return a + b


def longer(a, b):
    """The greater of two lengths."""
    return tl.where(a < b, b, a)


def clamped(offset, size):
    """An offset inside the dim."""
    return tl.minimum(tl.maximum(offset.to(tl.int64), 0), size)


def offset_at(offsets_ptr, place, there, size):
    """Offset number `place`, inside the dim; 0 where it is not `there`."""
    return clamped(tl.load(offsets_ptr + place, mask=there, other=0), size)


def ends_of(offsets_ptr, segment, there, size):
    """Where segments begin and end."""
    return offset_at(offsets_ptr, segment, there, size), offset_at(offsets_ptr, segment + 1, there, size)


def count_below(offsets_ptr, entries, bound, LANES: tl.constexpr):
    """How many of sorted offsets are below a bound: LANES of them are looked at at a time. As wide as `entries`."""
    low = entries * 0
    left = entries
    lane = tl.arange(0, LANES)
    while left > 0:
        step = left // LANES + (left % LANES != 0).to(left.dtype)
        inside = lane * step <= left - step
        place = low + lane * step + (step - 1)
        offset = tl.load(offsets_ptr + place, mask=inside, other=0).to(tl.int64)
        passed = tl.reduce((inside & (offset < bound)).to(tl.int32), 0, plus)
        left = tl.minimum(step - 1, left - passed * step)
        low = low + passed * step
    return low


def chunk_borders(
    offsets_ptr, left, sizes, chunk, start, stop, stores, LOOKED: tl.constexpr, SPLIT: tl.constexpr
):
    """(first, last): offsets [first, last) lie in a chunk, [start, stop), the last chunk's also behind it.

    With SPLIT, the segment that began before the chunk and ends in it is stored by the program that `stores`.
    """
    segments = sizes.segments
    first = count_below(offsets_ptr, segments + 1, start, LOOKED)
    first = tl.where(chunk == 0, 0, first)
    last = first + count_below(offsets_ptr + first, segments + 1 - first, stop, LOOKED)
    if SPLIT:
        if stores:
            offset = offset_at(offsets_ptr, first, first <= segments, sizes.length)
            crossing = (first > 0) & (first <= segments) & (offset > start) & (offset <= stop)
            tl.store(left.closing[0] + chunk, tl.where(crossing, first - 1, -1).to(tl.int64))
    return first, tl.where(chunk == sizes.chunks - 1, segments + 1, last)


def all_lanes(lanes, LANES: tl.constexpr):
    """All lanes' states in order, as one. `lanes` is a tuple: a comprehension's list becomes one by COMBINE."""
    return [last_along(s, LANES) for s in tl.associative_scan(lanes, 0, COMBINE)]


def load_state(ptrs, place, mask):
    """A stored state's fields, undefined beyond the mask."""
    return [tl.load(p + place, mask=mask) for p in ptrs]


def load_runs(rows, places, bound):
    """One tile of each input; elements outside `bound` are undefined and must not be used."""
    return [tl.load(row[0] + places.to(tl.int64) * row[1], mask=bound) for row in rows]


def states_of(xs, position, keep, LENGTH: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr):
    """LENGTH runs of loaded elements as a state each, of those to `keep` if it is not None."""
    lifted = LIFT(*xs, tl.broadcast_to(TO_INDEX(position), xs[0].shape))
    if keep is not None:
        lifted = OR_IDENTITY(tl.broadcast_to(keep, xs[0].shape), *lifted)
    return tree([s for s in lifted], LENGTH, RUN, LEVELS)
