"""The parser of all commands: one style of help, and one line for an error.

argparse alone, so that `plan`, `xray` and `bench` run where torch and Triton are all there is.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from tilefold.errors import ArgumentError, TilefoldError

T = TypeVar("T")

FAILED = "the command cannot run: one line on stderr says why"
WIDTH = 88  # of text that help wraps itself; argparse wraps the rest to the terminal
EXIT_CODES = {0: "done", 2: FAILED, 130: "interrupted (Ctrl-C)"}


class Format(argparse.RawDescriptionHelpFormatter):
    """Text as it is written; an option's default behind its help, where it has one and the help does not say it."""

    def __init__(self, prog: str) -> None:
        """Room for the longest option beside its help."""
        super().__init__(prog, max_help_position=30)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        silent = default in (None, False, argparse.SUPPRESS) or isinstance(default, list | tuple)
        if not action.help or silent or "default" in action.help or not action.option_strings:
            return action.help
        return f"{action.help} (default: %(default)s)"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """An option's spellings, and its value once behind them."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """A command's parser: its usage, purpose, options, examples and exit codes, in this order."""

    def __init__(
        self,
        command: str,
        about: str,
        *,
        examples: Mapping[str, str],
        exit_codes: Mapping[int, str] = EXIT_CODES,
        notes: str = "",
        **options: Any,
    ) -> None:
        """`examples` maps commands, without `tilefold`, to their descriptions; `notes` stand below all."""
        shown = [line for text, said in examples.items() for line in (f"tilefold {text}", f"    {said}")]
        codes = [
            textwrap.fill(f"{code:<5d}{said}", WIDTH - 2, subsequent_indent=" " * 5)
            for code, said in sorted(exit_codes.items())
        ]
        parts = [_section("examples", shown), _section("exit codes", codes), notes]
        super().__init__(
            f"tilefold {command}".strip(),
            description="\n".join(textwrap.fill(line, WIDTH) for line in about.splitlines()),
            epilog="\n\n".join(filter(None, parts)),
            formatter_class=Format,
            allow_abbrev=False,
            **options,
        )
        self._positionals.title = "arguments"
        # argparse takes -1 for a number, and -1,0 and -1/2 for options.
        self._negative_number_matcher = re.compile(r"-\d+([,/]-?\d+)*$")

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse does, but for an output that cannot be written, which argparse passes over in silence."""
        if message:
            (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """One line: the option, the rule, the value found, the command that lists all options.

        Raises:
            ArgumentError: always.
        """
        said = re.sub(r"^argument ([^:]*): ", _place, message)
        fix = "" if ";" in said else f"; {self.prog} --help has all"
        raise ArgumentError(f"{(self.prog.split() * 2)[1]}: {said}{fix}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's own, in the form that all errors have."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"must be one of {', '.join(action.choices)}, got {value!r}")


def _place(found: re.Match[str]) -> str:
    """ "--dim must be ...", and "--dim: a dim must be ..." where the sentence has its own subject."""
    name, rest = found[1].split("/--")[0], found.string[found.end() :]
    return f"{name} " if rest.startswith(("must ", "expected ")) else f"{name}: "


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *(textwrap.indent(line, "  ") for line in lines)]) if lines else ""


def as_type(read: Callable[[str], T]) -> Callable[[str], T]:
    """A reader of a text, for argparse's `type`: a refused text gets the reader's own sentence."""

    def parsed(text: str) -> T:
        try:
            return read(text)
        except TilefoldError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix("xray: ")) from None

    return parsed


def names(text: str) -> tuple[str, ...]:
    """Words joined by commas, at least one."""
    words = tuple(word for word in text.split(",") if word)
    if not words:
        raise argparse.ArgumentTypeError(f"must name something, got {text!r}")
    return words


def number(least: float, above: bool = False) -> Callable[[str], float]:
    """A finite number from `least` on, or above it."""

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or (above and value == least):
            bound = f" above {least:g}" if above else f" from {least:g} on"
            rule = "" if least == -math.inf else bound
            raise argparse.ArgumentTypeError(f"must be a finite number{rule}, got {text!r}")
        return value

    return parsed


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 on, got {text!r}")
    return int(text)


def whole_above_0(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    """One to three whole numbers joined by commas."""
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isascii() and p.strip().isdigit() for p in parts):
        raise argparse.ArgumentTypeError(f"must be one to three numbers, got {text!r}; like 8 or 8,4")
    return tuple(int(part) for part in parts)


def known_device(name: str | None, call: str) -> str:
    """ "cpu", "cuda", "cuda:1" ...: a device that is there, before anything is read or drawn for it.

    Raises:
        ArgumentError: it is none, or not of this machine.
    """
    import torch

    there = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    try:
        device = torch.device(name or "cuda")
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cpu" or f"{device.type}:{device.index or 0}" in there:
        return "cpu" if device.type == "cpu" else str(device)
    raise ArgumentError(f"{call}: --device must be one of {', '.join(there)}, got {name!r}; try --device cpu")


def needed(module: str, call: str, what: str, fix: str = "") -> None:
    """Refuse where a package is missing that `tilefold[cli]` brings.

    Raises:
        BackendError: it is missing.
    """
    import importlib

    from tilefold.errors import BackendError

    try:
        importlib.import_module(module)
    except ImportError:
        raise BackendError(
            f"{call}: {what} need {module}, got none; pip install 'tilefold[cli]'{fix}"
        ) from None


def one_of(words: Sequence[str]) -> str:
    """Choices as a metavar."""
    return "|".join(words)
