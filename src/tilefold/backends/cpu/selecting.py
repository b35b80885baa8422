"""The k best elements along a dim on a CPU: torch's selection, with the ties that it leaves open settled; the definition."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FIRST_LOOK = 512  # elements of a row that are looked at first for equal ones (not measured)
_WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64}


def select(x: Tensor, dim: int, k: int, largest: bool) -> list[Tensor]:
    """Values and places, by value and then by lower place."""
    rows = comparable(x).movedim(dim, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    one_more = min(k + 1, flat.shape[1])
    values, places = torch.topk(flat, one_more, -1, largest)
    if one_more > k:
        # Where the next element is another, torch had no choice.
        open_rows = _same(values[:, k - 1], values[:, k]).nonzero()[:, 0]
        values, places = values[:, :k], places[:, :k]
        if len(open_rows):
            some = (t.index_select(0, open_rows) for t in (values, places))
            places = places.index_copy(0, open_rows, _settled(flat, open_rows, *some))
    places = _ordered(flat, places, largest).view(*rows.shape[:-1], k).movedim(-1, dim).contiguous()
    return [_taken(x, dim, places), places]


def _taken(x: Tensor, dim: int, places: Tensor) -> Tensor:
    """Elements at places, by their bits: torch does not gather every dtype."""
    return x.view(_BITS[x.itemsize]).gather(dim, places).view(x.dtype)


def _same(x: Tensor, last: Tensor) -> Tensor:
    if not x.is_floating_point() or not last.isnan().any():
        return x == last
    return (x == last) | (x.isnan() & last.isnan())


def _settled(flat: Tensor, rows: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """Places whose tail, the elements equal to the last one, are the first of these; in any order.

    Many equal elements are near a row's beginning as a rule, so the part that is searched grows until all are found.
    """
    k = places.shape[1]
    last = values[:, -1:]
    missing = _same(values, last).sum(-1)
    left = torch.arange(len(rows), device=places.device)
    number = torch.arange(k, device=places.device)
    length = FIRST_LOOK
    while len(left):
        # index_select copies whole rows; indexing would look up each element
        mine, wanted = places.index_select(0, left), missing.index_select(0, left)
        equal = _same(flat[:, :length].index_select(0, rows[left]), last.index_select(0, left))
        row, place = equal.nonzero(as_tuple=True)
        counts = torch.bincount(row, minlength=len(left))
        enough = (counts >= wanted) | (length >= flat.shape[1])
        # torch sorts: elements better than the last one come first.
        tail = number - (k - wanted)[:, None]
        begin = (torch.cumsum(counts, 0) - counts)[:, None]
        found = (begin + tail).clamp(min=0, max=max(len(place) - 1, 0))
        if len(place):
            settled = torch.where(tail < 0, mine, place.index_select(0, found.view(-1)).view(found.shape))
            places = places.index_copy(0, left, torch.where(enough[:, None], settled, mine))
        left = left[~enough]
        length *= 16
    return places


def _ordered(rows: Tensor, places: Tensor, largest: bool) -> Tensor:
    places = places.sort(-1).values
    values = rows.gather(-1, places)
    return places.gather(-1, values.sort(dim=-1, descending=largest, stable=True).indices)


def comparable(x: Tensor) -> Tensor:
    """The same order in a dtype that torch sorts."""
    if x.dtype == torch.bool:
        return x.view(torch.uint8)
    if x.dtype == torch.uint64:
        return x.view(torch.int64) ^ torch.iinfo(torch.int64).min
    if x.dtype in _WIDER:
        return x.to(_WIDER[x.dtype])
    return x.float() if x.is_floating_point() and x.itemsize == 1 else x


def by_definition(x: Tensor, dim: int, k: int, largest: bool) -> list[Tensor]:
    """Each row sorted as Python sorts, one number beside another."""
    rows = comparable(x).movedim(dim, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    places = torch.empty(flat.shape[0], k, dtype=torch.int64)
    for number, row in enumerate(flat.tolist()):
        order = {place: (value != value, 0 if value != value else value) for place, value in enumerate(row)}
        # Python keeps equal ones in their order, also in reverse.
        chosen = sorted(order, key=lambda place: order[place], reverse=largest)
        places[number] = torch.tensor(chosen[:k])
    places = places.view(*rows.shape[:-1], k).movedim(-1, dim).contiguous()
    return [_taken(x, dim, places), places]
