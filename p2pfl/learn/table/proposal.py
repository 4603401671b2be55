"""The statistics about its table that a node sends to the others, so that all can agree on a schema. It sends nothing
else.

They are counts, sums and sums of squares, and the values of categories that enough rows have. Statistics of fewer rows
than the least count are left out. A proposal is a small JSON file that people can read, shorten and carry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE, read_file
from p2pfl.learn.table.column import Column, Kind
from p2pfl.learn.table.profile import TableProfile

LEAST_COUNT = 5
"""The fewest rows that a statistic must cover to leave the node."""
MOST_COLUMNS = 500
MOST_VALUE_CHARACTERS = 64
MOST_BYTES = 1 << 18
MOST_FILE_BYTES = 4 * MOST_BYTES
"""The largest size of a file, which has spaces to make it readable."""
FORMAT = 1
DIGITS = 12
"""The number of significant digits in sums."""


class ColumnProposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One column of a proposal. `values` has the values with at least the least count of rows; `rare` counts the cells
    with other values.
    """

    kind: Kind
    count: int
    """The number of cells that are not missing."""
    missing: int = 0
    total: float | None = None
    squares: float | None = None
    """The sum of the squares of the numbers; `total` is their sum."""
    values: dict[str, int] = {}
    rare: int = 0
    codes: tuple[str, ...] = ()
    """The codes that mean a missing value."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The statistics from one node. `columns` are keyed by their names in the schema; the target is one of them."""

    node: str
    federation: str
    rows: int
    least_count: int
    columns: dict[str, ColumnProposal]
    format: int = FORMAT


def propose(
    profile: TableProfile,
    *,
    node: str,
    federation: str,
    least_count: int = LEAST_COUNT,
    leave_out: Collection[str] = (),
) -> Proposal:
    """Make the proposal for a table. Raises UserError: it would be too large."""
    columns = {
        name: _column_proposal(column, least_count) for name, column in profile.columns.items() if name not in leave_out
    }
    if len(columns) > MOST_COLUMNS:
        allowed = f"at most {MOST_COLUMNS}: name the others in leave_out, in [data]"
        raise UserError("too many columns to agree on", file=profile.path, value=len(columns), allowed=allowed)
    made = Proposal(node=node, federation=federation, rows=profile.rows, least_count=least_count, columns=columns)
    if len(pack(made)) > MOST_BYTES:
        allowed = f"at most {MOST_BYTES:,} bytes: name columns in leave_out, in [data]"
        raise UserError("the proposal is too large", file=profile.path, value=len(pack(made)), allowed=allowed)
    return made


def _column_proposal(column: Column, least: int) -> ColumnProposal:
    """Return the part of a proposal about one column; for a column that will not be used, only its kind."""
    known = column.known - sum(column.sentinels.values()) - _coded(column)
    kind = column.kind
    if kind not in ("number", "category") or known < least:
        usable = kind in ("number", "category")
        return ColumnProposal(kind="empty" if usable else kind, count=0, missing=0)
    levels = {value[:MOST_VALUE_CHARACTERS]: count for value, count in sorted(column.levels.items())}
    values = {value: count for value, count in levels.items() if count >= least}
    is_number = kind == "number"
    return ColumnProposal(
        kind=kind,
        count=known,
        missing=column.rows - known,
        total=_rounded(column.total) if is_number else None,
        squares=_rounded(column.squares) if is_number else None,
        values=values,
        rare=sum(levels.values()) - sum(values.values()),
        codes=column.codes,
    )


def _coded(column: Column) -> int:
    return sum(column.texts[code] for code in column.codes if code in column.texts)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def pack(proposal: Proposal) -> bytes:
    """Encode a proposal in the form in which it is sent and signed: equal proposals give equal bytes."""
    return msgspec.json.encode(proposal)


def text_of(proposal: Proposal) -> str:
    """Return a proposal as a text file for people."""
    return msgspec.json.format(pack(proposal), indent=2).decode() + "\n"


def unpack(raw: bytes, most_bytes: int = MOST_BYTES) -> Proposal:
    """Decode a proposal. Raises ValueError: it is not a proposal, or is one that no honest node makes."""
    if len(raw) > most_bytes:
        raise ValueError(f"{len(raw):,} bytes; at most {most_bytes:,}")
    try:
        found = msgspec.json.decode(raw, type=Proposal)
    except UNREADABLE as error:
        raise ValueError(str(error)) from None
    if found.format != FORMAT:
        raise ValueError(f"format {found.format}; this version reads {FORMAT}")
    if found.rows < 0 or len(found.columns) > MOST_COLUMNS:
        raise ValueError(f"{found.rows} rows and {len(found.columns)} columns")
    for name, column in found.columns.items():
        _check(name, column, found.rows)
    return found


def _check(name: str, column: ColumnProposal, rows: int) -> None:
    counts = (column.count, column.missing, column.rare, *column.values.values())
    known = sum(column.values.values()) + column.rare
    fits = column.count + column.missing <= rows and known <= column.count and min(counts) >= 0
    if column.kind == "number":
        fits = fits and column.total is not None and column.squares is not None and column.squares >= 0
    if not (fits and name and all(len(value) <= MOST_VALUE_CHARACTERS for value in column.values)):
        raise ValueError(f"column {name[:40]!r} contradicts itself")


def read_proposal(path: Path) -> Proposal:
    """Read a proposal. Raises UserError: the file cannot be read, or is not a proposal."""
    try:
        return unpack(read_file(path, MOST_FILE_BYTES), MOST_FILE_BYTES)
    except ValueError as error:
        allowed = "a file that `p2pfl schema propose` has written"
        raise UserError(f"this is not a proposal: {error}", file=path, allowed=allowed) from None


def rows_of(proposal: Proposal) -> list[Mapping[str, Any]]:
    """List the content of a proposal, one row for each column of the table."""
    return [
        {
            "column": name,
            "kind": one.kind,
            "count": one.count,
            "missing": one.missing,
            "sum": one.total,
            "sum of squares": one.squares,
            "values": ", ".join(f"{value}: {count}" for value, count in one.values.items()) or None,
            "rare": one.rare or None,
            "missing codes": ", ".join(one.codes) or None,
        }
        for name, one in proposal.columns.items()
    ]
