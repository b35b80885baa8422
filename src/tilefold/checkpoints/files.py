"""The files that one argument of a command names: a file, a directory, a pattern, or the index of a sharded checkpoint."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from tilefold.checkpoints.file_kinds import INDEX, claimed_kind, kind_of, reason_of
from tilefold.errors import FileError

INDEX_BYTES = 1 << 27  # of an index, at most: about a million names
LISTED = 5


@dataclass(frozen=True)
class Found:
    """The files of one argument, sorted; entries that are not checkpoints; the tensors that an index names for each file.

    `failed` are indices that name no shards, and why: the files beside them are still taken.
    """

    files: tuple[Path, ...]
    skipped: tuple[str, ...] = ()
    failed: tuple[tuple[Path, FileError], ...] = ()
    promised: Mapping[Path, tuple[str, ...]] = field(default_factory=dict)

    def skipped_line(self) -> str:
        """The entries that were left out, in a few words."""
        more = len(self.skipped) - LISTED
        return ", ".join(self.skipped[:LISTED]) + (f" and {more} more" if more > 0 else "")


def find_files(argument: str) -> Found:
    """The files that an argument names. A path that exists is never taken for a pattern.

    A directory stands for the checkpoints that lie in it, not deeper, and the shards of the indices in it; a pattern
    (`*`, `?`, `[...]`, `**` for any depth) for what it matches, as a shell would have given it; an index for its shards.

    Raises:
        FileError: a pattern matches nothing, a directory holds no checkpoint, or an index is none.
    """
    path = Path(argument)
    if not _exists(path) and glob.has_magic(argument):
        return _of_pattern(argument)
    if _exists(path) and path.is_dir():
        return _of_directory(path)
    return _of_index(path) if _is_index(path) else Found((path,))


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except (OSError, ValueError):
        return False  # a name too long, or with a null character


def _is_index(path: Path) -> bool:
    try:
        return kind_of(path) == INDEX
    except FileError:
        return False  # said where the file is described


def _of_pattern(pattern: str) -> Found:
    matches = sorted(glob.glob(pattern, recursive=True))
    if not matches:
        raise FileError("the pattern must match a file, got none; check the path")
    return _together([_of_match(Path(match)) for match in matches])


def _of_match(path: Path) -> Found:
    if path.is_dir():
        return Found((), (f"{path.name}/",))
    return _of_some_index(path) if _is_index(path) else Found((path,))


def _of_directory(directory: Path) -> Found:
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise FileError(
            f"the directory must be readable, got {error.strerror!r}; check the path and its permissions"
        ) from error
    found = _together([_of_entry(entry) for entry in entries])
    if not found.files and not found.failed:
        got = found.skipped_line() or "nothing"
        raise FileError(f"the directory must hold a checkpoint, got {got}; name the directory that does")
    return found


def _of_entry(entry: Path) -> Found:
    """A file that is not a checkpoint is skipped, unless its name claims to be one or it cannot be read."""
    if entry.is_dir():
        return Found((), (f"{entry.name}/",))
    try:
        kind = kind_of(entry)
    except FileError:
        unreadable = (entry.is_symlink() and not entry.exists()) or (
            entry.is_file() and not os.access(entry, os.R_OK)
        )
        return Found((entry,)) if unreadable or claimed_kind(entry) else Found((), (entry.name,))
    if kind != INDEX:
        return Found((entry,))
    return _of_some_index(entry) if entry.name.lower().endswith(".index.json") else Found((), (entry.name,))


def _of_some_index(path: Path) -> Found:
    """An index among other files, which are taken whatever it holds."""
    try:
        return _of_index(path)
    except FileError as error:
        return Found((), failed=((path, error),))


def _together(parts: list[Found]) -> Found:
    files = dict.fromkeys(path for part in parts for path in part.files)
    promised: dict[Path, tuple[str, ...]] = {}
    for part in parts:
        for path, names in part.promised.items():
            promised[path] = (*promised.get(path, ()), *names)
    skipped = tuple(name for part in parts for name in part.skipped)
    return Found(tuple(files), skipped, tuple(bad for part in parts for bad in part.failed), promised)


def _of_index(path: Path) -> Found:
    """The shards that an index places tensors in, and which tensors."""
    shards: dict[Path, list[str]] = {}
    for name, shard in _weight_map(path).items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise FileError(
                f"shards must lie beside their index, got {str(shard)[:100]!r}; name the files themselves"
            )
        shards.setdefault(path.parent / shard, []).append(name)
    if not shards:
        raise FileError("the index must place tensors in shards, got none; name the files themselves")
    return Found(tuple(sorted(shards)), promised={shard: tuple(names) for shard, names in shards.items()})


def _weight_map(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > INDEX_BYTES:
            raise FileError(
                f"an index must have at most {INDEX_BYTES} bytes, got more; name the files themselves"
            )
        content = json.loads(path.read_bytes())
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(
            "the index must fit into memory, got no more of it; name the files themselves"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"the index must be JSON, got {reason_of(error)}; download it again") from error
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise FileError('the file must hold a "weight_map", got other JSON; name checkpoints')
    return found


def _stays_inside(shard: str) -> bool:
    """Whether a shard's name leads nowhere but down from the index, on any system."""
    posix, windows = PurePosixPath(shard), PureWindowsPath(shard)
    climbs = ".." in posix.parts or ".." in windows.parts
    return bool(shard) and "\0" not in shard and not climbs and not posix.is_absolute() and not windows.anchor
