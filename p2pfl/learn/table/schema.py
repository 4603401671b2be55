"""The schema on which all nodes must agree: which columns their tables have, what they mean, and how they are scaled.

It is in `[task]`, or in a file beside it that `[task] schema` names. Values are compared by meaning, not by spelling
(`cells.spelled`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import msgspec

from p2pfl.errors import UserError
from p2pfl.learn.table.cells import spelled
from p2pfl.learn.table.mistakes import SchemaError

Value = str | int | float
Unseen = Literal["refuse", "missing"]
Targetless = Literal["refuse", "drop"]
DIGEST_BYTES = 32
POSITIVE = ("negative", "positive")
"""The class names where `positive` names the values of the second class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The columns of all tables, and the inputs made from them.

    A numeric column becomes an input, (value - mean) / std, and with `indicators` another, 1.0 where it is missing. A
    category becomes one per value, all 0 where it is missing. Regression targets are standardized too if a mean or std
    is declared for them.
    """

    target: str
    """The column to predict."""
    numeric: tuple[str, ...]
    """Columns of numbers."""
    categories: Mapping[str, tuple[str, ...]]
    """Columns with a few values, and the values of each, spelled."""
    classes: tuple[str, ...] | None
    """The target's values; None is regression."""
    positive: tuple[str, ...] = ()
    """Values of the target, spelled, that make a row's class "positive", the second one."""
    negative: tuple[str, ...] = ()
    """Values of the target that are the first class; empty: all others."""
    means: Mapping[str, float] = field(default_factory=dict)
    """The means of numeric columns, by which they are scaled."""
    stds: Mapping[str, float] = field(default_factory=dict)
    """The standard deviations of numeric columns, by which they are scaled."""
    indicators: bool = True
    """True if another input marks a missing number."""
    ignore_case: bool = False
    """True if values that differ only in upper and lower case are one."""
    unseen: Unseen = "refuse"
    """A value that is not declared is a mistake ("refuse"), or counts as missing ("missing")."""
    missing_target: Targetless = "refuse"
    """A row without a target is a mistake ("refuse"), or left out ("drop")."""
    class_counts: Mapping[str, int] = field(default_factory=dict)
    """The number of rows of each class on all nodes together, for balanced weights."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a file should have, the target last."""
        return (*self.numeric, *self.categories, self.target)

    @property
    def width(self) -> int:
        """The number of inputs of a row."""
        per_number = 2 if self.indicators else 1
        return per_number * len(self.numeric) + sum(len(values) for values in self.categories.values())

    @property
    def outputs(self) -> int:
        return 1 if self.classes is None else len(self.classes)

    @property
    def inputs(self) -> tuple[str, ...]:
        """A name for each input of a row, in order."""
        return tuple(self._inputs())

    def _inputs(self) -> Iterator[str]:
        for column in self.numeric:
            yield column
            if self.indicators:
                yield f"{column} is missing"
        for column, values in self.categories.items():
            yield from (f"{column} = {value}" for value in values)

    def spell(self, text: str, decimal: str = ".") -> str:
        return spelled(text, decimal=decimal, ignore_case=self.ignore_case)

    def scale(self, column: str) -> tuple[float, float]:
        """The mean and the std of a numeric column, as declared."""
        return self.means.get(column, 0.0), self.stds.get(column, 1.0)

    def figures(self) -> tuple[str, ...]:
        """The keys that may reveal something of the rows from which the schema was made."""
        found = [key for key in ("means", "stds", "class_counts") if getattr(self, key)]
        return (*found, *(f"categories.{name}" for name in self.categories))

    def class_of(self, value: str) -> int | None:
        """The class of a target's spelled value; None: it has none."""
        if self.positive:
            if value in self.positive:
                return 1
            return 0 if not self.negative or value in self.negative else None
        classes = self.classes or ()
        return classes.index(value) if value in classes else None

    def contents(self) -> dict[str, Any]:
        """The schema as the contents of a file: `make_schema(contents)` is the same schema."""
        found = asdict(self)
        if self.positive:
            del found["classes"]
        usual = {"indicators": True, "ignore_case": False, "unseen": "refuse", "missing_target": "refuse"}
        return {
            key: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            for key, value in found.items()
            if value not in (None, (), {}) and value != usual.get(key)
        }

    def digest(self) -> bytes:
        """Hash the schema into 32 bytes that differ when anything differs."""
        text = json.dumps(asdict(self), sort_keys=False, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES, person=b"p2pfl-schema").digest()


TYPES: Mapping[str, Any] = {
    "target": str,
    "numeric": list[str],
    "categories": dict[str, list[Value]],
    "classes": list[Value] | None,
    "positive": list[Value],
    "negative": list[Value],
    "means": dict[str, float],
    "stds": dict[str, float],
    "indicators": bool,
    "ignore_case": bool,
    "unseen": Unseen,
    "missing_target": Targetless,
    "class_counts": dict[str, int],
}
"""The keys of a schema, and their types."""
KEYS = tuple(TYPES)


