"""The figures of all nodes' tables as one vector of whole numbers for a secure sum, and proposals made of the sums.

`FigureLayout` follows from what all nodes have named, so it is the same at all. What fewer than `LEAST_HOLDERS` nodes
have is not summed, because its sum would tell of one node, or each of two of the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.figures import LIMBS, limbs_of, value_of
from p2pfl.learn.table import naming
from p2pfl.learn.table.merging import Merged, merge, sorted_values
from p2pfl.learn.table.naming import FIGURED, ColumnNames, TableNames
from p2pfl.learn.table.proposal import ColumnProposal, Proposal
from p2pfl.learn.table.schema import make_schema

LEAST_HOLDERS = 3
COUNTS = 3
"""Known cells, missing ones, and those with rare values."""
WITHIN = (-(2**40), 2**40)
Figures = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One column's place in the vector: counts, for a number its two sums, and for the target the rows of each class,
    which has the values in one of `groups`.
    """

    column: str
    is_number: bool
    groups: tuple[tuple[str, ...], ...]

    @property
    def size(self) -> int:
        return COUNTS + 2 * LIMBS * self.is_number + len(self.groups)

    def figures(self, own: ColumnProposal | None) -> list[int]:
        """Return what a node adds. Raises ValueError: a sum is too large."""
        if own is None or own.kind not in FIGURED:
            return [0] * self.size
        sums = [own.total or 0.0, own.squares or 0.0] if self.is_number else []
        counts = [own.count, own.missing, own.rare]
        limbs = (int(limb) for each in sums for limb in limbs_of(each))
        return [*counts, *limbs, *(sum(own.values.get(value, 0) for value in group) for group in self.groups)]

    def proposal(self, sums: Figures, names: ColumnNames) -> ColumnProposal:
        """Return a proposal with the sums. Raises ValueError: no tables have such sums."""
        counts, rest = [int(count) for count in sums[:COUNTS]], sums[COUNTS:]
        total, squares = None, None
        if self.is_number:
            total, squares = value_of(rest[:LIMBS]), value_of(rest[LIMBS : 2 * LIMBS])
            rest = rest[2 * LIMBS :]
        rows = {group[0]: int(count) for group, count in zip(self.groups, rest, strict=True)}
        if min([*counts, *rows.values(), squares or 0]) < 0:
            raise ValueError(f"column {self.column!r} has sums below 0")
        known, missing, rare = counts
        return ColumnProposal(
            kind=names.kind,
            count=known,
            missing=missing,
            total=total,
            squares=squares,
            values=dict.fromkeys(names.values, 0) | rows,
            rare=rare,
            codes=names.codes,
        )


class FigureLayout:
    """Where each figure is in the vector. `declared` are the schema keys in `[task]`."""

    def __init__(self, told: Iterable[TableNames], declared: Mapping[str, Any]) -> None:
        self._declared = declared
        self._target = str(declared.get("target"))
        self.told = sorted(told, key=lambda one: one.node)
        columns = sorted({name for one in self.told for name in one.columns})
        parts = (self._part(name) for name in columns)
        self._parts = [part for part in parts if part is not None]
        self.size = sum(part.size for part in self._parts)

    @property
    def digest(self) -> str:
        """A text that differs where any node has named anything else."""
        return hashlib.blake2b(b"\0".join(map(naming.pack, self.told)), digest_size=32).hexdigest()

    @property
    def counts_classes(self) -> bool:
        """True if the rows of each class are summed."""
        return any(part.column == self._target and part.groups for part in self._parts)

    def figures(self, own: Proposal) -> Figures:
        """Return a node's vector (size,). Raises UserError: a sum is too large."""
        found: list[int] = []
        for part in self._parts:
            try:
                found += part.figures(own.columns.get(part.column))
            except ValueError as error:
                raise UserError(str(error), key=part.column, allowed="leave it out: leave_out in [data]") from None
        return np.array(found, np.int64)

    def proposals(self, sums: Sequence[int] | Figures) -> list[Proposal]:
        """Return proposals of all nodes which add up to the sums (size,); the first node with a column has all of them.

        Raises ValueError: no tables have such sums.
        """
        total = np.asarray(sums, np.int64)
        if total.shape != (self.size,):
            raise ValueError(f"{total.size} sums; {self.size} were asked for")
        summed, start = dict[str, tuple[_Part, Figures]](), 0
        for part in self._parts:
            summed[part.column] = part, total[start : start + part.size]
            start += part.size
        made = []
        for one in self.told:
            columns = {}
            for name, names in one.columns.items():
                has_sums = name in summed and names.kind in FIGURED
                part_of_it = summed.pop(name) if has_sums else None
                columns[name] = part_of_it[0].proposal(part_of_it[1], names) if part_of_it else _without(names)
            made.append(Proposal(node=one.node, federation=one.federation, rows=0, least_count=0, columns=columns))
        return made

    def merge(self, sums: Sequence[int] | Figures) -> Merged:
        """Merge all nodes' names and the sums into a schema. Raises UserError: they make none; ValueError: as above."""
        return merge(self.proposals(sums), self._declared, counts_classes=self.counts_classes)

    def _part(self, column: str) -> _Part | None:
        told = [one.columns[column] for one in self.told if column in one.columns]
        holders = [one for one in told if one.kind in FIGURED]
        if len(holders) < LEAST_HOLDERS or any(one.kind not in (*FIGURED, "empty") for one in told):
            return None
        groups = self._groups(holders) if column == self._target else []
        if any(sum(not set(group).isdisjoint(one.values) for one in holders) < LEAST_HOLDERS for group in groups):
            groups = []
        is_number = all(one.kind == "number" for one in holders)
        return _Part(column=column, is_number=is_number, groups=tuple(groups))

    def _groups(self, holders: Iterable[ColumnNames]) -> list[tuple[str, ...]]:
        """Return the values of the target by class; without declared classes, each value is one."""
        values = sorted_values({value for one in holders for value in one.values})
        given = {key: self._declared.get(key) for key in ("classes", "positive", "negative", "ignore_case")}
        if not (given["classes"] or given["positive"]):
            return [(value,) for value in values]
        schema = make_schema({"target": self._target, "numeric": ["a column"]} | given)
        groups: list[list[str]] = [[] for _ in schema.classes or ()]
        for value in values:
            place = schema.class_of(value)
            if place is not None:
                groups[place].append(value)
        return [tuple(group) for group in groups if group]


def _without(names: ColumnNames) -> ColumnProposal:
    """Return a column without figures. Some of its values may be rare."""
    is_number = names.kind == "number"
    return ColumnProposal(
        kind=names.kind,
        count=0,
        total=0.0 if is_number else None,
        squares=0.0 if is_number else None,
        values=dict.fromkeys(names.values, 0),
        rare=int(names.levels and not names.values),
        codes=names.codes,
    )
