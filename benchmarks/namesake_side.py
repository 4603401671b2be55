"""The other side of `namesake.py`, for an environment that has that package and nothing of ours: prints its figures."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204, E402, I001
from __future__ import annotations

import json
import os
import resource
import sys
import time
from unittest.mock import MagicMock

import lightning
import numpy as np
import torch
from datasets import Dataset, DatasetDict

# It imports a data set of torchvision, whose releases fit one of torch each, and that is not used here.
sys.modules["torchvision"] = sys.modules["torchvision.datasets"] = MagicMock()
from p2pfl.communication.protocols.protobuff.grpc.client import GrpcClient
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.dataset.partition_strategies import RandomIIDPartitionStrategy
from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
from p2pfl.node import Node
from p2pfl.settings import Settings
from p2pfl.utils.topologies import TopologyFactory, TopologyType
from p2pfl.utils.utils import set_standalone_settings, wait_convergence
from sklearn.datasets import load_digits

SETTING = json.loads(sys.argv[1])
PATIENCE_S = 400.0


class Perceptron(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def forward(self, inputs):
        return self.layers(inputs)

    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self(batch["image"].float()), batch["label"])

    def test_step(self, batch):
        self.log("test_loss", self.training_step(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=SETTING["rate"])


class CountedBytes:
    """Counts the messages that all nodes send."""

    def __init__(self):
        self.sent, send = 0, GrpcClient.send

        def counted(client, message, *rest, **named):
            self.sent += message.ByteSize()
            return send(client, message, *rest, **named)

        GrpcClient.send = counted


def parts():
    """Return one part of the digits for each node, and the test set."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    splits = {
        name: Dataset.from_dict({"image": images[rows].tolist(), "label": labels[rows].tolist()})
        for name, rows in (("train", train), ("test", test))
    }
    data = P2PFLDataset(DatasetDict(splits))
    data.set_batch_size(SETTING["batch"])
    split = data.generate_partitions(SETTING["nodes"], RandomIIDPartitionStrategy)
    return split, torch.from_numpy(images[test]), torch.from_numpy(labels[test])


def accuracy(node, inputs, targets):
    first, first_bias, last, last_bias = map(torch.as_tensor, node.get_model().get_parameters())
    outputs = torch.relu(inputs @ first.T + first_bias) @ last.T + last_bias
    return float((outputs.argmax(1) == targets).float().mean())


def main():
    set_standalone_settings()
    Settings.general.DISABLE_RAY = True  # threads of this process, not actors
    counted = CountedBytes()
    split, inputs, targets = parts()
    nodes = [Node(LightningModel(Perceptron()), part, addr="127.0.0.1") for part in split]
    for node in nodes:
        node.start()
    TopologyFactory.connect_nodes(TopologyFactory.generate_matrix(TopologyType.RING, len(nodes)), nodes)
    wait_convergence(nodes, len(nodes) - 1, only_direct=False, wait=60)
    before = accuracy(nodes[0], inputs, targets)
    nodes[0].set_start_learning(rounds=SETTING["rounds"], epochs=1, trainset_size=len(nodes))
    trained_at, until = None, time.monotonic() + PATIENCE_S
    while (now := time.monotonic()) < until:
        found = [accuracy(node, inputs, targets) for node in nodes]
        if trained_at is None and any(one != before for one in found):
            trained_at = now
        if min(found) >= SETTING["goal"]:
            spent = resource.getrusage(resource.RUSAGE_SELF)
            figures = {
                "at": now,
                "seconds of learning": now - trained_at,
                "MB sent": counted.sent / 1e6,
                "CPU-seconds of the whole run": spent.ru_utime + spent.ru_stime,
            }
            print("\n" + json.dumps(figures), flush=True)
            break
        time.sleep(SETTING["look_s"])
    os._exit(0)  # its threads would go on for the rest of the rounds


if __name__ == "__main__":
    main()
