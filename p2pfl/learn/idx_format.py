"""The IDX files of MNIST and its likes: unsigned bytes behind a magic number and big-endian sizes, plain or gzipped."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in one file, plain or `.gz`.

    Raises:
        UserError: the file cannot be read, is of another kind or of another length than its header says.
    """
    content = _content(path)
    header = 4 + 4 * dimensions
    expected = 0x0800 + dimensions  # unsigned bytes, so many dimensions
    magic = struct.unpack(">I", content[:4])[0] if len(content) >= header else None
    if magic != expected:
        raise UserError("this is no such IDX file", file=path, key="magic number", value=magic, allowed=str(expected))
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    values = np.frombuffer(content, dtype=np.uint8, offset=header)
    if values.size != np.prod(shape, dtype=object):
        raise UserError("length and header differ", file=path, value=values.size, allowed=f"{shape} bytes")
    return values.reshape(shape)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"this file cannot be read: {error}", file=path) from error


def find_idx(folder: Path, name: str) -> Path:
    """The file `name` or `name.gz` below `folder`, in torchvision's layout or directly.

    Raises:
        UserError: there is none.
    """
    for path in _candidates(folder, name):
        if path.is_file():
            return path
    raise UserError(
        f"there is no {name}",
        key="data.path",
        value=str(folder),
        allowed=f"a folder with MNIST/raw/{name} or {name}, plain or .gz",
    )


def has_idx(folder: Path, name: str) -> bool:
    return any(path.is_file() for path in _candidates(folder, name))


def _candidates(folder: Path, name: str) -> list[Path]:
    places = [folder / "MNIST" / "raw", folder / "raw", folder]
    return [place / (name + suffix) for place in places for suffix in ("", ".gz")]
