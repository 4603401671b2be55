"""The statistics about its table of which nodes make a schema, and nothing else.

They are counts, sums and sums of squares, and the values of categories that enough rows have. Statistics of fewer rows
than the least count are left out. Of nodes that agree on a schema, figures leave a node only in a sum over all; the
names alone are sent (`TableNames`): of columns and categories, and what each column seems to hold. Two nodes whose
owners allow it send each other the statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.table.column import Column, Kind, TableProfile, look_at
from p2pfl.learn.table.rows import make_layout
from p2pfl.learn.table.schema import declared_by
from p2pfl.limits import MOST_PROPOSAL_BYTES

log = logging.getLogger("p2pfl")
T = TypeVar("T")

LEAST_COUNT = 5
"""The fewest rows that a statistic must cover to leave the node."""
MOST_COLUMNS = 500
MOST_VALUE_CHARACTERS = 64
Count = Annotated[int, Meta(ge=0, lt=2**53)]


class ColumnProposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One column of a proposal. `values` has the values with at least the least count of rows; `rare` counts the cells
    with other values.
    """

    kind: Kind
    count: Count
    """The number of cells that are not missing."""
    missing: Count = 0
    total: float | None = None
    squares: Annotated[float, Meta(ge=0)] | None = None
    """The sum of the squares of the numbers; `total` is their sum."""
    values: dict[str, Count] = {}
    rare: Count = 0
    codes: tuple[str, ...] = ()
    """The codes that mean a missing value."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The statistics from one node. `columns` are keyed by their names in the schema; the target is one of them."""

    node: str
    federation: str
    columns: dict[str, ColumnProposal]


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
    made = Proposal(node=node, federation=federation, columns=columns)
    if len(pack(made)) > MOST_PROPOSAL_BYTES:
        allowed = f"at most {MOST_PROPOSAL_BYTES:,} bytes: name columns in leave_out, in [data]"
        raise UserError("the proposal is too large", file=profile.path, value=len(pack(made)), allowed=allowed)
    return made


def _column_proposal(column: Column, least: int) -> ColumnProposal:
    """Return the part of a proposal about one column; for a column that will not be used, only its kind."""
    coded = sum(column.texts[code] for code in column.codes if code in column.texts)
    known = column.known - sum(column.sentinels.values()) - coded
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
        total=column.total if is_number else None,
        squares=column.squares if is_number else None,
        values=values,
        rare=sum(levels.values()) - sum(values.values()),
        codes=column.codes,
    )


def pack(statement: msgspec.Struct) -> bytes:
    """Encode a proposal or its names in the form in which it is sent and signed: equal ones give equal bytes."""
    return msgspec.json.encode(statement)


def text_of(statement: msgspec.Struct) -> str:
    """Return a proposal or its names as a text file for people."""
    return msgspec.json.format(pack(statement), indent=2).decode() + "\n"


def rows_of(proposal: Proposal) -> list[dict[str, Any]]:
    """List the content of a proposal, one row for each column of the table."""
    return [
        {
            "node": proposal.node,
            "column": name,
            "kind": column.kind,
            "count": column.count,
            "missing": column.missing,
            "sum": column.total,
            "sum of squares": column.squares,
            "values": ", ".join(f"{value}: {count}" for value, count in column.values.items()) or None,
            "rare": column.rare or None,
            "missing codes": ", ".join(column.codes) or None,
        }
        for name, column in proposal.columns.items()
    ]


def own_proposal(federation: FederationConfig, node: NodeConfig) -> Proposal:
    """Make the proposal for a node's table. Raises UserError: it cannot be read, or `[task]` is wrong."""
    options = federation.task.options
    declared = declared_by(federation.task)
    target = declared.get("target")
    if not isinstance(target, str):
        raise UserError("the task needs this option", file=federation.path, key="task.target", allowed="a column")
    chosen = [*declared.get("numeric", ()), *declared.get("categories", {})]
    profile = look_at(
        _path(federation, node),
        make_layout(options, node.data),
        fold=bool(declared.get("ignore_case", False)),
        only=[*chosen, target] if chosen else None,
        target=target,
    )
    if profile.dropped.count:
        log.warning("%s: %s", profile.path, profile.dropped.as_sentence(profile.rows))
    if target not in profile.columns:
        allowed = ", ".join(profile.columns)
        raise UserError(
            "the table lacks this column", file=profile.path, key="task.target", value=target, allowed=allowed
        )
    left_out = [str(name) for name in (*options.get("leave_out", ()), *node.data.get("leave_out", ()))]
    return propose(profile, node=node.name, federation=federation.name, leave_out=left_out)


def _path(federation: FederationConfig, node: NodeConfig) -> Path:
    given = node.data.get("path")
    if isinstance(given, str):
        return (node.path.parent / Path(given).expanduser()).absolute()
    common = federation.task.options.get("path")
    if isinstance(common, str):
        return federation.path.parent / common
    raise UserError("this node has no table", file=node.path, key="data.path", allowed='path = "..." in [data]')


# -- names without figures ---------------------------------------------------------------------------------------------

NAMES_FORMAT = 2
"""1 was a proposal with figures."""
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
    """The statement of one node. `columns` are keyed by their names in the schema; the target is one of them."""

    node: str
    federation: str
    columns: dict[str, ColumnNames]
    format: int = NAMES_FORMAT


def names_in(proposal: Proposal) -> TableNames:
    """Return a proposal without its figures."""
    columns = {
        name: ColumnNames(kind=col.kind, levels=bool(col.values or col.rare), values=tuple(col.values), codes=col.codes)
        for name, col in proposal.columns.items()
    }
    return TableNames(node=proposal.node, federation=proposal.federation, columns=columns)


def unpack_names(raw: bytes) -> TableNames:
    """Decode names. Raises ValueError: they are none, or such that no honest node makes."""
    names = _decode(raw, TableNames)
    if names.format != NAMES_FORMAT:
        raise ValueError(f"format {names.format}; this version reads {NAMES_FORMAT}")
    _check(names)
    return names


def unpack(raw: bytes) -> Proposal:
    """Decode a proposal. Raises ValueError: it is none, or such that no honest node makes."""
    proposal = _decode(raw, Proposal)
    _check(names_in(proposal))
    return proposal


def _decode(raw: bytes, kind: type[T]) -> T:
    if len(raw) > MOST_PROPOSAL_BYTES:
        raise ValueError(f"{len(raw):,} bytes; at most {MOST_PROPOSAL_BYTES:,}")
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        raise ValueError(str(error)) from None


def _check(names: TableNames) -> None:
    if len(names.columns) > MOST_COLUMNS:
        raise ValueError(f"{len(names.columns)} columns")
    for name, column in names.columns.items():
        values = column.values
        short = all(len(value) <= MOST_VALUE_CHARACTERS for value in values) and len(set(values)) == len(values)
        fits = short and (column.levels or not values) and (column.kind in FIGURED or not column.levels)
        if not (name and fits):
            raise ValueError(f"column {name[:40]!r} contradicts itself")
