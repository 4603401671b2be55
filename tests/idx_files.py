"""Images and labels in IDX files, as MNIST has them."""

from __future__ import annotations

import gzip
import struct

import numpy as np


def idx(array, magic=None):
    header = struct.pack(">I", magic or 0x0800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_set(folder, prefix, count=20, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    contents = {
        "images-idx3": idx(rng.integers(0, 256, (count, 28, 28))),
        "labels-idx1": idx(np.arange(count) % 10),
    }
    for kind, content in contents.items():
        packed = gzip.compress(content) if suffix else content
        (folder / f"{prefix}-{kind}-ubyte{suffix}").write_bytes(packed)
