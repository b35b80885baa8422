"""The module that the OpInfo adapter tests: every convenience, under torch's names."""

from tilefold.functional import *  # noqa: F403  # functional's __all__ says what
