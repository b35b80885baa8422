"""Reports as tables for a terminal: as many columns as its width holds, the name and the NaN counts always."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilefold.checkpoints.describe import FileReport, TensorReport, totals
from tilefold.cli.output import printable as printable

HEADS = ("tensor", "dtype", "shape", "count", "nan", "inf", "zero", "min", "max", "absmax", "mean", "std")
# Columns that go first where there is little room: the shape tells the count, min and max tell absmax.
DROPPED_FIRST = ("count", "absmax", "zero", "mean", "dtype", "std", "shape")
NAME_WIDTH = 24  # enough for most names once their parts are shortened
LISTED = 10
SHORT_DTYPES = {"bfloat16": "bf16", "bool": "bool"}


def render_report(report: FileReport, width: int | None, limit: float | None = None) -> RenderableType:
    """A file's report: its path, a row a tensor, totals, and by name the tensors with NaN or inf, or beyond a limit.

    `width` is the terminal's; None (a pipe, a file) keeps all columns, whole names and one line a tensor.
    """
    heads, rows = fit(report.tensors, width, len(report.refused))
    parts: list[RenderableType] = [Text(printable(report.path), style="bold", overflow="fold")]
    parts += [render_table(heads, rows, report.tensors), *render_verdict(report, limit)]
    dropped = [head for head in HEADS if head not in heads]
    if dropped:
        parts.append(Text(f"Not shown at this width (--json has all): {', '.join(dropped)}.", style="dim"))
    return Group(*parts)


def fit(
    tensors: Sequence[TensorReport], width: int | None, refused: int = 0
) -> tuple[list[str], list[list[str]]]:
    """The columns that fit and the rows' texts, the totals last. Digits go before columns, columns before the name."""
    heads = list(HEADS)
    rows = _all_cells(tensors, True, refused)
    if width is not None and _room(heads, rows, width) < _longest(rows):
        rows = _all_cells(tensors, False, refused)
        wanted = min(_longest(rows), NAME_WIDTH)
        for head in DROPPED_FIRST:
            if _room(heads, rows, width) >= wanted:
                break
            heads.remove(head)
        _shorten_names(rows, max(_room(heads, rows, width), 8))
    return heads, [[row[head] for head in heads] for row in rows]


def _all_cells(tensors: Sequence[TensorReport], exact: bool, refused: int) -> list[dict[str, str]]:
    """Every row's texts; where a tensor is marked, the others' names are indented alike."""
    rows = [cells(t, exact) for t in tensors]
    if not all(t.finite for t in tensors):
        for row, t in zip(rows, tensors, strict=True):
            row["tensor"] = ("  " if t.finite else "! ") + row["tensor"]
    return [*rows, total_cells(tensors, exact, refused)]


def _shorten_names(rows: Sequence[dict[str, str]], room: int) -> None:
    for row in rows[:-1]:
        mark = row["tensor"][:2] if row["tensor"].startswith(("! ", "  ")) else ""
        row["tensor"] = mark + shorten(row["tensor"][len(mark) :], room - len(mark))


def _longest(rows: Sequence[dict[str, str]]) -> int:
    return max(cell_len(row["tensor"]) for row in rows)


def _room(heads: Sequence[str], rows: Sequence[dict[str, str]], width: int) -> int:
    """The width that the other columns and the gaps leave for the name."""
    others = [max(len(head), *(len(row[head]) for row in rows)) for head in heads if head != "tensor"]
    return width - sum(others) - len(others)


def cells(tensor: TensorReport, exact: bool) -> dict[str, str]:
    """One tensor's texts by column. A mark does not depend on colour: "!" stands before a count of NaN or inf."""
    counts = dict(zip(("count", "nan", "inf", "zero"), _counts(tensor), strict=True))
    return {
        "tensor": printable(tensor.name),
        "dtype": short_dtype(tensor.dtype),
        "shape": "x".join(map(str, tensor.shape)) or "scalar",
        **{head: count_text(n, exact, marked=head in ("nan", "inf")) for head, n in counts.items()},
        **{
            head: number_text(getattr(tensor, head), 4 if exact else 3)
            for head in ("min", "max", "absmax", "mean", "std")
        },
    }


def _counts(tensor: TensorReport) -> tuple[int, int, int, int]:
    return tensor.count, tensor.nans, tensor.infs, tensor.zeros


def total_cells(tensors: Sequence[TensorReport], exact: bool, refused: int = 0) -> dict[str, str]:
    """The last row, which also counts the tensors without statistics."""
    sums = totals(tensors)
    texts = dict.fromkeys(HEADS, "")
    for head, key in (("count", "count"), ("nan", "nans"), ("inf", "infs"), ("zero", "zeros")):
        texts[head] = count_text(sums[key], exact, marked=head in ("nan", "inf"))
    texts["tensor"] = plural(len(tensors), "tensor") + (f", {refused} refused" if refused else "")
    texts["shape"] = bytes_text(sums["bytes"])
    return texts


