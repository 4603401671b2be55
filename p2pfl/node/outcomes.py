"""A learned model, read from a node's folder or from an exported file.

A node may be running in that folder: nothing in it is locked or changed, and its key is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2pfl.config.load import (
    FILE_NAME,
    federation_file,
    find_member,
    load_config,
    load_node,
    node_file,
)
from p2pfl.config.load import NODE_FILE_NAME as NODE_FILE
from p2pfl.config.model import STATE_DIR, Compute, FederationConfig
from p2pfl.errors import UserError
from p2pfl.foreign import read_file
from p2pfl.learn.interface import WHOLE, Learner, Vector
from p2pfl.learn.load import PREPROCESSING, from_safetensors, metadata_of, of_torch, to_safetensors, with_torch
from p2pfl.node.assembly import ORIGIN, digest_of, load_learner, replay
from p2pfl.node.folders import newest
from p2pfl.storage import Loaded, peek

ALLOWED = "the folder of a node that has run, its state folder, or a file from `p2pfl export`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A learned model: `vector` (d,) after `rounds` of the node's rounds, None if a file does not say; `learner` has
    the rest.
    """

    federation: str
    node: str
    rounds: int | None
    version: int | None
    vector: Vector
    learner: Learner
    warnings: list[str]

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """How the task turns raw data into inputs, if it does."""
        learner = of_torch(self.learner)
        own: Mapping[str, Any] = getattr(self.learner, "preprocessing", {})
        return own if learner is None else learner.task.preprocessing

    def finetune(self, epochs: int) -> Learned:
        """Return the model after `epochs` more passes over the node's own data; nothing in its folder changes.

        If the node keeps part of the model personal, only that part is trained. Raises UserError if the task has no
        torch model, LearningError if training failed.
        """
        learner = of_torch(with_torch(self.learner))
        if learner is None:
            raise UserError(
                "only a torch model can be fine-tuned", key="--finetune", value=epochs, allowed="without it"
            )
        return replace(self, vector=learner.finetune(self.vector, epochs))

    def export(self, software: str) -> bytes:
        """Return a safetensors file that names its origin."""
        return to_safetensors(self.learner, self.vector, self.metadata(software))

    def write_folder(self, form: str, place: Path) -> None:
        """Write the model into an empty folder. Raises UserError: the task's models have no such `form`."""
        learner = of_torch(self.learner)
        forms = {} if learner is None else learner.task.folders
        if learner is None or form not in forms:
            allowed = ", ".join(["safetensors", *forms])
            raise UserError("the task's models have no such format", key="--format", value=form, allowed=allowed)
        learner.model.flat.load(self.vector)
        forms[form](learner.model.module, place)

    def metadata(self, software: str) -> dict[str, str]:
        """Return the model's origin, and its preprocessing of raw data."""
        fields = {
            "federation": self.federation,
            "node": self.node,
            "rounds": self.rounds,
            "version": self.version,
            "software": software,
        }
        preprocessing = (
            {PREPROCESSING: json.dumps(self.preprocessing, ensure_ascii=False)} if self.preprocessing else {}
        )
        return {key: str(value) for key, value in fields.items() if value is not None} | preprocessing


def read_learned(path: Path, *, federation: Path | None = None, node: str | None = None) -> Learned:
    """Read the model at `path`. `federation` and `node` are needed if neither `path` nor its content names them.

    Raises UserError if there is no state, if it belongs to another federation or model, or if no federation was found;
    StorageError if the state cannot be used.
    """
    if not path.exists():
        raise UserError("no such file or folder", key="SNAPSHOT", value=str(path), allowed=ALLOWED)
    path = path.absolute()
    is_nodes = any((path / name).exists() for name in (NODE_FILE, STATE_DIR))
    if (path / FILE_NAME).is_file() and not is_nodes:
        path = _folder_of(path, node)
    return _from_folder(path, federation, node) if path.is_dir() else _from_file(path, federation, node)


def _folder_of(federation: Path, node: str | None) -> Path:
    """Return the node's folder within a federation's folder."""
    if node is not None and (federation / node).is_dir():
        return federation / node
    here = sorted(file.parent.name for file in federation.glob(f"*/{NODE_FILE}"))
    allowed = ", ".join(f"{federation.name}/{name}" for name in here) or ALLOWED
    raise UserError("the folder of a federation, not of a node", key="SNAPSHOT", value=str(federation), allowed=allowed)


