"""The folder of a federation on this machine: the federation file, and a key and a node file for each node.

It appears whole or not at all. `save` writes what a Python program has described. A node may have stored a newer list
of members (a charter) than the one beside the federation file: `newest_here` reads it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from p2pfl.config.charter import Charter, CharterError, amended, checked
from p2pfl.config.load import FILE_NAME, federation_mistakes, load_stranger
from p2pfl.config.model import Compute, Edition, FederationConfig, GossipConfig, TrainingConfig
from p2pfl.config.schemas import write_schemas
from p2pfl.config.sections import keys_of
from p2pfl.config.writing import HAS_SCHEMA, NewMember, node_text, toml_value
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import StorageError, UserError
from p2pfl.limits import MOST_CHARTER_BYTES
from p2pfl.net.address import free_ports
from topologies.families import parse
from topologies.files.content import is_file

KEY_FILE = "node.key"


def save(federation: FederationConfig, folder: Path, *, compute: Mapping[str, Compute] | None = None) -> Path:
    """Write the federation into a new folder, with keys and with addresses on this machine; return its path.

    `compute` says, for each node, where it trains. Raises UserError if the folder exists, or if something in the
    federation has no name by which a file could refer to it.
    """
    if federation.task.given is not None:
        text = "the task is an object of this program, and a file can only name one"
        raise UserError(text, key="task", value=federation.task.name, allowed='"digits", or task="file.py:object"')
    target = folder.absolute()
    with appearing(target) as staging:
        beside = federation.path.parent
        members = [
            make_node(staging, member.name, port, (compute or {}).get(member.name))
            for member, port in zip(federation.members, free_ports(len(federation.members)), strict=True)
        ]
        own = {(i, j): (members[i].name, members[j].name) for i, j in federation.edge_compressors}
        topology = own_graph(federation.topology, staging, beside)
        head = {"name": federation.name, "seed": federation.seed, "topology": topology}
        training, gossip = (
            _non_defaults(federation.training, TrainingConfig()),
            _non_defaults(federation.gossip, GossipConfig()),
        )
        for table, key in ((training, "method"), (gossip, "rule")):
            if key in table:
                table[key] = _own_code(key, str(table[key]), beside, staging)
        task = {"name": _own_code("task", federation.task.name, beside, staging), **federation.task.options}
        tables = [_table("[federation]", head), _table("[task]", task)]
        tables += [_table("[training]", training), _table("[gossip]", gossip)]
        if (privacy := federation.privacy or federation.hides) is not None:
            options = {name: getattr(privacy, name) for name in keys_of(privacy)}
            tables.append(_table("[privacy]", {key: value for key, value in options.items() if value is not None}))
        tables += [_table("[[node]]", {"name": m.name, "key": m.key, "address": m.address}) for m in members]
        edges = federation.edge_compressors.items()
        tables += [_table("[[edge]]", {"between": list(own[edge]), "compressor": spec}) for edge, spec in edges]
        (staging / FILE_NAME).write_text(HAS_SCHEMA + "\n".join(tables), encoding="utf-8")
        complete(staging)
    return target


def _non_defaults(config: TrainingConfig | GossipConfig, usual: TrainingConfig | GossipConfig) -> dict[str, Any]:
    """Return the non-default values. None cannot be written to a file; another key expresses it."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {key: value for key, value in values.items() if value is not None and value != getattr(usual, key)}


def _own_code(key: str, spec: str, beside: Path, folder: Path) -> str:
    """Return the spec of the user's own code; the file that it names is copied into `folder`."""
    if spec.startswith("__main__:"):
        text = "this stands in the program itself, and a file can only name what stands in a module"
        raise UserError(text, key=key, value=spec, allowed="file.py:object or package.module:object")
    place, colon, rest = spec.partition(".py:")
    if not colon:
        return spec
    file = beside / f"{place}.py"
    if not file.is_file():
        raise UserError("there is no such file to copy", file=file, key=key, value=spec)
    shutil.copyfile(file, folder / file.name)
    return f"{Path(place).name}.py:{rest}"


def _table(head: str, values: Mapping[str, Any]) -> str:
    return "".join([f"{head}\n", *(f"{key} = {toml_value(value)}\n" for key, value in values.items())])


