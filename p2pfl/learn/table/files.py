"""A schema in a file: TOML next to the federation file, or the schema that the nodes agreed on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2pfl.config.tables import read_document
from p2pfl.errors import UserError
from p2pfl.learn.table.mistakes import SchemaError, mistakes_of
from p2pfl.learn.table.schema import KEYS, Schema, make_schema

FILE_NAME = "schema.toml"
AGREED = "agreed"
"""The value used instead of a file name: the nodes agree on a schema before they train, by secure sums."""
OPENLY = "agreed-openly"
"""The same without secure sums: each node shows all others its statistics."""
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
        allowed = "`p2pfl run`, which asks the other nodes first; or a schema file: `p2pfl schema --help`"
        raise UserError("the nodes have not agreed on a schema yet", key="task.schema", value=name, allowed=allowed)
    if not (base_dir / name).is_file():
        allowed = 'a file such as "schema.toml", next to the federation file, or "agreed"'
        raise UserError(f"there is no file {base_dir / name}", key="task.schema", value=name, allowed=allowed)
    return read_schema(base_dir / name, options)


def read_schema(path: Path, options: Mapping[str, Any]) -> tuple[Schema, Mapping[str, Any]]:
    """Read the schema in a file, and its missing codes. Keys that are also in `[task]` must have the same values there.

    Raises UserError: the file has a mistake; SchemaError: it has several.
    """
    document = read_document(path)
    mistakes = [
        UserError("unknown key", file=path, key=key, value=value, allowed=", ".join(FILE_KEYS))
        for key, value in document.items()
        if key not in FILE_KEYS
    ]
    try:
        found = make_schema(document, prefix="")
    except UserError as error:
        error.file = str(path)
        mistakes += mistakes_of(error)
    if len(mistakes) > 1:
        raise SchemaError(mistakes)
    if mistakes:
        raise mistakes[0]
    for key in KEYS:
        if options.get(key) is not None and make_schema({**document, key: options[key]}) != found:
            text, allowed = f"{path.name} has another value", f"the value in that file, or no {key} here"
            if Path(str(options.get("schema"))).is_absolute():  # of a state folder: see `agreed`
                text = f"the nodes have agreed on another value, in {path}"
                allowed += "; to agree anew, remove the state folder of every node, which begins its training anew, too"
            raise UserError(text, key=f"task.{key}", value=options[key], allowed=allowed)
    return found, {key: document[key] for key in ("missing",) if key in document}