def _from_folder(path: Path, federation_path: Path | None, name: str | None) -> Learned:
    """Read a state folder, or else a node's folder, whose node file says where the state is."""
    federation = _federation(path, federation_path)
    folder, loaded = path.parent, peek(path)
    if loaded is None:
        node = load_node(_node_file(federation, path, name), federation, name)
        folder, name = path, node.name
        loaded = peek(node.state_dir) if node.state_dir.is_dir() else None
    if loaded is None:
        raise UserError("no state here", file=path, allowed=ALLOWED)
    return _restore(loaded, federation, folder, path, name)


def _restore(loaded: Loaded, federation: FederationConfig, folder: Path, path: Path, name: str | None) -> Learned:
    header = loaded.state.header
    _check(path, "federation", header.get("federation"), federation.name)
    _check(path, "node", header.get("node"), name)
    learner = _learner(federation, folder, header["node"])
    is_other_model = header.get("shape") != learner.shape_digest.hex()
    share, expected = header.get("share", list(WHOLE)), list(federation.gossip.patterns)
    if is_other_model and share != expected:
        raise _other(path, "share", share, str(expected), ORIGIN["share"])
    if header.get("schema", "") != digest_of(learner).hex():
        raise _other(path, "schema", header.get("schema"), digest_of(learner).hex(), ORIGIN["schema"])
    if is_other_model:
        raise _other(path, "model", header.get("shape"), learner.shape_digest.hex())
    state = replay(loaded)
    learner.load_local_state(state.local)
    return Learned(
        federation=federation.name,
        node=header["node"],
        rounds=state.rounds,
        version=state.version,
        vector=state.model,
        learner=learner,
        warnings=loaded.warnings,
    )


def _from_file(path: Path, federation_path: Path | None, name: str | None) -> Learned:
    content = read_file(path)
    metadata = metadata_of(content)
    federation = _federation(path, federation_path)
    _check(path, "federation", metadata.get("federation"), federation.name if "federation" in metadata else None)
    name = name or metadata.get("node")
    if name is None:
        names = ", ".join(member.name for member in federation.members)
        raise UserError("the file does not say whose it is", file=path, key="--node", allowed=names)
    learner = _learner(federation, path.parent, name)
    try:
        vector = from_safetensors(learner, content)
    except UserError as error:
        error.file = str(path)
        raise
    return Learned(
        federation=federation.name,
        node=name,
        rounds=_count(metadata, "rounds"),
        version=_count(metadata, "version"),
        vector=vector,
        learner=learner,
        warnings=[],
    )


def _federation(path: Path, given: Path | None) -> FederationConfig:
    """Return the federation in the given file, or else the nearest one in the folders above `path`."""
    if given is not None:
        return _for_readers(load_config(federation_file(given)), path)
    for folder in (path, *path.parents):
        if (folder / FILE_NAME).is_file():
            return _for_readers(load_config(folder / FILE_NAME), path)
    raise UserError(
        f"there is no {FILE_NAME} in this folder or above", file=path, key="--federation", allowed="a federation file"
    )


def _for_readers(federation: FederationConfig, path: Path) -> FederationConfig:
    """Apply the newest charter, which may be only beside the state; removed members can be read too."""
    for folder in (path, path.parent, path / STATE_DIR):
        federation = newest(federation, folder)
    names = {member.name for member in federation.present}
    back = set({member.name: member.index for member in federation.members if member.name not in names}.values())
    members = tuple(replace(each, retired=each.retired and each.index not in back) for each in federation.members)
    return replace(federation, members=members)


def _learner(federation: FederationConfig, folder: Path, name: str) -> Learner:
    find_member(federation, name)
    node = load_node(_node_file(federation, folder, name), federation, name)
    usual = Compute()
    # it may be another machine
    on_host = replace(
        node, compute=replace(node.compute, device=usual.device, precision=usual.precision, compile=usual.compile)
    )
    return load_learner(federation, on_host)


def _node_file(federation: FederationConfig, folder: Path, name: str | None) -> Path:
    """Return the node file in the named folder, or else the one beside the federation file."""
    here = folder / NODE_FILE
    return here if name is None or here.is_file() else node_file(federation, name)


def _check(path: Path, key: str, value: Any, expected: str | None) -> None:
    if expected is not None and value != expected:
        raise _other(path, key, value, expected)


def _other(path: Path, key: str, value: Any, expected: str, name: str | None = None) -> UserError:
    return UserError(f"this is the state of another {name or key}", file=path, key=key, value=value, allowed=expected)


def _count(metadata: dict[str, str], key: str) -> int | None:
    return int(metadata[key]) if metadata.get(key, "").isdecimal() else None
