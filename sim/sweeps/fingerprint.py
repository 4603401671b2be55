"""The inputs on which the result of a run depends, and their hash: a report with this name need not be computed again.

They are options, seed, the contents of every file that the options lead to, and the software. Left out are the folders
of the files, and what a task's own code imports or reads beyond the files that the federation file names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from p2pfl.config.load import NODE_FILE_NAME
from p2pfl.config.tables import read_document
from p2pfl.errors import UserError
from sim.attacks import file_of
from sim.sweeps.model import FILES, NONE, Job, Options
from topologies.families import parse
from topologies.files.content import is_file

DISTRIBUTION = "p2pfl-gossip"
SOURCE = {
    "p2pfl": ("aggregate", "chance.py", "compress", "config", "core", "engine", "learn", "reporting", "wire"),
    "sim": (),
    "topologies": (),
}
"""Packages, or parts of them, whose code determines what a run does."""
IDLE = ("cli", "plans", "sweeps", "plots.py", "__pycache__")
"""Parts of these packages that no run uses."""
KEY_DIGITS = 32


def make_job(options: Options, seed: int) -> Job:
    identity = identify(options, seed)
    return Job(options=options, seed=seed, identity=identity, key=key_of(identity))


def identify(options: Options, seed: int) -> dict[str, Any]:
    """Return all inputs of a run, as JSON would store them."""
    plain = _without_idle_lies(options)
    contents: dict[str, str] = {}
    for name in FILES:
        if (path := plain.pop(name, NONE)) != NONE:
            contents |= {f"{name}{part}": digest for part, digest in _document(_file(Path(path))).items()}
            if name == "base":
                contents |= _own_data(_file(Path(path)).parent)
    if isinstance(spec := plain.get("topology"), str):
        plain["topology"], graph = _graph(spec, Path())
        contents |= {f"topology{part}": digest for part, digest in graph.items()}
    if isinstance(attack := plain.get("attack"), str) and (path := file_of(attack)) is not None:
        plain["attack"] = attack.replace(str(path), "a file")
        contents["attack"] = _digest(path)
    return {"options": plain, "seed": seed, "contents": contents, "software": software()}


def key_of(identity: Mapping[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:KEY_DIGITS]


@cache
def software() -> dict[str, str]:
    """Return the version and a digest of the source: a changed line may change every result."""
    total = hashlib.sha256()
    for name, text in sorted(_source()):
        total.update(f"{name}\0{hashlib.sha256(text).hexdigest()}\n".encode())
    try:
        number = version(DISTRIBUTION)
    except PackageNotFoundError:
        number = "not installed"
    return {"version": number, "source": total.hexdigest()[:KEY_DIGITS]}


def _without_idle_lies(options: Options) -> dict[str, Any]:
    """Remove liars that do not lie, since the run is the same without them."""
    plain = dict(options)
    if plain.get("byzantine") == 0 or plain.get("attack") == NONE:
        plain |= {"byzantine": 0, "attack": NONE}
    return plain


def _source() -> Iterator[tuple[str, bytes]]:
    for package, parts in SOURCE.items():
        spec = find_spec(package)
        for root in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in sorted(root.rglob("*.py")):
                part = path.relative_to(root).parts
                if part[0] not in IDLE and (not parts or part[0] in parts):
                    yield f"{package}/{'/'.join(part)}", path.read_bytes()


def _file(path: Path) -> Path:
    return path / "federation.toml" if path.is_dir() else path


def _document(path: Path) -> dict[str, str]:
    """Return digests of a TOML file and of every file named by a value in it."""
    found = {"": _digest(path)}
    try:
        document = read_document(path)
    except UserError:
        return found  # building the run reports what is wrong with it
    for key, text in _texts(document):
        found |= {f": {text}{part}": digest for part, digest in _files_of_value(key, text, path.parent).items()}
    return found


def _files_of_value(key: str, text: str, folder: Path) -> dict[str, str]:
    """Digest the files named by a value: a graph, a task's file (`task.py:object`), a table of speeds, a task's
    data.
    """
    if key == "topology":
        return _graph(text, folder)[1]
    try:
        text = str(file_of(text) or text) if key == "attack" else text
        place = folder / Path(text.rpartition(":")[0] if ".py:" in text else text).expanduser()
        if place.is_dir() and (key == "path" or key.endswith("_path")):
            return {f"/{path.name}": _digest(path) for path in sorted(place.iterdir()) if path.is_file()}
        return {"": _digest(place)} if place.is_file() else {}
    except (OSError, ValueError, RuntimeError):
        return {}  # plain text, not a path


def _own_data(folder: Path) -> dict[str, str]:
    """Digest what nodes whose folders are beside the federation file learn from."""
    found = {}
    for path in sorted(folder.glob(f"*/{NODE_FILE_NAME}")):
        with suppress(UserError):  # building the run reports what is wrong with it
            data = _data_of(path, path.stat().st_mtime_ns)
            found[path.parent.name] = json.dumps(data, sort_keys=True, default=str)
            for key, text in _texts(data):
                digests = _files_of_value(key, text, path.parent)
                found |= {f"{path.parent.name} {key}{part}": digest for part, digest in digests.items()}
    return found


@cache
def _data_of(path: Path, _changed_ns: int) -> Any:
    return read_document(path).get("data", {})


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield key, value
        case dict():
            for name in value:
                yield from _texts(value[name], name)
        case list():
            for one in value:
                yield from _texts(one, key)


def _graph(spec: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Return the spec without the folders of its files, and the digests of these files."""
    if is_file(spec):
        return "a file", {"": _digest(folder / spec)}
    try:
        labels = parse(spec).parameters.get("labels")
    except ValueError:
        return spec, {}
    return (spec.replace(str(labels), "a file"), {" labels": _digest(folder / labels)}) if labels else (spec, {})


def _digest(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return _digest_of(path, stat.st_mtime_ns, stat.st_size)


@cache
def _digest_of(path: Path, _changed_ns: int, _size: int) -> str:
    """Digest a file; one that many runs share is read once."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"
