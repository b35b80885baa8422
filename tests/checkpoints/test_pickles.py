"""Pickles that make much of little are refused by what they call, never by what a text in them is."""

from __future__ import annotations

import io
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints.test_torch_files import archive, packed
from tilefold.checkpoints import pickles
from tilefold.checkpoints.describe import describe_file
from tilefold.checkpoints.pickles import check_pickles
from tilefold.errors import FileError

TEXTS = [
    "hex_codec", "enc.base64_codec.weight", "posix.system", "builtins.eval", "_codecs encode", "bytearray", "\x03hex",
    "cbuiltins\nbytearray\n", "c_codecs\nencode\n", "c__builtin__\nbytearray\n(", "\x06base64", "rot13", "__reduce__", ".",
]  # fmt: skip


@pytest.mark.parametrize("how", ["stored", "deflated", "old"])
def test_texts_are_data(tmp_path: Path, how: str) -> None:
    content: dict[Any, Any] = {text: torch.ones(2) for text in TEXTS}
    content["note"] = [*TEXTS, *(text.encode() for text in TEXTS), bytearray(b"hex_codec"), bytearray()]
    (tmp_path / "a.pt").write_bytes(packed(content, how))
    assert [t.name for t in describe_file(tmp_path / "a.pt").tensors] == TEXTS


def drawn(draw: random.Random, depth: int = 3) -> Any:
    """Plain data with bytes, bytearrays and texts of all kinds in it."""
    kind = draw.randrange(6 if depth else 3)
    if kind < 2:
        data = draw.choice([t.encode() for t in TEXTS] + [draw.randbytes(draw.randrange(9))])
        return data if kind else bytearray(data)
    if kind == 2:
        return draw.choice(TEXTS)
    parts = [drawn(draw, depth - 1) for _ in range(draw.randrange(4))]
    return [parts, tuple(parts), dict(enumerate(parts))][kind - 3]


def test_what_python_pickles_of_plain_data_passes() -> None:
    for seed in range(200):
        content = drawn(random.Random(seed))
        check_pickles(pickle.dumps(content, 2))
        buffer = io.BytesIO()
        torch.save(content, buffer)
        with zipfile.ZipFile(buffer) as zipped:
            check_pickles(zipped.read("archive/data.pkl"))


def encode(text: bytes, codec: bytes) -> bytes:
    """The opcodes of a call of `_codecs.encode`."""
    texts = b"".join(b"X" + len(t).to_bytes(4, "little") + t for t in (text, codec))
    return b"c_codecs\nencode\n" + texts + b"\x86R"


@pytest.mark.parametrize(
    "pickled",
    [
        pytest.param(b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R", id="zeros"),
        pytest.param(b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R", id="zeros-of-python-2"),
        pytest.param(b"cbuiltins\nbytearray\nq\x00J\xff\xff\xff\x7f\x85q\x01h\x00h\x01R", id="by-the-memo"),
        pytest.param(b"cbuiltins\nbytearray\nK\x09\x85\x81", id="as-a-new-object"),
        *(pytest.param(encode(b"a", codec), id=codec.decode()) for codec in (b"hex", b"hex_codec", b"utf-32", b"rot13")),
        pytest.param(b"c_codecs\nencode\nX\x01\0\0\0aU\x03hex\x86R", id="a-short-name"),
        pytest.param(
            b"c_codecs\nencode\nq\0X" + (50).to_bytes(4, "little") + b"a" * 50 + b"X\x06\0\0\0latin1\x86q\1R"
            + b"h\0h\1R" * 50, id="one-text-again-and-again",
        ),
    ],
)  # fmt: skip
def test_calls_that_make_much_of_little(tmp_path: Path, pickled: bytes) -> None:
    with pytest.raises(
        FileError, match="plain containers only, got a bytearray or a codec; save its tensors"
    ):
        check_pickles(b"\x80\x02" + pickled + b".")
    (tmp_path / "a.pt").write_bytes(archive(b"\x80\x02" + pickled + b"."))
    with pytest.raises(FileError, match="plain containers only"):
        describe_file(tmp_path / "a.pt")


def test_what_torch_does_not_read_is_left_to_it() -> None:
    check_pickles(b"\x80\x04\x8c\x09bytearray.")
    assert pickles._KNOWN.isdisjoint({"STACK_GLOBAL", "POP", "DUP", "INST", "OBJ", "EXT1"})
