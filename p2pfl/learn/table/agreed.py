"""`[task] schema = "agreed"`, or "agreed-openly": the schema that the nodes agreed on, stored with a node's state from
its first start on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from p2pfl.config.model import TaskConfig
from p2pfl.config.tables import read_document
from p2pfl.learn.table.files import AGREED, FILE_NAME, OPENLY
from p2pfl.learn.table.schema import KEYS

OF_THE_TARGET = ("target", "positive", "negative", "classes", "ignore_case")


def is_to_agree(task: TaskConfig) -> bool:
    """Return True if the nodes are to agree on the schema."""
    return task.name == "csv" and task.given is None and task.options.get("schema") in (AGREED, OPENLY)


def is_open(task: TaskConfig) -> bool:
    """Return True if the nodes show each other their statistics, in place of secure sums of them."""
    return task.options.get("schema") == OPENLY


def agreed_file(state_dir: Path) -> Path:
    return state_dir / FILE_NAME


def with_agreed(task: TaskConfig, state_dir: Path) -> TaskConfig:
    """Return the task with the agreed schema that the node has stored, if any."""
    file = agreed_file(state_dir)
    if not is_to_agree(task) or not file.is_file():
        return task
    return replace(task, options=task.options | {"schema": str(file)})


def declared_by(task: TaskConfig, base_dir: Path | None = None) -> dict[str, Any]:
    """Return the schema keys in `[task]`, which are taken as given. With `base_dir`, include the target keys of the
    schema file that `[task]` names. Raises UserError: that file cannot be read.
    """
    found = {key: task.options[key] for key in (*KEYS, "missing") if key in task.options}
    name = task.options.get("schema")
    if base_dir is None or not isinstance(name, str) or name in (AGREED, OPENLY) or not (base_dir / name).is_file():
        return found
    document = read_document(base_dir / name)
    return {key: document[key] for key in OF_THE_TARGET if key in document} | found
