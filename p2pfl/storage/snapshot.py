"""Snapshots: magic, digest (`digests`), then a State in the safetensors format. Written completely or not at all.

A snapshot stores the chain digest at the end of the preceding log (`log_end`), so that a log that does not continue it
is never replayed on it. Any safetensors reader can open the part after magic and digest: arrays are stored as
`array:NAME`, blobs as bytes under `blob:NAME`, the header as JSON in the metadata. A snapshot is written piece by
piece, to avoid a second copy of the arrays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import StorageError
from p2pfl.storage.disk import replace_file, snapshot_generations, snapshot_path
from p2pfl.storage.wal import FAST, PLAIN, FileFormat, format_for

_DIGEST_BYTES = 32
_HEAD_BYTES = len(PLAIN.snapshot_magic) + _DIGEST_BYTES

_DTYPES = {
    "b1": "BOOL",
    **{f"i{size}": f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{f"u{size}": f"U{8 * size}" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"F{8 * size}" for size in (2, 4, 8)},
}
_NAMES = {name: np.dtype("<" + dtype) for dtype, name in _DTYPES.items()}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A consistent copy of the state. `header` is JSON; arrays keep their shape and dtype (booleans, integers, floats).

    Arrays that were read are read-only, and share the memory of the whole snapshot.
    """

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    blobs: dict[str, bytes | memoryview] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot and its place in the chain of logs.

    `has_log` says that a log of the same generation was durable before it, and holds what has happened since.
    """

    generation: int
    state: State
    log_end: bytes
    has_log: bool = False


def save(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot durably. Raises StorageError if the disk refuses; nothing has changed in that case."""
    metadata = {"generation": str(snapshot.generation), "log_end": snapshot.log_end.hex()}
    metadata |= {"has_log": "yes"} if snapshot.has_log else {}
    body = pieces_of(snapshot.state, metadata)
    path = snapshot_path(folder, snapshot.generation)
    form = format_for(_HEAD_BYTES + sum(piece.nbytes for piece in body))
    replace_file(path, [_head(form, snapshot.generation, body), *body])


def size_bytes(state: State) -> int:
    """Return the approximate size of a snapshot of the state; nothing is copied or written."""
    return _HEAD_BYTES + sum(piece.nbytes for piece in pieces_of(state, {}))


def load(folder: Path, generation: int) -> Snapshot:
    """Read a snapshot. Raises StorageError if the file cannot be read or is not exactly what was written."""
    path = snapshot_path(folder, generation)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    body = memoryview(content)[_HEAD_BYTES:]
    if content[:_HEAD_BYTES] != _head(FAST if content.startswith(FAST.snapshot_magic) else PLAIN, generation, [body]):
        raise StorageError(f"{path} is damaged: its digest does not match")
    state, metadata = state_of(body)
    end, has_log = bytes.fromhex(metadata["log_end"]), "has_log" in metadata
    return Snapshot(generation=generation, state=state, log_end=end, has_log=has_log)


def load_latest(folder: Path) -> tuple[Snapshot | None, list[str]]:
    """Return the newest intact snapshot, or None, and a warning for each newer one that is damaged.

    Raises StorageError if there are snapshots but none is intact.
    """
    warnings: list[str] = []
    for generation in reversed(snapshot_generations(folder)):
        try:
            return load(folder, generation), warnings
        except StorageError as damage:
            warnings.append(str(damage))
    if warnings:
        raise StorageError(
            f"no snapshot in {folder} is usable: {'; '.join(warnings)}. Restore one of these files from a backup, "
            "or move the folder away to start anew",
        )
    return None, []


def pieces_of(state: State, metadata: dict[str, str]) -> list[memoryview]:
    """Return the format's parts in order. They refer to the arrays' own memory: write them before it changes."""
    named = {f"array:{name}": _plain(name, array) for name, array in state.arrays.items()}
    named |= {f"blob:{name}": np.ndarray(len(blob), np.uint8, blob) for name, blob in state.blobs.items()}
    table: dict[str, Any] = {"__metadata__": {**metadata, "header": json.dumps(state.header)}}
    begin = 0
    for name, array in named.items():
        entry = {"dtype": _DTYPES[array.dtype.str[1:]], "shape": array.shape}
        table[name] = entry | {"data_offsets": (begin, begin + array.nbytes)}
        begin += array.nbytes
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % _ALIGNMENT)
    contents = [array.reshape(-1).view(np.uint8).data for array in named.values()]
    return [memoryview(len(head).to_bytes(8, "little") + head), *contents]


def state_of(body: memoryview) -> tuple[State, dict[str, str]]:
    """Return the state and metadata from the bytes made by `pieces_of`, whose digest has already been checked."""
    begin = 8 + int.from_bytes(body[:8], "little")
    table = json.loads(bytes(body[8:begin]))
    metadata = table.pop("__metadata__")
    arrays: dict[str, NDArray[Any]] = {}
    blobs: dict[str, bytes | memoryview] = {}
    for key, entry in table.items():
        kind, name = key.split(":", 1)
        first, last = entry["data_offsets"]
        content = body[begin + first : begin + last]
        if kind == "array":
            arrays[name] = np.ndarray(entry["shape"], _NAMES[entry["dtype"]], content)
        else:
            blobs[name] = bytes(content)
    return State(header=json.loads(metadata.pop("header")), arrays=arrays, blobs=blobs), metadata


def _head(form: FileFormat, generation: int, body: list[memoryview]) -> bytes:
    """Return magic and digest of a snapshot with that body."""
    return form.snapshot_magic + form.digest(b"p2pfl snapshot", generation.to_bytes(8, "little"), body)


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, contiguous and little-endian."""
    if array.dtype.str[1:] not in _DTYPES:
        raise ValueError(f"array {name!r} of dtype {array.dtype} cannot be stored")
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")
