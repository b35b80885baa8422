"""The module that the OpInfo adapter tests: every convenience, under torch's names, and operations beside them."""

import torch

import tilefold
from tilefold.functional import *  # noqa: F403  # functional's __all__ says what


def topk(x, k, dim=-1, largest=True, sorted=True):
    """tilefold.topk with torch's places wherever these have the same elements: torch leaves open which of equal ones."""
    values, places = tilefold.topk(x, k, dim, largest, sorted)
    if x.ndim == 0:
        return values, places
    torch.testing.assert_close(x.gather(dim, places), values, rtol=0, atol=0, equal_nan=True)
    later, earlier = places.narrow(dim, 1, k - 1), places.narrow(dim, 0, k - 1)
    tied = values.narrow(dim, 1, k - 1) == values.narrow(dim, 0, k - 1)
    assert bool((later > earlier)[tied].all()), "ties go to the lower place"
    theirs = torch.topk(x, k, dim, largest, sorted).indices
    return values, torch.where(x.gather(dim, theirs) == values, theirs, places)
