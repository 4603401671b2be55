"""What a node says of its table so that all can agree on a schema, where figures are summed and nobody's own are shown:
names of columns and categories, and what each column seems to hold.
"""

from __future__ import annotations

import msgspec

from p2pfl.foreign import UNREADABLE
from p2pfl.learn.table.column import Kind
from p2pfl.learn.table.proposal import MOST_BYTES, MOST_COLUMNS, MOST_VALUE_CHARACTERS, Proposal

FORMAT = 2
"""1 is a proposal with figures."""
FIGURED = ("number", "category")
"""The kinds of columns that have figures."""


class ColumnNames(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One column. `values` has those with at least the least count of rows at this node."""

    kind: Kind
    levels: bool = False
    """True if the column has few distinct values, so that its cells are counted by value."""
    values: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    """The codes that mean a missing value."""


class TableNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one node says. `columns` are keyed by their names in the schema; the target is one of them."""

    node: str
    federation: str
    columns: dict[str, ColumnNames]
    format: int = FORMAT


def names_in(proposal: Proposal) -> TableNames:
    """Return a proposal without its figures."""
    columns = {
        name: ColumnNames(kind=one.kind, levels=bool(one.values or one.rare), values=tuple(one.values), codes=one.codes)
        for name, one in proposal.columns.items()
    }
    return TableNames(node=proposal.node, federation=proposal.federation, columns=columns)


def pack(names: TableNames) -> bytes:
    """Encode names in the form in which they are sent and signed: equal ones give equal bytes."""
    return msgspec.json.encode(names)


def text_of(names: TableNames) -> str:
    """Return names as a text file for people."""
    return msgspec.json.format(pack(names), indent=2).decode() + "\n"


def unpack(raw: bytes) -> TableNames:
    """Decode names. Raises ValueError: they are none, or such that no honest node makes."""
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{len(raw):,} bytes; at most {MOST_BYTES:,}")
    try:
        found = msgspec.json.decode(raw, type=TableNames)
    except UNREADABLE as error:
        raise ValueError(str(error)) from None
    if found.format != FORMAT:
        raise ValueError(f"format {found.format}; this version reads {FORMAT}")
    if len(found.columns) > MOST_COLUMNS:
        raise ValueError(f"{len(found.columns)} columns")
    for name, column in found.columns.items():
        values = column.values
        short = all(len(value) <= MOST_VALUE_CHARACTERS for value in values) and len(set(values)) == len(values)
        fits = short and (column.levels or not values) and (column.kind in FIGURED or not column.levels)
        if not (name and fits):
            raise ValueError(f"column {name[:40]!r} contradicts itself")
    return found
