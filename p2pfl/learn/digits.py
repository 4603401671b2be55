"""Built-in tasks of handwritten digits, and images stored like them.

`digits`: 1,797 scanned digits of 8 x 8 pixels (data/SOURCE.txt), and a small MLP. The common test set is every fifth
image, ordered by label: 360 images, about 36 of each digit, the same for every seed. The other 1,437 are partitioned.

`mnist-idx`: a folder of IDX files in torchvision's layout (MNIST, Fashion-MNIST, KMNIST). With `path` in a node's
`[data]`, all training images in the folder belong to that node; with `path` in `[task]`, they are partitioned. The
t10k files, if there are any, are the common test set. An IDX file is a magic number and big-endian sizes, followed by
unsigned bytes; it may be gzipped.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import cache
from importlib.resources import as_file, files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.task import NodeContext, Pair, Task, at_least, parse_partition

if TYPE_CHECKING:
    from torch import Tensor, nn

PIXELS, CLASSES, BRIGHTEST = 64, 10, 16
_TEST_EVERY = 5

SIDE, IDX_CLASSES, IDX_BRIGHTEST = 28, 10, 255


def digits(*, partition: str = "iid", hidden: int = 32) -> Task:
    """Build the task. `partition` is a spec as in `p2pfl.learn.task`; `hidden` units give an MLP 64-hidden-10
    (2,410 parameters).
    """
    parse_partition(partition)
    at_least("hidden", hidden, 1)

    def data(node: NodeContext) -> tuple[Pair, Pair]:
        node.check_local()
        (inputs, targets), test = _digits()
        rows = node.partition(targets, partition)
        return (inputs[rows], targets[rows]), test

    layers = (PIXELS, hidden, CLASSES)
    return Task(name="digits", model=lambda: mlp(*layers), layers=layers, data=data)


@cache
def load_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the training and test pair: images (n, 64) float32 in [0, 1], labels (n,) int64. The tensors are shared:
    do not write to them.
    """
    import torch  # noqa: PLC0415 - the data are read without it, too

    train, test = ((torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in _digits())
    return train, test


@cache
def _digits() -> tuple[Pair, Pair]:
    """Return the same as arrays."""
    with as_file(files("p2pfl.learn") / "data" / "digits.npz") as path, np.load(path, allow_pickle=False) as table:
        inputs, targets = table["images"].astype(np.float32) / BRIGHTEST, table["labels"].astype(np.int64)
    order = np.argsort(targets, kind="stable")
    test = order[::_TEST_EVERY]
    train = np.setdiff1d(order, test)
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def mlp(*sizes: int) -> nn.Sequential:
    """Build fully connected layers with ReLU between them. Inputs are flattened to (b, sizes[0]); outputs are (b,
    sizes[-1]).
    """
    from torch import nn  # noqa: PLC0415 - as above

    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise(sizes):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mnist_idx(*, path: str = "", model: str = "mlp", hidden: int = 128, partition: str | None = None) -> Task:
    """Build the task. `path` is relative to the federation file; without it, every node names its own."""
    at_least("hidden", hidden, 1)
    if model != "mlp":
        text = "is gone: the model is an mlp; for another, such as the cnn before, write a task of your own"
        raise UserError(text, key="task.model", value=model)
    if partition is not None:
        parse_partition(partition)

    def data(node: NodeContext) -> tuple[Pair, Pair | None]:
        node.check_local("path")
        folder = node.path()
        images, labels = _read(folder, "train")
        test = _pair(*_read(folder, "t10k")) if has_idx(folder, "t10k-images-idx3-ubyte") else None
        return _pair(images, labels, node.own_rows(labels, partition)), test

    del path  # NodeContext.path looks it up
    layers = (SIDE * SIDE, hidden, IDX_CLASSES)
    return Task(name="mnist-idx", model=lambda: mlp(*layers), layers=layers, data=data)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read the array in a file, plain or `.gz`.

    Raises UserError: the file cannot be read, is not of this kind, or does not have the length that its header
    declares.
    """
    content = _content(path)
    header = 4 + 4 * dimensions
    expected = 0x0800 + dimensions  # unsigned bytes, with this many dimensions
    magic = struct.unpack(">I", content[:4])[0] if len(content) >= header else None
    if magic != expected:
        raise UserError(
            "this is not an IDX file of this kind", file=path, key="magic number", value=magic, allowed=str(expected)
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    values = np.frombuffer(content, dtype=np.uint8, offset=header)
    if values.size != np.prod(shape, dtype=object):
        raise UserError("the length does not match the header", file=path, value=values.size, allowed=f"{shape} bytes")
    return values.reshape(shape)


def find_idx(folder: Path, name: str) -> Path:
    """Find the file `name` or `name.gz` below `folder`, in torchvision's layout or directly.

    Raises UserError: there is none.
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


def _read(folder: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the images (n, 28, 28) and labels (n,) of one set, and check them against each other."""
    image_file, label_file = (find_idx(folder, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise UserError(
            "the images have a different size", file=image_file, value=images.shape[1:], allowed=f"{SIDE} x {SIDE}"
        )
    if len(images) != len(labels):
        raise UserError(
            "the numbers of labels and images differ", file=label_file, value=len(labels), allowed=f"{len(images)}"
        )
    if len(labels) == 0 or labels.max() >= IDX_CLASSES:
        highest = int(labels.max()) if len(labels) else "nothing"
        raise UserError("labels are wrong", file=label_file, value=highest, allowed=f"0 to {IDX_CLASSES - 1}")
    return images, labels


def _pair(images: NDArray[np.uint8], labels: NDArray[np.uint8], rows: Any = slice(None)) -> Pair:
    """Convert only the node's own rows to floats; as bytes, the others take a quarter of the memory."""
    inputs = images[rows].astype(np.float32)[:, None]
    inputs /= IDX_BRIGHTEST
    return inputs, labels[rows].astype(np.int64)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"this file cannot be read: {error}", file=path) from error


def _candidates(folder: Path, name: str) -> list[Path]:
    places = [folder / "MNIST" / "raw", folder / "raw", folder]
    return [place / (name + suffix) for place in places for suffix in ("", ".gz")]
