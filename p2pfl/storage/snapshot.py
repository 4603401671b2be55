"""Snapshots: magic, BLAKE2b-256 digest, then a State in the safetensors format. Written whole or not at all.

A snapshot carries the chain digest of the log up to it (`log_end`), so that a log which does not continue it is
never replayed on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from p2pfl.errors import StorageError
from p2pfl.storage import generations
from p2pfl.storage.disk import Piece, replace_file
from p2pfl.storage.state import State
from p2pfl.storage.tensors import pieces_of, state_of

MAGIC = b"p2pfls1\n"
_DIGEST_BYTES = 32
_HEAD_BYTES = len(MAGIC) + _DIGEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    generation: int
    state: State
    log_end: bytes


def save(folder: Path, snapshot: Snapshot) -> None:
    """Durable when this returns. Raises StorageError when the disk refuses; then nothing has changed."""
    metadata = {"generation": str(snapshot.generation), "log_end": snapshot.log_end.hex()}
    body = pieces_of(snapshot.state, metadata)
    path = generations.snapshot_path(folder, snapshot.generation)
    replace_file(path, [MAGIC + _digest(snapshot.generation, body), *body])


def size_bytes(state: State) -> int:
    """Of a snapshot of it, about: nothing is copied or written."""
    return _HEAD_BYTES + sum(piece.nbytes for piece in pieces_of(state, {}))


def load(folder: Path, generation: int) -> Snapshot:
    """Raises StorageError when the file cannot be read or is not exactly what was written."""
    path = generations.snapshot_path(folder, generation)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    body = memoryview(content)[_HEAD_BYTES:]
    if content[:_HEAD_BYTES] != MAGIC + _digest(generation, [body]):
        raise StorageError(f"{path} is damaged: its digest does not match")
    state, metadata = state_of(body)
    return Snapshot(generation=generation, state=state, log_end=bytes.fromhex(metadata["log_end"]))


def load_latest(folder: Path) -> tuple[Snapshot | None, list[str]]:
    """The newest snapshot that is whole, with a warning for each newer one that is not; None when there is none.

    Raises:
        StorageError: there are snapshots and none is whole.
    """
    warnings: list[str] = []
    for generation in reversed(generations.snapshots(folder)):
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


def _digest(generation: int, body: Iterable[Piece]) -> bytes:
    digest = hashlib.blake2b(generation.to_bytes(8, "little"), digest_size=_DIGEST_BYTES, person=b"p2pfl snapshot")
    for piece in body:
        digest.update(piece)
    return digest.digest()