def render_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], tensors: Sequence[TensorReport]
) -> Table:
    """The rows as a rich table, the totals at its foot. The cells already fit."""
    table = Table(
        box=SIMPLE, padding=0, pad_edge=False, show_edge=False, show_footer=True,
        header_style="bold", footer_style="bold",
    )  # fmt: skip
    for head, total in zip(heads, rows[-1], strict=True):
        left = head in ("tensor", "dtype", "shape")
        table.add_column(head, Text(total), justify="left" if left else "right", no_wrap=True)
    for row, tensor in zip(rows[:-1], tensors, strict=True):
        table.add_row(*(_styled(text, head, tensor) for text, head in zip(row, heads, strict=True)))
    return table


def _styled(text: str, head: str, tensor: TensorReport) -> Text:
    if not tensor.finite and head in ("tensor", "nan", "inf"):
        return Text(text, style="bold red" if head == "tensor" or text.startswith("!") else "")
    return Text(text, style="dim" if text in ("0", "-") else "")


def render_verdict(report: FileReport, limit: float | None = None) -> Iterator[Text]:
    """In words: whether every element is finite and was read; other tensors by their whole names."""
    tensors, refused = plural(len(report.tensors), "tensor"), len(report.refused)
    bad = [t for t in report.tensors if not t.finite]
    if report.tensors and not bad:
        yield Text(f"No NaN, no inf{f' in {tensors}' if refused else ''}.", style="" if refused else "green")
    above = [] if limit is None else report.above(limit)
    yield from _list(f"NaN or inf in {len(bad)} of {tensors}", [f"{t.name}: {_not_finite(t)}" for t in bad])
    yield from _list(
        f"absmax above {limit:g} in {len(above)} of {tensors}" if above else "",
        [f"{t.name}: {number_text(t.absmax, 9)}" for t in above],
    )
    yield from _list(f"{refused} refused, without statistics", [r.name for r in report.refused])


def _list(head: str, found: Sequence[str]) -> Iterator[Text]:
    """The first findings, and how many more."""
    if found:
        yield Text(f"! {head}:", style="bold red")
    yield from (Text(f"  {printable(text)}") for text in found[:LISTED])
    if len(found) > LISTED:
        yield Text(f"  and {len(found) - LISTED} more")


def _not_finite(t: TensorReport) -> str:
    found = [f"{n} {word}" for n, word in ((t.nans, "NaN"), (t.infs, "inf")) if n]
    return f"{' and '.join(found)} of {plural(t.count, 'element')}"


def shorten(name: str, width: int) -> str:
    """A name of at most `width` characters: its longest parts lose letters, numbers none; then its middle goes.

    >>> shorten("encoder.layer.11.attention.output.LayerNorm.bias", 28)
    'enc.lay.11.att.out.Laye.bias'
    """
    parts = name.split(".")
    for least in (3, 1):
        while cell_len(".".join(parts)) > width:
            longest = max(range(len(parts)), key=lambda i: (len(parts[i]) * (not parts[i].isdigit()), -i))
            if len(parts[longest]) <= least or parts[longest].isdigit():
                break
            parts[longest] = parts[longest][:-1]
    text = ".".join(parts)
    if cell_len(text) <= width:
        return text
    head = (width - 1) // 2
    tail = set_cell_size(text[::-1], width - 1 - head)[::-1]
    return set_cell_size(text, head) + "…" + tail


def short_dtype(name: str) -> str:
    """A dtype's name in as few letters as people use: f32, bf16, i64, u8, f8e4m3fn."""
    for word, letter in (("float8_", "f8"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if name.startswith(word):
            return letter + name.removeprefix(word)
    return SHORT_DTYPES.get(name, name)


def number_text(value: float | None, digits: int) -> str:
    """A number in `digits` significant digits, its exponent without padding; "-" for none."""
    if value is None:
        return "-"
    if isinstance(value, int) and abs(value) < 10 ** (digits + 2):
        return str(value)
    text = f"{value:.{digits}g}"
    if value and abs(value) < 1e-3 and "e" not in text:
        text = f"{value:.{digits - 1}e}"
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"


def count_text(count: int, exact: bool, marked: bool = False) -> str:
    """A count, or its first three digits and a letter; marked with "!" where it should be zero."""
    text = str(count)
    if not exact and count >= 10_000:
        power = min((len(text) - 1) // 3, 5)
        scaled = count / 1000**power
        text = f"{scaled:.{max(0, 2 - int(math.log10(scaled)))}f}" + "kMGTP"[power - 1]
    return f"!{text}" if marked and count else text


def bytes_text(count: int) -> str:
    """A size in the unit that reads best."""
    power = min(max(0, (len(str(count)) - 1) // 3), 4)
    return f"{count} B" if power == 0 else f"{count / 1000**power:.1f} {'kMGT'[power - 1]}B"


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"
