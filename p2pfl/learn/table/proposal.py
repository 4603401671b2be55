"""The statistics of its table that one node sends to the others, and nothing else, so that all can agree on a schema.

Counts, sums and sums of squares, and the values of categories that enough rows have. Statistics of fewer rows than the
least count are left out. A proposal is a small JSON file that people can read, shorten and carry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.config.tables import refuse_special
from p2pfl.errors import UserError
from p2pfl.learn.table.column import Column, Kind
from p2pfl.learn.table.profile import TableProfile

LEAST_COUNT = 5
"""The fewest rows of a statistic that leaves the node."""
MOST_COLUMNS = 500
MOST_VALUE_CHARACTERS = 64
MOST_BYTES = 1 << 18
MOST_FILE_BYTES = 4 * MOST_BYTES
"""The size with the spaces that make it readable."""
FORMAT = 1
DIGITS = 12
"""Significant digits of sums."""


class ColumnProposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One column of a proposal. `values` has those with at least the least count of rows; `rare` counts the cells of
    the others.
    """

    kind: Kind
    count: int
    """Cells that are not missing."""
    missing: int = 0
    total: float | None = None
    squares: float | None = None
    """The sum of the squares of the numbers; `total` is their sum."""
    values: dict[str, int] = {}
    rare: int = 0
    codes: tuple[str, ...] = ()
    """The codes that mean a missing value."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The statistics of one node. `columns` are by their names in the schema; the target is one of them."""

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
    """Make the proposal of a table. Raises UserError: it would be too large."""
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
    """The part of a proposal about one column; for a column that will not be used, its kind alone."""
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
    """Encode a proposal as it is sent and signed: the same bytes for the same proposal."""
    return msgspec.json.encode(proposal)


def text_of(proposal: Proposal) -> str:
    """A proposal as a text file for people."""
    return msgspec.json.format(pack(proposal), indent=2).decode() + "\n"


def unpack(raw: bytes, most_bytes: int = MOST_BYTES) -> Proposal:
    """Decode a proposal. Raises ValueError: it is no proposal, or one that no honest node makes."""
    if len(raw) > most_bytes:
        raise ValueError(f"{len(raw):,} bytes; at most {most_bytes:,}")
    try:
        found = msgspec.json.decode(raw, type=Proposal)
    except (msgspec.DecodeError, RecursionError) as error:
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
    """Read a proposal. Raises UserError: the file cannot be read, or is no proposal."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            return unpack(file.read(MOST_FILE_BYTES + 1), MOST_FILE_BYTES)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from None
    except ValueError as error:
        allowed = "a file that `p2pfl schema propose` has written"
        raise UserError(f"this is not a proposal: {error}", file=path, allowed=allowed) from None


def rows_of(proposal: Proposal) -> list[Mapping[str, Any]]:
    """List the content of a proposal, a row for each column of the table."""
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
