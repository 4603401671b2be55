"""From a `Topology` to a graph file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from topologies.errors import not_written
from topologies.files.formats import STREAM, format_of
from topologies.graph import Topology


def write_topology(topology: Topology, path: Path | str, form: str | None = None) -> None:
    """Nodes keep their names; node-link JSON keeps spec and seed too. A file that is there is replaced when all of the
    new one is written, not before.

    Raises:
        TopologyError: the format cannot hold this graph, or the file cannot be written.
    """
    path = Path(path)
    pieces = _encoded(topology, path, form)
    first = next(pieces)

    def write(file: BinaryIO) -> None:
        file.write(first)
        file.writelines(pieces)
        file.flush()

    try:
        if path == STREAM:
            sys.stdout.flush()
            write(sys.stdout.buffer)
        else:
            replace(path, write)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise not_written("cannot write the graph file", error, key="target", path=path) from None


def _encoded(topology: Topology, path: Path, form: str | None) -> Iterator[bytes]:
    for piece in format_of(path, form).write(topology):
        yield piece.encode() if isinstance(piece, str) else piece


def replace(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` write the file beside the one that is there, or that a link leads to, and then put it in its place.
    A device is written to as it is.
    """
    if path.is_dir() or (path.exists() and not path.is_file()):
        with path.open("wb") as file:
            write(file)
    else:
        _replace(Path(os.path.realpath(path)), write)


def _replace(path: Path, write: Callable[[BinaryIO], None]) -> None:
    aside = path.with_name(f".{path.name[:100]}.{os.getpid()}.part")
    try:
        with aside.open("xb") as file:
            write(file)
        if path.exists():
            shutil.copymode(path, aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