@contextmanager
def appearing(target: Path, *, replacing: bool = False) -> Iterator[Path]:
    """Make a folder that becomes `target` in one step if the block succeeds, and disappears otherwise."""
    if not target.parent.is_dir():
        raise UserError("no such folder", key="DIR", value=str(target.parent), allowed="a folder that exists")
    if not replacing and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError("already exists", key="DIR", value=str(target), allowed="a new or an empty folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".p2pfl-new-", dir=target.parent) as staging:
            folder = Path(staging) / "federation"
            folder.mkdir()
            yield folder
            if replacing:
                os.rename(target, Path(staging) / "replaced")  # noqa: PTH104 - as below
            elif sys.platform == "win32" and target.exists():  # it replaces no folder, not even an empty one
                target.rmdir()
            os.rename(folder, target)  # noqa: PTH104 - unlike Path.rename, known to replace an empty folder
    except OSError as error:
        raise StorageError(f"{target} could not be made: {error.strerror}") from error


def make_node(
    folder: Path, name: str, port: int | None, compute: Compute | None = None, data: Mapping[str, Any] | None = None
) -> NewMember:
    """Make a node's folder with its key and its node file.

    Without a `port` the member has no address. `compute` says where it trains (None to leave it out of the file);
    `data` is the file's `[data]` table.
    """
    (folder / name).mkdir(mode=0o700)
    identity = Identity.generate()
    identity.save(folder / name / KEY_FILE)
    address = None if port is None else f"127.0.0.1:{port}"
    member = NewMember(name=name, key=public_text(identity.public), address=address)
    usual = Compute()
    options = {key: getattr(compute or usual, key) for key in ("device", "precision")}
    own = {key: value for key, value in options.items() if value != getattr(usual, key)}
    (folder / name / "node.toml").write_text(node_text(member, compute=own, data=data), encoding="utf-8")
    return member


def own_graph(topology: str, folder: Path, beside: Path = Path()) -> str:
    """Return the spec for the federation file. A graph file, or one of labels, is looked up in `beside` and copied."""
    if not is_file(topology):
        labels = parse(topology).parameters.get("labels")
        if not labels:
            return topology
        shutil.copyfile(beside / labels, folder / Path(labels).name)
        return topology.replace(str(labels), Path(labels).name)
    copy = "graph" + Path(topology).suffix
    shutil.copyfile(beside / topology, folder / copy)
    return f"./{copy}"


def complete(folder: Path) -> None:
    """Write what editors read into a new federation's folder. Raises an error for mistakes in the federation."""
    write_schemas(folder)
    if mistakes := federation_mistakes(folder):
        raise ExceptionGroup("mistakes in a new federation", mistakes)


log = logging.getLogger("p2pfl")

CHARTER_FILE = "charter"
NONE = Edition(0, b"")


def load_kept(folder: Path, federation: FederationConfig) -> Charter | None:
    """Return the charter stored in a state folder; None, with a log line, if none is usable.

    A damaged charter is not trusted, but does not prevent a start: neighbors have it.
    """
    file = folder / CHARTER_FILE
    try:
        with file.open("rb") as content:
            raw = content.read(MOST_CHARTER_BYTES + 1)
        return checked(raw, federation)
    except FileNotFoundError:
        return None
    except (OSError, CharterError) as error:
        log.warning("%s: the kept charter cannot be used: %s", file, error)
        return None


def newest(federation: FederationConfig, folder: Path) -> FederationConfig:
    """Return the federation under the newer charter: beside the federation file, or in the state `folder`."""
    charter = load_kept(folder, federation) if federation.admin else None
    if charter is None or charter.edition <= (federation.edition or NONE):
        return federation
    return amended(federation, charter)


def newest_here(federation: FederationConfig) -> FederationConfig:
    """Return the federation under the newest charter on this machine.

    It is beside the federation file, or stored by a node whose folder is there. A node that was added later may appear
    only in its own charter. Raises UserError if a node file is wrong.
    """
    keys = sorted(federation.path.parent.glob(f"*/{KEY_FILE}")) if federation.admin else []
    for folder in [key.parent for key in keys]:
        federation = newest(federation, load_stranger(folder, folder.name).state_dir)
    return federation
