"""Built-in task `mnist-idx`: a folder of IDX files in torchvision's layout (MNIST, Fashion-MNIST, KMNIST).

`path` stands in a node's `[data]`, and then all of the folder's training images are that node's, or in `[task]`, and
then they are partitioned. The t10k files, where there are any, are the common test set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.idx_format import find_idx, has_idx, read_idx
from p2pfl.learn.networks import mlp, small_cnn
from p2pfl.learn.options import at_least
from p2pfl.learn.partition import parse_partition
from p2pfl.learn.task import NodeContext, Pair, Task

SIDE, CLASSES, BRIGHTEST = 28, 10, 255


def mnist_idx(
    *, path: str = "", model: Literal["mlp", "cnn"] = "mlp", hidden: int = 128, partition: str | None = None
) -> Task:
    """`path` is relative to the federation file; without it every node names its own. `hidden` is for the mlp."""
    at_least("hidden", hidden, 1)
    if partition is not None:
        parse_partition(partition)

    def data(node: NodeContext) -> tuple[Pair, Pair | None]:
        node.check_local("path")
        folder = node.path()
        images, labels = _read(folder, "train")
        test = _pair(*_read(folder, "t10k")) if has_idx(folder, "t10k-images-idx3-ubyte") else None
        return _pair(images, labels, node.own_rows(labels, partition)), test

    def make() -> torch.nn.Module:
        return small_cnn() if model == "cnn" else mlp(SIDE * SIDE, hidden, CLASSES)

    del path  # NodeContext.path finds it
    return Task(name="mnist-idx", model=make, data=data)


def _read(folder: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 28, 28) and labels (n,) of one set, checked against each other."""
    image_file, label_file = (find_idx(folder, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise UserError("images of another size", file=image_file, value=images.shape[1:], allowed=f"{SIDE} x {SIDE}")
    if len(images) != len(labels):
        raise UserError(
            "another number of labels than images", file=label_file, value=len(labels), allowed=f"{len(images)}"
        )
    if len(labels) == 0 or labels.max() >= CLASSES:
        found = int(labels.max()) if len(labels) else "nothing"
        raise UserError("labels are wrong", file=label_file, value=found, allowed=f"0 to {CLASSES - 1}")
    return images, labels


def _pair(images: NDArray[np.uint8], labels: NDArray[np.uint8], rows: Any = slice(None)) -> Pair:
    """Only the node's own rows become floats: a quarter of the memory for the rest."""
    inputs = torch.from_numpy(images[rows].astype(np.float32)).div_(BRIGHTEST).unsqueeze_(1)
    return inputs, torch.from_numpy(labels[rows].astype(np.int64))
