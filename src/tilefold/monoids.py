"""The catalogue of monoids, by the names the field uses (re-exported from `tilefold.algebra.catalogue`)."""

from tilefold.algebra.catalogue import *  # noqa: F403  # re-export; the catalogue's __all__ says what
