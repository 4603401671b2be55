"""Guess how an unknown file is written: its encoding, separator and decimal sign."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from p2pfl.errors import UserError
from p2pfl.foreign import refuse_special
from p2pfl.learn.table.layout import Layout

SAMPLE_BYTES = 1 << 18
SAMPLE_LINES = 200
SEPARATORS = (",", ";", "\t", "|")
ENCODINGS = ("utf-8", "cp1252", "latin-1")
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+", re.ASCII)


def guess_layout(path: Path) -> Layout:
    """Guess the layout from the beginning of the file. Raises UserError: it cannot be read."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            raw = file.read(SAMPLE_BYTES)
    except OSError as error:
        raise UserError(f"the table cannot be read: {error.strerror}", file=path) from None
    if b"\0" in raw:
        raise UserError("the table cannot be read: this is not text", file=path, allowed="a table as text (CSV)")
    encoding, text = _decoded(raw, is_whole=len(raw) < SAMPLE_BYTES)
    lines = text.splitlines()[:SAMPLE_LINES]
    separator = max(SEPARATORS, key=lambda sign: _columns(lines, sign))
    return Layout(encoding=encoding, separator=separator, decimal=_decimal(lines, separator))


def _decoded(raw: bytes, *, is_whole: bool) -> tuple[str, str]:
    """Decode the sample, whose last character may be truncated."""
    for encoding in ENCODINGS[:-1]:
        for end in (len(raw), *(() if is_whole else range(len(raw) - 1, len(raw) - 4, -1))):
            try:
                return encoding, raw[:end].decode(encoding)
            except UnicodeDecodeError:
                continue
    return ENCODINGS[-1], raw.decode(ENCODINGS[-1])


def _columns(lines: list[str], separator: str) -> int:
    """Return the number of columns in the header with this separator, or 0 if the other lines differ."""
    try:
        widths = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
    except csv.Error:
        return 0
    if not widths or widths[0] == 1:
        return 0
    fitting = sum(width == widths[0] for width in widths)
    return widths[0] if 2 * fitting > len(widths) else 0


def _decimal(lines: list[str], separator: str) -> str:
    if separator == ",":
        return "."
    cells = [cell.strip() for row in csv.reader(lines[1:], delimiter=separator) for cell in row]
    return "," if any(COMMA_NUMBER.fullmatch(cell) for cell in cells) else "."
