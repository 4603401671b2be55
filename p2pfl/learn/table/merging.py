"""One schema from the proposals of all nodes, the same on every node whatever order they came in, and its file.

Sums are exactly rounded, so their order does not matter. Columns and values are sorted, or keep the order of the first
node's table. Declarations in `[task]` are taken as given.

`FigureLayout` makes one vector of whole numbers of a node's figures, for a secure sum, and proposals of the sums. It
follows from what all nodes have named, so it is the same at all. What fewer than `LEAST_HOLDERS` nodes have is not
summed, because its sum would tell of one node, or each of two of the other.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.writing import toml_value
from p2pfl.errors import UserError
from p2pfl.learn.figures import EXACT_DIGITS, exact_digits, exact_value
from p2pfl.learn.table.column import MOST_CATEGORIES, MOST_LEVELS
from p2pfl.learn.table.proposal import FIGURED, ColumnNames, ColumnProposal, Proposal, TableNames, pack
from p2pfl.learn.table.rows import NUMBER, all_numbers, make_layout
from p2pfl.learn.table.schema import KEYS, Schema, make_schema

DIGITS = 6
"""The number of significant digits in means and standard deviations."""
LEAST_LEVELS = 3
"""Integers with fewer distinct values, such as 0 and 1, remain numbers, which takes one input less."""
WITHHELD = "too few nodes have it to sum without showing single ones"
UNUSED = {
    "text": "free text",
    "date": "dates, which a model cannot use: write the days since an event, or an age",
    "identifier": "names the rows",
    "empty": "empty",
}


@dataclass(slots=True)
class Merged:
    """The merged schema. `contents` are the contents of a schema file.

    `notes` say for each column how it was used, or why not.
    """

    contents: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def schema(self) -> Schema:
        return make_schema({key: value for key, value in self.contents.items() if key in KEYS}, prefix="")


def merge(
    proposals: Iterable[Proposal],
    declared: Mapping[str, Any],
    *,
    counts_classes: bool = True,
) -> Merged:
    """Merge the proposals. `declared` are the schema keys in `[task]`, which include at least the target. A column that
    nodes name, but with no cell in it, is one whose figures they do not show; without `counts_classes`, neither do they
    show the rows of each class.

    Raises UserError: no column is left, or there is no target.
    """
    ordered = sorted(proposals, key=lambda proposal: proposal.node)
    target = declared.get("target")
    given = {key: declared[key] for key in (*KEYS, "missing") if declared.get(key) is not None}
    merged = Merged(given)
    if not target:
        raise UserError("the task needs this option", key="task.target", allowed="the name of a column")
    _add_target(merged, str(target), _column(ordered, str(target)), counts_classes=counts_classes)
    chosen = {*declared.get("numeric", ()), *declared.get("categories", {})}
    for name in dict.fromkeys(column for proposal in ordered for column in proposal.columns):
        if name != target and (not chosen or name in chosen):
            _add_column(merged, name, _column(ordered, name), len(ordered), declared)
    if not merged.contents.get("numeric") and not merged.contents.get("categories"):
        left = "; ".join(f"{name}: {note}" for name, note in merged.notes.items())
        raise UserError("no column is left to learn from", allowed=left or None)
    _add_codes(merged, ordered)
    for name in (str(target), *merged.contents.get("categories", {})):
        _remark_case(merged, name, _column(ordered, name).values)
    merged.contents = {key: merged.contents[key] for key in (*KEYS, "missing") if key in merged.contents}
    return merged


@dataclass(frozen=True, slots=True)
class _Column:
    """The proposals of all nodes for one column, by node."""

    by_node: Mapping[str, ColumnProposal]

    @property
    def used(self) -> dict[str, ColumnProposal]:
        """Return the proposals from nodes that have any cell in the column."""
        return {node: proposal for node, proposal in self.by_node.items() if proposal.kind != "empty"}

    @property
    def kinds(self) -> set[str]:
        return {proposal.kind for proposal in self.used.values()}

    @property
    def count(self) -> int:
        return sum(proposal.count for proposal in self.by_node.values())

    @property
    def missing(self) -> int:
        return sum(proposal.missing for proposal in self.by_node.values())

    @property
    def values(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for proposal in self.by_node.values():
            counts.update(proposal.values)
        return counts

    @property
    def is_withheld(self) -> bool:
        """Return True if nodes have cells in the column and do not show how many."""
        return bool(self.used) and not self.count

    @property
    def are_levels(self) -> bool:
        """Return True if every node counts its cells by value."""
        return all(proposal.values or proposal.rare for proposal in self.used.values())

    @property
    def mean_and_std(self) -> tuple[float, float]:
        numbers = [proposal for proposal in self.used.values() if proposal.kind == "number"]
        count = sum(proposal.count for proposal in numbers)
        if not count:
            return 0.0, 0.0
        mean = math.fsum(proposal.total or 0.0 for proposal in numbers) / count
        square = math.fsum(proposal.squares or 0.0 for proposal in numbers) / count
        variance = square - mean * mean
        spread = math.sqrt(variance) if variance > abs(square) * 1e-12 else 0.0
        return float(f"{mean:.{DIGITS}g}"), float(f"{spread:.{DIGITS}g}")


def _column(proposals: Sequence[Proposal], name: str) -> _Column:
    return _Column({proposal.node: proposal.columns[name] for proposal in proposals if name in proposal.columns})


def _add_target(merged: Merged, target: str, column: _Column, *, counts_classes: bool) -> None:
    contents = merged.contents
    if not column.used:
        raise UserError("no table has this column", key="task.target", value=target)
    if "positive" not in contents and "classes" not in contents:
        levels = sorted_values(column.values)
        few = column.are_levels and 2 <= len(levels) <= (MOST_LEVELS if all_numbers(levels) else MOST_CATEGORIES)
        if few:
            contents["classes"] = levels
        elif column.kinds == {"number"} and column.mean_and_std[1] > 0:
            _scale(merged, target, column)
            merged.notes[target] = "a number: this is a regression"
            return
        else:
            said = ", ".join(levels[:3]) if levels else " and ".join(sorted(column.kinds))
            allowed = "classes with two values or more, or numbers"
            raise UserError(
                "this column cannot be the target", key="task.target", value=f"{target}: {said}", allowed=allowed
            )
    keys = ("classes", "positive", "negative", "ignore_case")
    schema = make_schema({"target": target, "numeric": ["a column"]} | {key: contents.get(key) for key in keys})
    counts = dict.fromkeys(schema.classes or (), 0)
    for value, count in column.values.items():
        place = schema.class_of(value)
        if place is not None and schema.classes:
            counts[schema.classes[place]] += count
    if not counts_classes:
        merged.notes[target] = f"classes: {', '.join(counts)}"
        if "class_counts" not in contents:
            merged.warnings.append(f'{target}: no class_counts, for class_weights = "balanced", because {WITHHELD}')
        return
    contents.setdefault("class_counts", counts)
    merged.notes[target] = ", ".join(f"{name}: {count} rows" for name, count in counts.items())


def _add_column(merged: Merged, name: str, column: _Column, nodes: int, declared: Mapping[str, Any]) -> None:
    unused = column.kinds & {"text", "date", "identifier"}
    if name in declared.get("categories", {}):
        merged.notes[name] = "as declared"
    elif name in declared.get("numeric", ()):
        _add_declared_number(merged, name, column)
    elif unused or not column.used:
        merged.notes[name] = f"left out: {UNUSED[min(unused or {'empty'})]}"
        if len(column.kinds) > 1:
            merged.warnings.append(f"{name}: left out, because {_who_says(column)}")
    elif _is_category(column):
        _add_category(merged, name, column)
    elif column.kinds == {"number"} and column.is_withheld and not _is_scaled(name, declared):
        merged.notes[name] = f"left out: {WITHHELD}"
        merged.warnings.append(f"{name}: left out, as {WITHHELD}: write its mean and std to means and stds of [task]")
    elif column.kinds == {"number"}:
        _add_number(merged, name, column)
    else:
        merged.notes[name] = "left out: not the same on all nodes"
        merged.warnings.append(f"{name}: left out, because {_who_says(column)}: declare it in [task], or rename it")
    lacking = nodes - len(column.by_node)
    if lacking and name in (*merged.contents.get("numeric", ()), *merged.contents.get("categories", ())):
        merged.notes[name] = f"{merged.notes.get(name, '')}; {lacking} of {nodes} nodes lack it"


def _is_category(column: _Column) -> bool:
    values = column.values
    if not column.are_levels or len(values) < 2:
        return False
    if column.kinds == {"number"}:
        return LEAST_LEVELS <= len(values) <= MOST_LEVELS
    return len(values) <= MOST_CATEGORIES


def _add_category(merged: Merged, name: str, column: _Column) -> None:
    values = sorted_values(column.values)
    merged.contents.setdefault("categories", {})[name] = values
    merged.notes[name] = f"{len(values)} values in {_cells(column)}"
    if column.is_withheld or any(proposal.rare for proposal in column.used.values()):
        merged.contents.setdefault("unseen", "missing")
        merged.notes[name] += "; values of few rows count as missing"


def _is_scaled(name: str, declared: Mapping[str, Any]) -> bool:
    return all(name in declared.get(key, {}) for key in ("means", "stds"))


def _add_number(merged: Merged, name: str, column: _Column) -> None:
    mean, std = column.mean_and_std
    if not std and not column.is_withheld:
        merged.notes[name] = f"left out: constant, always {mean:g}"
        merged.warnings.append(f"{name}: left out: it is the same in every row")
        return
    merged.contents.setdefault("numeric", []).append(name)
    _scale(merged, name, column)
    merged.notes[name] = _cells(column, "numbers")


def _add_declared_number(merged: Merged, name: str, column: _Column) -> None:
    if column.kinds == {"number"} and column.is_withheld:
        merged.notes[name] = "as declared"
        if not _is_scaled(name, merged.contents):
            merged.warnings.append(f"{name}: no mean and std, because {WITHHELD}: write means and stds to [task]")
    elif column.kinds == {"number"}:
        _scale(merged, name, column)
        merged.notes[name] = _cells(column, "numbers")
    else:
        merged.warnings.append(f"{name}: declared a number, and {_who_says(column)}")


def _scale(merged: Merged, name: str, column: _Column) -> None:
    mean, std = column.mean_and_std
    for key, value in (("means", mean), ("stds", std or 1.0)):
        table = merged.contents.setdefault(key, {})
        table.setdefault(name, value)


def _cells(column: _Column, what: str = "cells") -> str:
    if column.is_withheld:
        return f"{what} that are not counted"
    return f"{column.count} {what}, {column.missing} missing"


def _remark_case(merged: Merged, name: str, values: Iterable[str]) -> None:
    """Remark values of a column that differ in upper and lower case alone."""
    alike: dict[str, list[str]] = {}
    for value in sorted(values):
        alike.setdefault(value.casefold(), []).append(value)
    if pairs := [" and ".join(each) for each in alike.values() if len(each) > 1]:
        text = f"{name}: {', '.join(pairs)} count as different values: if they are the same, write ignore_case = true"
        merged.warnings.append(text)


def _add_codes(merged: Merged, proposals: Sequence[Proposal]) -> None:
    """Add the codes for missing values that any node reports to those in `[task]`."""
    used = (*merged.contents.get("numeric", ()), *merged.contents.get("categories", ()), merged.contents["target"])
    reported: dict[str, list[str]] = {}
    for name in used:
        codes = sorted({code for offer in proposals if name in offer.columns for code in offer.columns[name].codes})
        if codes:
            reported[name] = codes
            merged.notes[name] = f"{merged.notes.get(name, '')}; {', '.join(codes)} taken as missing".lstrip("; ")
    if reported:
        layout = make_layout({"missing": merged.contents.get("missing", {})}, {})
        given = {column: sorted(codes) for column, codes in layout.missing.items()}
        for name, codes in reported.items():
            given[name] = sorted({*given.get(name, ()), *codes})
        merged.contents["missing"] = given


def sorted_values(values: Iterable[str]) -> list[str]:
    """Sort the numbers by size, followed by the strings."""
    return sorted(values, key=lambda text: (0, float(text), text) if NUMBER.fullmatch(text) else (1, 0.0, text))


def _who_says(column: _Column) -> str:
    said = [f"{node} has {_in_words(proposal)}" for node, proposal in column.used.items()]
    return ", ".join(said) or "no node has it"


def _in_words(column: ColumnProposal) -> str:
    values = ", ".join(list(column.values)[:3])
    return f"{column.kind} ({values})" if values and column.kind == "category" else f"{column.kind}s"


# -- the file, with comments that say how each column is used ----------------------------------------------------------

HEAD = """\
# How the tables are read: the same file at every node, because neighbors compare its digest.
# docs/how-to/tables.md explains the keys. A line that starts with '#' and a key shows the default.
"""


def schema_text(merged: Merged, *, origin: str) -> str:
    """Return the text of the file. `origin` names its source."""
    contents, notes = merged.contents, merged.notes
    lines = [HEAD + f"# {origin}", ""]
    lines += _target(contents, notes.get(contents["target"], ""))
    if contents.get("numeric"):
        lines += ["", "# Columns that are numbers.", "numeric = ["]
        lines += [_noted(f"  {toml_value(name)},", notes.get(name)) for name in contents["numeric"]]
        lines += ["]"]
    for key in ("indicators", "ignore_case", "unseen", "missing_target"):
        lines += [f"{key} = {toml_value(contents[key])}"] if key in contents else []
    lines += [line for key, line in USUAL.items() if key not in contents]
    lines += _left_out(contents, notes)
    for key, comment in TABLES.items():
        if contents.get(key):
            lines += ["", f"# {comment}", f"[{key}]", *_rows(contents[key], notes if key == "categories" else {})]
    return "\n".join(lines) + "\n"


TABLES = {
    "categories": "Columns with a few values, compared by value and not by spelling: 1.0 is 1. One input for each.",
    "missing": "What stands for a missing value in a column, besides an empty cell, ?, NA, n/a, nan, null and none.",
    "means": "Numbers become (number - mean) / std; a missing one becomes 0, and another input says that it is.",
    "stds": "Standard deviations.",
    "class_counts": 'Rows of each class on all nodes, for class_weights = "balanced" in [task].',
}
USUAL = {
    "indicators": "# indicators = true  # false: no input says that a number is missing",
    "ignore_case": "# ignore_case = false  # true: A and a are the same value",
    "unseen": '# unseen = "refuse"  # "missing": a value that is not listed here counts as missing',
    "missing_target": '# missing_target = "refuse"  # "drop": rows without a target are left out',
    "missing": '# missing = {}  # such as { chol = [0, -9], "*" = ["unknown"] }: these values count as missing',
}
"""The lines for keys that are not set."""


def _target(contents: Mapping[str, Any], note: str) -> Iterator[str]:
    yield f"target = {toml_value(contents['target'])}" + (f"  # {_printable(note)}" if note else "")
    for key in ("classes", "positive", "negative"):
        if key in contents:
            yield f"{key} = {toml_value(contents[key])}"
    classes = contents.get("classes", ())
    if len(classes) > 2:
        yield f"# For two classes, write this in place of `classes`: positive = {toml_value(list(classes[1:]))}"


def _left_out(contents: Mapping[str, Any], notes: Mapping[str, str]) -> list[str]:
    used = {contents["target"], *contents.get("numeric", ()), *contents.get("categories", ())}
    left = [f"#   {toml_value(name)}: {_printable(note)}" for name, note in notes.items() if name not in used]
    return ["", "# Columns that are not used:", *left] if left else []


def _rows(table: Mapping[str, Any], notes: Mapping[str, str]) -> Iterator[str]:
    for name, value in table.items():
        yield _noted(f"{toml_value(name)} = {toml_value(value)}", notes.get(name))


def _noted(line: str, note: str | None) -> str:
    return f"{line}  # {_printable(note)}" if note else line


def _printable(text: str) -> str:
    """Put text on one line, for a comment."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


