"""What parsers show of arguments, and which devices commands take."""

from __future__ import annotations

import argparse

import pytest
import torch

from tilefold.cli.parser import Parser, known_device, names
from tilefold.errors import ArgumentError


def test_arguments_have_their_name_and_options_their_spellings_and_one_value() -> None:
    parser = Parser("try", "Try.", examples={"try x": "tries x"})
    parser.add_argument("file", metavar="FILE", help="what to read")
    parser.add_argument("-o", "--out", metavar="OUT", help="where to write")
    parser.add_argument("--count", type=int, default=3, metavar="N", help="how many")
    parser.add_argument("--all", action="store_true", help="all of them")
    lines = [" ".join(line.split()) for line in parser.format_help().splitlines()]
    for line in (
        "FILE what to read",
        "-o, --out OUT where to write",
        "--count N how many (default: 3)",
        "--all all of them",
    ):
        assert line in lines


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("cpu", "cuda", "cuda:0"):
        assert known_device(name, "try") == name
    assert (known_device("cpu:0", "try"), known_device(None, "try")) == ("cpu", "cuda")
    for name in ("cuda:1", "meta", "xpu", "gpu"):
        said = f"--device must be one of cpu, cuda:0, got '{name}'; try --device cpu"
        with pytest.raises(ArgumentError, match=said):
            known_device(name, "try")


def test_a_list_of_words_has_one_at_least() -> None:
    assert names("sum,,argmax") == ("sum", "argmax")
    with pytest.raises(argparse.ArgumentTypeError, match="must name something, got ','"):
        names(",")
