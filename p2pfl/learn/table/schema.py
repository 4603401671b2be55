"""The schema that all nodes must agree on: which columns their tables have, what they mean, and how they are scaled.

It is in `[task]`, in a file next to the federation file that `[task] schema` names, or in a node's state folder, if the
nodes have agreed on it. Values are compared by meaning, not by spelling (`rows.spelled`). What follows from a schema
without a table is here, too: the weights of classes, and the usual metrics.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from p2pfl.config.model import TaskConfig
from p2pfl.config.tables import read_document
from p2pfl.errors import UserError
from p2pfl.learn.table.rows import MistakesError, mistakes_of, spelled

Value = str | int | float
Unseen = Literal["refuse", "missing"]
Targetless = Literal["refuse", "drop"]
DIGEST_BYTES = 32
POSITIVE = ("negative", "positive")
"""The names of the two classes if `positive` lists the values of the second one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The columns of all tables, and the inputs made from them.

    A numeric column becomes the input (value - mean) / std; with `indicators`, a second input is 1.0 if it is missing.
    A category becomes one input per value, all 0 if it is missing. Regression targets are standardized too if a mean or
    std is declared for them.
    """

    target: str
    """The column to predict."""
    numeric: tuple[str, ...]
    """The numeric columns."""
    categories: Mapping[str, tuple[str, ...]]
    """Columns with a few distinct values, and the values of each, in normalized spelling."""
    classes: tuple[str, ...] | None
    """The target's values; None for a regression."""
    positive: tuple[str, ...] = ()
    """The target's values that make a row's class "positive", the second one, in normalized spelling."""
    negative: tuple[str, ...] = ()
    """The target's values for the first class; if empty, all others."""
    means: Mapping[str, float] = field(default_factory=dict)
    """The means by which numeric columns are scaled."""
    stds: Mapping[str, float] = field(default_factory=dict)
    """The standard deviations by which numeric columns are scaled."""
    indicators: bool = True
    """True if an additional input marks a missing number."""
    ignore_case: bool = False
    """True if values that differ only in case are the same."""
    unseen: Unseen = "refuse"
    """The treatment of an undeclared value: a mistake ("refuse"), or a missing value ("missing")."""
    missing_target: Targetless = "refuse"
    """The treatment of a row without a target: a mistake ("refuse"), or left out ("drop")."""
    class_counts: Mapping[str, int] = field(default_factory=dict)
    """The number of rows in each class over all nodes, for balanced weights."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns that a file should have, with the target last."""
        return (*self.numeric, *self.categories, self.target)

    @property
    def width(self) -> int:
        """Return the number of inputs per row."""
        per_number = 2 if self.indicators else 1
        return per_number * len(self.numeric) + sum(len(values) for values in self.categories.values())

    @property
    def outputs(self) -> int:
        return 1 if self.classes is None else len(self.classes)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return a name for each input of a row, in order."""
        of_number = ("{}", "{} is missing") if self.indicators else ("{}",)
        numbers = (form.format(column) for column in self.numeric for form in of_number)
        return (*numbers, *(f"{column} = {value}" for column, values in self.categories.items() for value in values))

    def spell(self, text: str, decimal: str = ".") -> str:
        return spelled(text, decimal=decimal, ignore_case=self.ignore_case)

    def scale(self, column: str) -> tuple[float, float]:
        """Return the declared mean and standard deviation of a numeric column."""
        return self.means.get(column, 0.0), self.stds.get(column, 1.0)

    def figures(self) -> tuple[str, ...]:
        """Return the keys that may reveal something about the rows from which the schema was made."""
        keys = [key for key in ("means", "stds", "class_counts") if getattr(self, key)]
        return (*keys, *(f"categories.{name}" for name in self.categories))

    def class_of(self, value: str) -> int | None:
        """Return the class of a target value in normalized spelling, or None if it has none."""
        if self.positive:
            if value in self.positive:
                return 1
            return 0 if not self.negative or value in self.negative else None
        classes = self.classes or ()
        return classes.index(value) if value in classes else None

    def contents(self) -> dict[str, Any]:
        """Return the schema as the contents of a file: `make_schema(contents)` is the same schema."""
        values = asdict(self)
        if self.positive:
            del values["classes"]
        usual = {"indicators": True, "ignore_case": False, "unseen": "refuse", "missing_target": "refuse"}
        return {
            key: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            for key, value in values.items()
            if value not in (None, (), {}) and value != usual.get(key)
        }

    def digest(self) -> bytes:
        """Return a 32-byte hash that changes if anything in the schema changes."""
        text = json.dumps(asdict(self), sort_keys=False, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES, person=b"p2pfl-schema").digest()


TYPES: Mapping[str, Any] = get_type_hints(Schema) | {
    "categories": dict[str, list[Value]],
    "classes": list[Value] | None,
    "positive": list[Value],
    "negative": list[Value],
}
"""The keys of a schema, and their types in a file."""
KEYS = tuple(TYPES)


def make_schema(contents: Mapping[str, Any], prefix: str = "task.") -> Schema:
    """Check that the declared columns make sense together. A missing key is None.

    Raises UserError: a type is wrong, a column is declared twice, there is no column, or a list of values is too short;
    MistakesError: several of these apply.
    """
    raw = {key: contents[key] for key in KEYS if contents.get(key) is not None}
    given, mistakes = _converted(raw, prefix)
    _raise_any(mistakes)
    if not given.get("target"):
        raise UserError("the task needs this option", key=f"{prefix}target", allowed="the name of a column")
    fold = bool(given.get("ignore_case", False))
    for key in ("classes", "positive", "negative"):
        if key in given:
            given[key] = _spelled(given[key], fold=fold)
    if fold and "class_counts" in given:
        counts = Counter[str]()
        for name, count in given["class_counts"].items():
            counts[spelled(name, ignore_case=True)] += count
        given["class_counts"] = dict(counts)
    given["categories"] = {name: _spelled(values, fold=fold) for name, values in given.get("categories", {}).items()}
    given["numeric"] = tuple(given.get("numeric", ()))
    wrong = [*_wrong_columns(given, prefix), *_wrong_values(given, prefix), *_wrong_classes(given, prefix)]
    if given.get("positive"):
        given["classes"] = POSITIVE
    _raise_any([*wrong, *_wrong_counts(given, prefix), *_wrong_scales(given, prefix)])
    return Schema(**({"classes": None} | given))


def _raise_any(mistakes: Sequence[UserError]) -> None:
    if len(mistakes) > 1:
        raise MistakesError(mistakes, place="schema")
    if mistakes:
        raise mistakes[0]


def _converted(raw: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], list[UserError]]:
    converted, mistakes = {}, []
    for key, value in raw.items():
        kind = TYPES[key]
        try:
            converted[key] = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            inside = [name for name in (*KEYS, "missing") if isinstance(value, Mapping) and name in value]
            if inside:
                text = f"stands below [{key}], and so is part of that table"
                mistakes += [UserError(text, key=prefix + name, allowed="above the first [table]") for name in inside]
                continue
            words = ", ".join(map(str, get_args(kind))) if kind in (Unseen, Targetless) else None
            mistakes.append(UserError(str(error), key=prefix + key, value=value, allowed=words))
    return converted, mistakes


def _spelled(values: Sequence[Value], *, fold: bool) -> tuple[str, ...]:
    texts = [spelled(str(value), ignore_case=fold) for value in values]
    return tuple(dict.fromkeys(texts)) if fold else tuple(texts)


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
    """Report each column that has a scale but is not numeric."""
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
    """Describe a line of a TOML table for an error."""
    return f"the line {json.dumps(name, ensure_ascii=False)} = {value} in [{prefix}{key}]"


# -- in a file, or agreed on -------------------------------------------------------------------------------------------

FILE_NAME = "schema.toml"
AGREED = "agreed"
"""The value used instead of a file name: the nodes agree on a schema before they train, by secure sums."""
OPENLY = "agreed-openly"
"""The same without secure sums, in files of the version before. Nodes that have agreed like that go on."""
FILE_KEYS = (*KEYS, "missing")
"""The keys of a schema file. `missing` has codes, as in `[task]`."""


def schema_of(options: Mapping[str, Any], base_dir: Path) -> tuple[Schema, Mapping[str, Any]]:
    """Read the schema from `[task]` or from the file that it names, together with that file's missing codes (a layout's
    `missing`).

    Raises UserError: it makes no sense, or file and `[task]` contradict each other.
    """
    name = options.get("schema")
    if name is None:
        return make_schema(options), {}
    if not isinstance(name, str) or not name:
        raise UserError("no file", key="task.schema", value=name, allowed='a file such as "schema.toml"')
    if name in (AGREED, OPENLY):
        allowed = "`p2pfl run`, which asks the other nodes first; or the name of a schema file"
        raise UserError("the nodes have not agreed on a schema yet", key="task.schema", value=name, allowed=allowed)
    if not (base_dir / name).is_file():
        allowed = 'a file such as "schema.toml", next to the federation file, or "agreed"'
        raise UserError(f"there is no file {base_dir / name}", key="task.schema", value=name, allowed=allowed)
    return read_schema(base_dir / name, options)


def read_schema(path: Path, options: Mapping[str, Any]) -> tuple[Schema, Mapping[str, Any]]:
    """Read the schema in a file, and its missing codes. Keys that are also in `[task]` must have the same values there.

    Raises UserError: the file has a mistake; MistakesError: it has several.
    """
    document = read_document(path)
    mistakes = [
        UserError("unknown key", file=path, key=key, value=value, allowed=", ".join(FILE_KEYS))
        for key, value in document.items()
        if key not in FILE_KEYS
    ]
    try:
        schema = make_schema(document, prefix="")
    except UserError as error:
        error.file = str(path)
        mistakes += mistakes_of(error)
    if len(mistakes) > 1:
        raise MistakesError(mistakes, place="schema")
    if mistakes:
        raise mistakes[0]
    for key in KEYS:
        if options.get(key) is not None and make_schema({**document, key: options[key]}) != schema:
            text, allowed = f"{path.name} has another value", f"the value in that file, or no {key} here"
            if Path(str(options.get("schema"))).is_absolute():  # of a state folder: see `agreed`
                text = f"the nodes have agreed on another value, in {path}"
                allowed += "; to agree anew, remove the state folder of every node, which begins its training anew, too"
            raise UserError(text, key=f"task.{key}", value=options[key], allowed=allowed)
    return schema, {key: document[key] for key in ("missing",) if key in document}


def is_to_agree(task: TaskConfig) -> bool:
    """Return True if the nodes are to agree on the schema."""
    return task.name == "csv" and task.given is None and task.options.get("schema") in (AGREED, OPENLY)


def agreed_file(state_dir: Path) -> Path:
    return state_dir / FILE_NAME


def with_agreed(task: TaskConfig, state_dir: Path) -> TaskConfig:
    """Return the task with the agreed schema that the node has stored, if any."""
    file = agreed_file(state_dir)
    if not is_to_agree(task) or not file.is_file():
        return task
    return replace(task, options=task.options | {"schema": str(file)})


def declared_by(task: TaskConfig) -> dict[str, Any]:
    """Return the schema keys in `[task]`, which are taken as given."""
    return {key: task.options[key] for key in (*KEYS, "missing") if key in task.options}


# -- weights of classes, and metrics -----------------------------------------------------------------------------------

BALANCED = "balanced"
Weights = Literal["balanced"] | dict[str, float]


def class_weights(schema: Schema, classes: tuple[str, ...], weights: Weights) -> list[float]:
    """Return the weights of the classes. If they are balanced, their mean over all rows is 1."""
    if weights == BALANCED:
        counts = [schema.class_counts.get(name, 0) for name in classes]
        if not all(counts):
            allowed = "class_counts in the schema, which `p2pfl new --task csv` writes; or weights"
            text = "the nodes do not know how many rows each class has on all of them"
            raise UserError(text, key="task.class_weights", value=weights, allowed=f"{allowed} such as {{ ill = 2.0 }}")
        return [sum(counts) / (len(counts) * count) for count in counts]
    return weights_given(schema, classes, weights if isinstance(weights, Mapping) else {})


def weights_given(schema: Schema, classes: tuple[str, ...], weights: Mapping[str, float]) -> list[float]:
    """Return the weights of the classes, 1 for those that have none. Raises UserError."""
    known = schema.classes or ()
    for name, weight in weights.items():
        if schema.spell(name) not in known or not weight > 0:
            key, allowed = f"task.class_weights.{name}", f"above 0, for {', '.join(known)}"
            raise UserError("not a weight of a class", key=key, value=weight, allowed=allowed)
    given = {schema.spell(name): weight for name, weight in weights.items()}
    return [given.get(name, 1.0) for name in classes]


OF_TWO = ("auc", "average_precision", "balanced_accuracy", "f1", "brier")
OF_SEVERAL = ("balanced_accuracy", "auc", "f1", "log_loss")
OF_NUMBERS = ("rmse", "mae", "r2")
ALWAYS = ("accuracy", "loss")
"""The measures that every task has, if they are defined."""
PAIR = 2


def usual_metrics(schema: Schema) -> tuple[str, ...]:
    """Return the usual metrics for such a target, the main one first."""
    if schema.classes is None:
        return OF_NUMBERS
    return OF_TWO if len(schema.classes) == PAIR else OF_SEVERAL


def metrics_of(schema: Schema) -> tuple[str, ...]:
    """Return all metrics that apply to such a target."""
    if schema.classes is None:
        return OF_NUMBERS
    return tuple(dict.fromkeys(("accuracy", *OF_TWO, *OF_SEVERAL)))
