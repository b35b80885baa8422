"""What one argument stands for: files, directories, patterns, indices of sharded checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tilefold.checkpoints import files as checkpoints
from tilefold.checkpoints.files import find_files
from tilefold.errors import FileError

INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two shards, their index, and what lies beside them."""
    for shard, name in ((1, "a"), (2, "b")):
        save_file({name: torch.ones(3)}, tmp_path / f"model-{shard}.safetensors")
    write_index(tmp_path, a="model-1.safetensors", b="model-2.safetensors")
    torch.save({"m": torch.ones(2)}, tmp_path / "optimizer.bin")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "sub").mkdir()
    return tmp_path


def write_index(directory: Path, **shards: object) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards}))


def test_a_directory_is_what_lies_in_it(model: Path) -> None:
    found = find_files(str(model))
    assert [p.name for p in found.files] == ["model-1.safetensors", "model-2.safetensors", "optimizer.bin"]
    assert found.skipped == ("config.json", "sub/")
    assert found.promised == {model / "model-1.safetensors": ("a",), model / "model-2.safetensors": ("b",)}


def test_what_claims_to_be_a_checkpoint_is_not_skipped(model: Path) -> None:
    (model / "broken.pt").write_bytes(b"?")
    (model / "gone.bin").symlink_to(model / "nowhere")
    os.mkfifo(model / "pipe")
    found = find_files(str(model))
    assert {"broken.pt", "gone.bin"} <= {p.name for p in found.files}
    assert "pipe" in found.skipped


def test_links_are_followed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    snapshot = tmp_path_factory.mktemp("snapshot")
    for name in ("model-1.safetensors", "model-2.safetensors", INDEX):
        (snapshot / name).symlink_to(model / name)
    assert [p.parent for p in find_files(str(snapshot / INDEX)).files] == [snapshot, snapshot]
    assert len(find_files(str(snapshot)).files) == 2


def test_a_pattern_is_what_a_shell_would_give(model: Path) -> None:
    shards = ["model-1.safetensors", "model-2.safetensors"]
    assert [p.name for p in find_files(f"{model}/*.safetensors").files] == shards
    found = find_files(f"{model}/*")
    assert [p.name for p in found.files] == [*shards, "optimizer.bin"]
    assert [p.name for p, _ in found.failed] == ["config.json"]
    assert found.skipped == ("sub/",)
    save_file({"c": torch.ones(1)}, model / "sub" / "c.safetensors")
    assert len(find_files(f"{model}/**/*.safetensors").files) == 3


def test_a_path_that_exists_is_no_pattern(model: Path) -> None:
    (model / "optimizer.bin").rename(model / "a[1].bin")
    assert find_files(str(model / "a[1].bin")).files == (model / "a[1].bin",)


def test_an_index_is_its_shards_there_or_not(model: Path) -> None:
    write_index(model, a="model-1.safetensors", c="model-9.safetensors", d="sub/x.safetensors")
    found = find_files(str(model / INDEX))
    assert [str(p.relative_to(model)) for p in found.files] == [
        "model-1.safetensors",
        "model-9.safetensors",
        "sub/x.safetensors",
    ]


@pytest.mark.parametrize(
    "shard",
    ["../x", "/etc/passwd", "a/../../x", "..\\x", "C:\\x", "C:x", "", "a\0b", 7, None, ["a"]],
    ids=repr,
)
def test_shards_stay_beside_their_index(model: Path, shard: object) -> None:
    write_index(model, a=shard)
    with pytest.raises(FileError, match="shards must lie beside their index, got "):
        find_files(str(model / INDEX))
    found = find_files(str(model))  # the others are still there
    assert len(found.files) == 3
    assert [p.name for p, _ in found.failed] == [INDEX]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{", "the index must be JSON, got .*; download it again"),
        ('{"weight_map":' + "[" * 100_000, "the index must be JSON, got "),
        ("{}", 'must hold a "weight_map", got other JSON'),
        ('{"weight_map": []}', 'must hold a "weight_map", got other JSON'),
        ('{"weight_map": {}}', "^the index must place tensors in shards, got none"),
        ('{"a": ' + "9" * 5000 + "}", "the index must be JSON, got "),
    ],
    ids=["cut", "deep", "no-map", "a-list", "empty", "a-long-number"],
)
def test_bad_indices(model: Path, text: str, rule: str) -> None:
    (model / INDEX).write_text(text)
    with pytest.raises(FileError, match=rule):
        find_files(str(model / INDEX))


def test_an_index_too_large_to_be_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "INDEX_BYTES", 10)
    with pytest.raises(FileError, match="an index must have at most 10 bytes, got more"):
        find_files(str(model / INDEX))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="the pattern must match a file, got none; check the path"):
        find_files(f"{tmp_path}/*.pt")
    with pytest.raises(FileError, match="the directory must hold a checkpoint, got nothing; "):
        find_files(str(tmp_path))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileError, match=r"the directory must hold a checkpoint, got notes.txt; "):
        find_files(str(tmp_path))
    assert find_files("no\0such").files == (Path("no\0such"),)
    assert find_files("x" * 5000).files == (Path("x" * 5000),)


def test_a_directory_that_cannot_be_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(FileError, match="the directory must be readable, got 'Permission denied'"):
        find_files(str(model))


def test_many_skipped_entries_are_counted() -> None:
    assert checkpoints.Found((), tuple("abcdefgh")).skipped_line() == "a, b, c, d, e and 3 more"
