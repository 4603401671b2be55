"""A State in the safetensors format, written piece by piece so that no second copy of the arrays is made.

Any safetensors reader opens the result. Arrays stand under `array:NAME`, blobs as bytes under `blob:NAME`, the
header as JSON in the metadata.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.storage.state import State

_DTYPES = {
    "b1": "BOOL",
    **{f"i{size}": f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{f"u{size}": f"U{8 * size}" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"F{8 * size}" for size in (2, 4, 8)},
}
_NAMES = {name: np.dtype("<" + dtype) for dtype, name in _DTYPES.items()}
_ALIGNMENT = 8


def pieces_of(state: State, metadata: dict[str, str]) -> list[memoryview]:
    """The format's parts in order. They refer to the arrays' own memory: write them before it changes."""
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
    """The inverse of `pieces_of`, for bytes whose digest was checked before."""
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


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array, contiguous and little-endian."""
    if array.dtype.str[1:] not in _DTYPES:
        raise ValueError(f"array {name!r} of dtype {array.dtype} cannot be stored")
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")
