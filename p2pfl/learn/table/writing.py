"""The text of a schema file, with comments that say how each column is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from p2pfl.config.writing import toml_value
from p2pfl.learn.table.merging import Merged

HEAD = """\
# How the tables are read: the same file at every node, because neighbors compare its digest.
# docs/how-to/tables.md explains the keys. A line that starts with '#' and a key shows another possible setting.
"""


def schema_text(merged: Merged, *, origin: str, extra: Mapping[str, Any] | None = None) -> str:
    """Write the file; `origin` names its source; `extra` keys are written as they are."""
    contents, notes = merged.contents, merged.notes
    lines = [HEAD + f"# {origin}", ""]
    lines += [f"{key} = {toml_value(value)}" for key, value in (extra or {}).items()]
    lines += _target(contents, notes.get(contents["target"], ""))
    if contents.get("numeric"):
        lines += ["", "# Columns that are numbers.", "numeric = ["]
        lines += [_noted(f"  {toml_value(name)},", notes.get(name)) for name in contents["numeric"]]
        lines += ["]"]
    for key in ("indicators", "ignore_case", "unseen", "missing_target"):
        lines += [f"{key} = {toml_value(contents[key])}"] if key in contents else []
    lines += [line for key, line in _other(contents)]
    lines += _left_out(contents, notes)
    for key, comment in TABLES.items():
        if contents.get(key):
            lines += ["", f"# {comment}", f"[{key}]", *_rows(contents[key], notes if key == "categories" else {})]
    return "\n".join(lines) + "\n"


TABLES = {
    "categories": "Columns with a few values, compared by value and not by spelling: 1.0 is 1. One input for each.",
    "missing": "What stands for a missing value in a column, beside an empty cell, ?, NA, n/a, nan, null and none.",
    "means": "Numbers become (number - mean) / std; a missing one becomes 0, and another input says that it is.",
    "stds": "Standard deviations.",
    "class_counts": 'Rows of each class on all nodes, for class_weights = "balanced" in [task].',
}


def _target(contents: Mapping[str, Any], note: str) -> Iterator[str]:
    yield f"target = {toml_value(contents['target'])}" + (f"  # {_printable(note)}" if note else "")
    for key in ("classes", "positive", "negative"):
        if key in contents:
            yield f"{key} = {toml_value(contents[key])}"
    classes = contents.get("classes", ())
    if len(classes) > 2:
        yield f"# positive = {toml_value(list(classes[1:]))}  # makes two classes of these, in place of `classes`"


def _other(contents: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    usual = {
        "indicators": "# indicators = true  # false: no input says that a number is missing",
        "ignore_case": "# ignore_case = false  # true: A and a are the same value",
        "unseen": '# unseen = "refuse"  # "missing": a value that is not listed here counts as missing',
        "missing_target": '# missing_target = "refuse"  # "drop": rows without a target are left out',
    }
    yield from ((key, line) for key, line in usual.items() if key not in contents)


def _left_out(contents: Mapping[str, Any], notes: Mapping[str, str]) -> list[str]:
    used = {contents["target"], *contents.get("numeric", ()), *contents.get("categories", ())}
    left = [f"#   {toml_value(name)}: {_printable(note)}" for name, note in notes.items() if name not in used]
    return ["", "# Columns that are not used:", *left] if left else []


def _rows(table: Mapping[str, Any] | Sequence[str], notes: Mapping[str, str]) -> Iterator[str]:
    if isinstance(table, Mapping):
        for name, value in table.items():
            yield _noted(f"{toml_value(name)} = {toml_value(value)}", notes.get(name))


def _noted(line: str, note: str | None) -> str:
    return f"{line}  # {_printable(note)}" if note else line


def _printable(text: str) -> str:
    """Write text on one line, for a comment."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