# -- figures for a secure sum ------------------------------------------------------------------------------------------

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
        return COUNTS + 2 * EXACT_DIGITS * self.is_number + len(self.groups)

    def figures(self, own: ColumnProposal | None) -> list[int]:
        """Return what a node adds. Raises ValueError: a sum is too large."""
        if own is None or own.kind not in FIGURED:
            return [0] * self.size
        sums = [own.total or 0.0, own.squares or 0.0] if self.is_number else []
        counts = [own.count, own.missing, own.rare]
        digits = (int(digit) for each in sums for digit in exact_digits(each))
        return [*counts, *digits, *(sum(own.values.get(value, 0) for value in group) for group in self.groups)]

    def proposal(self, sums: Figures, names: ColumnNames) -> ColumnProposal:
        """Return a proposal with the sums. Raises ValueError: no tables have such sums."""
        counts, rest = [int(count) for count in sums[:COUNTS]], sums[COUNTS:]
        total, squares = None, None
        if self.is_number:
            total, squares = exact_value(rest[:EXACT_DIGITS]), exact_value(rest[EXACT_DIGITS : 2 * EXACT_DIGITS])
            rest = rest[2 * EXACT_DIGITS :]
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
    """The place of each figure in the vector. `declared` are the schema keys in `[task]`."""

    def __init__(self, tables: Iterable[TableNames], declared: Mapping[str, Any]) -> None:
        self._declared = declared
        self._target = str(declared.get("target"))
        self.tables = sorted(tables, key=lambda table: table.node)
        columns = sorted({name for table in self.tables for name in table.columns})
        parts = (self._part(name) for name in columns)
        self._parts = [part for part in parts if part is not None]
        self.size = sum(part.size for part in self._parts)

    @property
    def digest(self) -> str:
        """A text that differs where any node has named anything else."""
        return hashlib.blake2b(b"\0".join(map(pack, self.tables)), digest_size=32).hexdigest()

    @property
    def counts_classes(self) -> bool:
        """True if the rows of each class are summed."""
        return any(part.column == self._target and part.groups for part in self._parts)

    def figures(self, own: Proposal) -> Figures:
        """Return a node's vector (size,). Raises UserError: a sum is too large."""
        numbers: list[int] = []
        for part in self._parts:
            try:
                numbers += part.figures(own.columns.get(part.column))
            except ValueError as error:
                raise UserError(str(error), key=part.column, allowed="leave it out: leave_out in [data]") from None
        return np.array(numbers, np.int64)

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
        for table in self.tables:
            columns = {}
            for name, names in table.columns.items():
                has_sums = name in summed and names.kind in FIGURED
                part_of_it = summed.pop(name) if has_sums else None
                columns[name] = part_of_it[0].proposal(part_of_it[1], names) if part_of_it else _without(names)
            made.append(Proposal(node=table.node, federation=table.federation, columns=columns))
        return made

    def merge(self, sums: Sequence[int] | Figures) -> Merged:
        """Merge all nodes' names and the sums into a schema. Raises UserError: they make none; ValueError: as above."""
        return merge(self.proposals(sums), self._declared, counts_classes=self.counts_classes)

    def _part(self, column: str) -> _Part | None:
        named = [table.columns[column] for table in self.tables if column in table.columns]
        holders = [names for names in named if names.kind in FIGURED]
        if len(holders) < LEAST_HOLDERS or any(names.kind not in (*FIGURED, "empty") for names in named):
            return None
        groups = self._groups(holders) if column == self._target else []
        if any(sum(not set(group).isdisjoint(names.values) for names in holders) < LEAST_HOLDERS for group in groups):
            groups = []
        is_number = all(names.kind == "number" for names in holders)
        return _Part(column=column, is_number=is_number, groups=tuple(groups))

    def _groups(self, holders: Iterable[ColumnNames]) -> list[tuple[str, ...]]:
        """Return the values of the target by class; without declared classes, each value is one."""
        values = sorted_values({value for names in holders for value in names.values})
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
    rare = int(names.levels and not names.values)
    return ColumnProposal(kind=names.kind, count=0, values=dict.fromkeys(names.values, 0), rare=rare, codes=names.codes)
