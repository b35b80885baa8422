"""Who competes: a suite's own variants, then the peers that were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from tilefold.bench.cases import Suite, Variant
from tilefold.bench.peers import Peer, known_peers
from tilefold.errors import ArgumentError


def peers_of(names: Sequence[str]) -> list[Peer]:
    """The peers of those names.

    Raises:
        ArgumentError: a name of no peer.
    """
    known = known_peers()
    for name in names:
        if name not in known:
            raise ArgumentError(f"bench: --against must be of {', '.join(known)}, got {name!r}; leave it out")
    return [known[name] for name in dict.fromkeys(names)]


def variants_of(suite: Suite, against: Sequence[str], only: Sequence[str] | None = None) -> list[Variant]:
    """A suite's variants, or `only` some, and the peers named, each once; a suite's own may be named as a peer.

    Without `only` those are left out that run only where they are asked for.

    Raises:
        ArgumentError: a name of neither the suite nor a peer.
    """
    own = {variant.name: variant for variant in suite.variants}
    for name in only or ():
        if name not in own:
            raise ArgumentError(
                f"bench: --variant must be of {'; '.join(own)}, got {name!r}; leave it out, or name one"
            )
    asked = [v.name for v in own.values() if not v.asked_only] if only is None else only
    kept = [v for v in own.values() if v.name in asked or v.name in against]
    return [*kept, *(peer.variant for peer in peers_of([n for n in against if n not in own]))]
