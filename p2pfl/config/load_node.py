"""Reads what only one node knows: `<federation folder>/<node name>/node.toml`, which may be missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2pfl.config.model import Federation, Member, NodeConfig
from p2pfl.config.schema import NODE
from p2pfl.config.tables import Mistakes, read_document, read_table, unknown_keys
from p2pfl.errors import UserError

FILE_NAME = "node.toml"
DEFAULTS: dict[str, Any] = {
    "key_file": "node.key",
    "state_dir": "state",
    "status_listen": "127.0.0.1:0",
    "durability": "auto",
    "snapshot_s": 60.0,
    "threads": 1,
    "nice": 0,
}


def node_file(federation: Federation, name: str) -> Path:
    """Where the node file of a member stands unless told otherwise."""
    return federation.path.parent / name / FILE_NAME


def load_node(path: Path | str, federation: Federation, name: str | None = None) -> NodeConfig:
    """The node file at `path`, or in the folder `path`; all defaults if there is none.

    `name` says which member it is for; by default that is the name of its folder.

    Raises:
        UserError: the first mistake in the file, or no member of that name; `node_mistakes` has them all.
    """
    node, mistakes = _read(Path(path), federation, name)
    if mistakes:
        raise mistakes[0]
    if node is None:
        raise AssertionError("no node and no mistake")
    return node


def node_mistakes(path: Path | str, federation: Federation, name: str | None = None) -> list[UserError]:
    """Everything that is wrong with a node file; empty if it can be loaded."""
    return _read(Path(path), federation, name)[1]


def _read(path: Path, federation: Federation, name: str | None) -> tuple[NodeConfig | None, list[UserError]]:
    file = (path if path.suffix == ".toml" else path / FILE_NAME).absolute()
    try:
        member = find_member(federation, name or file.parent.name)
        document = read_document(file) if file.exists() else {}
    except UserError as error:
        return None, [error]
    mistakes = Mistakes(file)
    node = _node(document, member, mistakes)
    return (None if mistakes.found else node), mistakes.found


def find_member(federation: Federation, name: str) -> Member:
    """The member called `name`.

    Raises:
        UserError: there is none.
    """
    try:
        return federation.member(name)
    except KeyError:
        names = ", ".join(member.name for member in federation.members)
        raise UserError("no such node", file=federation.path, key="node", value=name, allowed=names) from None


def _node(document: dict[str, Any], member: Member, mistakes: Mistakes) -> NodeConfig:
    unknown_keys(document, "", ("node", "data"), mistakes)
    data = document.get("data", {})
    if not isinstance(data, dict):
        mistakes.add("must be a table", "data", None, "[data]")
    values = DEFAULTS | read_table(document.get("node", {}), "node.", NODE, mistakes)
    values.setdefault("listen", _default_listen(member))
    folder = mistakes.file.parent
    for key in ("key_file", "state_dir"):
        values[key] = folder / Path(values[key]).expanduser()
    return NodeConfig(path=mistakes.file, name=member.name, data=data, **values)


def _default_listen(member: Member) -> str:
    port = member.address.rpartition(":")[2] if member.address else "0"
    return f"0.0.0.0:{port}"