def make_schema(contents: Mapping[str, Any], prefix: str = "task.") -> Schema:
    """Check that the declared columns make sense together. None stands for a missing key.

    Raises UserError: a wrong type, a column is declared twice, there is none, or a list of values is too short;
    SchemaError: several of these.
    """
    raw = {key: contents[key] for key in KEYS if contents.get(key) is not None}
    found, mistakes = _converted(raw, prefix)
    _raise_any(mistakes)
    if not found.get("target"):
        raise UserError("the task needs this option", key=f"{prefix}target", allowed="the name of a column")
    fold = bool(found.get("ignore_case", False))
    for key in ("classes", "positive", "negative"):
        if key in found:
            found[key] = _spelled(found[key], fold=fold)
    found["categories"] = {name: _spelled(values, fold=fold) for name, values in found.get("categories", {}).items()}
    found["numeric"] = tuple(found.get("numeric", ()))
    wrong = [*_wrong_columns(found, prefix), *_wrong_values(found, prefix), *_wrong_classes(found, prefix)]
    if found.get("positive"):
        found["classes"] = POSITIVE
    _raise_any([*wrong, *_wrong_counts(found, prefix), *_wrong_scales(found, prefix)])
    return Schema(**({"classes": None} | found))


def _raise_any(mistakes: Sequence[UserError]) -> None:
    if len(mistakes) > 1:
        raise SchemaError(mistakes)
    if mistakes:
        raise mistakes[0]


def _converted(raw: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], list[UserError]]:
    found, mistakes = {}, []
    for key, value in raw.items():
        kind = TYPES[key]
        try:
            found[key] = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            words = ", ".join(map(str, get_args(kind))) if kind in (Unseen, Targetless) else None
            mistakes.append(UserError(str(error), key=prefix + key, value=value, allowed=words))
    return found, mistakes


def _spelled(values: Sequence[Value], *, fold: bool) -> tuple[str, ...]:
    return tuple(spelled(str(value), ignore_case=fold) for value in values)


def _wrong_columns(contents: Mapping[str, Any], prefix: str) -> Iterator[UserError]:
    columns = [contents["target"], *contents["numeric"], *contents["categories"]]
    if len(columns) == 1:
        yield UserError("there are no features", key=f"{prefix}numeric", allowed="columns in numeric or categories")
    for column in dict.fromkeys(columns):
        if columns.count(column) > 1:
            yield UserError("this column is declared twice", key=prefix.rstrip("."), value=column)


def _wrong_values(contents: Mapping[str, Any], prefix: str) -> Iterator[UserError]:
    lists = {f"categories.{name}": values for name, values in contents["categories"].items()}
    if "classes" in contents:
        lists["classes"] = contents["classes"]
    for key, values in lists.items():
        if len(values) < 2 or len(set(values)) < len(values):
            yield UserError("wrong values", key=prefix + key, value=list(values), allowed="two or more different ones")


def _wrong_classes(contents: Mapping[str, Any], prefix: str) -> Iterator[UserError]:
    positive, negative = contents.get("positive", ()), contents.get("negative", ())
    if positive and "classes" in contents:
        yield UserError("cannot be combined with positive", key=f"{prefix}classes", allowed="one of the two")
    if negative and not positive:
        yield UserError("is used only with positive", key=f"{prefix}negative", allowed="positive = [...]")
    if both := sorted(set(positive) & set(negative)):
        yield UserError("is in positive too", key=f"{prefix}negative", value=both[0])


def _wrong_counts(contents: Mapping[str, Any], prefix: str) -> Iterator[UserError]:
    known = contents.get("classes") or ()
    for name, count in contents.get("class_counts", {}).items():
        if name not in known or count < 0:
            allowed = f"a count for each of {', '.join(known)}" if known else "none for a regression"
            allowed += f": delete {_line(prefix, 'class_counts', name, count)}"
            yield UserError("not a count of a class", key=f"{prefix}class_counts", value=name, allowed=allowed)


def _wrong_scales(contents: Mapping[str, Any], prefix: str) -> Iterator[UserError]:
    """Report each column that has a scale but cannot be scaled."""
    numeric = {*contents["numeric"], *(() if "classes" in contents else (contents["target"],))}
    tables = {key: contents.get(key, {}) for key in ("means", "stds")}
    for column in dict.fromkeys(name for table in tables.values() for name in table if name not in numeric):
        keys = [key for key in tables if column in tables[key]]
        lines = " and ".join(_line(prefix, key, column, tables[key][column]) for key in keys)
        allowed = f"columns of numeric: delete {lines}, or put the column back into numeric"
        yield UserError("this is not a numeric column", key=f"{prefix}{keys[0]}", value=column, allowed=allowed)
    for column, std in tables["stds"].items():
        if column in numeric and not std > 0:
            yield UserError("not a standard deviation", key=f"{prefix}stds.{column}", value=std, allowed="above 0")


def _line(prefix: str, key: str, name: str, value: object) -> str:
    """Name a line of a TOML table in an error."""
    return f"the line {json.dumps(name, ensure_ascii=False)} = {value} in [{prefix}{key}]"
