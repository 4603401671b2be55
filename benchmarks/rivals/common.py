"""What all rivals share, in their own environments: data, first weights, model, local steps, test, and what they tell.

It needs numpy and torch alone. `run.py` writes the split once, by p2pfl, as x.npy and y.npy of all nodes' rows,
`rows0`, `rows1`, ... of each node, `test_x` and `test_y`, and the first weights `w0`, `w1`, ... in torch's order; all
processes map the same files. A script finds its cell (folder, nodes, steps, batch, rate, rounds and what its own CELLS
name) in RIVAL_CELL, and tells what happens as JSON lines in the cell's events.jsonl.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

CELL: dict[str, Any] = json.loads(os.environ.get("RIVAL_CELL", "{}"))
EVENTS = "events.jsonl"
torch.set_num_threads(1)


def tell(**event: Any) -> None:
    """Append one event, whole also where several processes write."""
    line = json.dumps({"time": time.time()} | event) + "\n"
    with (Path(CELL["folder"]) / EVENTS).open("ab", buffering=0) as file:
        file.write(line.encode())


@cache
def arrays() -> dict[str, np.ndarray[Any, Any]]:
    return {path.stem: np.load(path, mmap_mode="c") for path in Path(CELL["folder"]).glob("*.npy")}


@cache
def test_set() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(arrays()["test_x"]), torch.from_numpy(arrays()["test_y"])


@cache
def own_rows(node: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a node's images float32, as its task has them, and labels (n,) int64, and tell its process."""
    rows = arrays()[f"rows{node}"]
    tell(node=node, pid=os.getpid())
    return torch.from_numpy(arrays()["x"][rows]), torch.from_numpy(arrays()["y"][rows])


def make_model() -> nn.Sequential:
    """Build p2pfl's network with the common first weights: matrices make a perceptron, kernels before them GN-LeNet."""
    weights = [arrays()[f"w{place}"] for place in range(sum(name.startswith("w") for name in arrays()))]
    layers: list[nn.Module] = []
    for weight in weights:
        if weight.ndim == 4:
            out, into, side = weight.shape[:3]
            layers += [nn.Conv2d(into, out, side, padding=side // 2), nn.MaxPool2d(2), nn.GroupNorm(2, out), nn.ReLU()]
        elif weight.ndim == 2:
            layers += [nn.Flatten(), nn.Linear(weight.shape[1], weight.shape[0]), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight))
    return model


@cache
def begin(node: int) -> None:
    """Tell, once in a process, that a node takes its first step."""
    tell(node=node, event="begun")


def train(model: nn.Module, node: int, steps: int = 0) -> float:
    """Take the cell's local steps of SGD on a node's rows, in shuffled passes; return the last loss.

    SGD is written out, as in p2pfl: the first object of torch.optim loads torch's compiler, 1.3 to 2 CPU-seconds and
    80 MB in each process, which no rival asks for.
    """
    inputs, targets = own_rows(node)
    begin(node)
    order, loss = torch.empty(0, dtype=torch.int64), torch.tensor(0.0)
    for _ in range(steps or CELL["steps"]):
        if len(order) < min(CELL["batch"], len(inputs)):
            order = torch.randperm(len(inputs))
        rows, order = order[: CELL["batch"]], order[CELL["batch"] :]
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-CELL["rate"])  # type: ignore[arg-type]
    return float(loss.detach())


def evaluate(model: nn.Module, node: int | None = None) -> float:
    """Return the accuracy on the common test set, and tell it: of a node after its round, or of all nodes (None)."""
    with torch.no_grad():
        return score(model(test_set()[0]), test_set()[1], node)


def evaluate_common(model: nn.Module, node: int) -> float:
    """Test a model that all nodes have received: once for all, but where one is killed each tells that it goes on."""
    return evaluate(model, node if "kill" in CELL else None) if "kill" in CELL or node == 0 else 0.0


def score(outputs: torch.Tensor, targets: torch.Tensor, node: int | None = None) -> float:
    accuracy = int((outputs.argmax(1) == targets).sum()) / len(targets)
    for each in range(CELL["nodes"]) if node is None else [node]:
        tell(node=each, accuracy=accuracy)
    return accuracy
