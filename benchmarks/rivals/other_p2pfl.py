"""The other p2pfl (PyPI, 0.4.4): TODO."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from common import CELL, evaluate, make_model, own_rows, train

# typed
from p2pfl.settings import Settings

Settings.general.DISABLE_RAY = True
Settings.set_from_dict(
    {
        "general": {"LOG_LEVEL": "WARNING"},
        "heartbeat": {"PERIOD": 1, "TIMEOUT": 10, "WAIT_CONVERGENCE": 1},
        "gossip": {
            "PERIOD": CELL.get("period", 0.05),
            "MODELS_PERIOD": CELL.get("models_period", 0.2),
            "MODELS_PER_ROUND": CELL.get("models", 8),
            "EXIT_ON_X_EQUAL_ROUNDS": 50,
            "AMOUNT_LAST_MESSAGES_SAVED": 10000,
            "MESSAGES_PER_PERIOD": 1000,
        },
        "training": {"AGGREGATION_TIMEOUT": 20},
    }
)
from datasets import Dataset, DatasetDict  # noqa: E402 - the settings are read on import
from p2pfl.communication.protocols.protobuff.grpc import GrpcCommunicationProtocol  # noqa: E402
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol  # noqa: E402
from p2pfl.learning.aggregators.fedavg import FedAvg  # noqa: E402
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset  # noqa: E402
from p2pfl.learning.frameworks.learner import Learner  # noqa: E402
from p2pfl.learning.frameworks.p2pfl_model import P2PFLModel  # noqa: E402
from p2pfl.node import Node  # noqa: E402
from p2pfl.utils.topologies import TopologyFactory  # noqa: E402
from p2pfl.utils.utils import wait_convergence  # noqa: E402

# end

PINS = ["p2pfl[dp]==0.4.4", "torch", "pyarrow<21", "huggingface_hub<1"]
CELLS = {"processes": {"rate": 0.4, "steps": 50}, "memory": {"rate": 0.4, "steps": 50, "simulated": True}}
SEARCH = []
FULL = "complete"


# typed
class Model(P2PFLModel):
    def get_parameters(self) -> Any:
        return [parameter.detach().numpy().copy() for parameter in self.model.parameters()]

    def set_parameters(self, params: Any) -> None:
        values = self.decode_parameters(params)[0] if isinstance(params, bytes) else params
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), values, strict=True):
                parameter.copy_(torch.from_numpy(value))

    def get_framework(self) -> str:
        return "pytorch"


class Local(Learner):
    def __init__(self, place: int) -> None:
        super().__init__()
        self.place, self.trained = place, False

    def fit(self) -> Any:
        self.trained = True
        train(self.get_model().get_model(), self.place)
        self.get_model().set_contribution([self.addr], self.get_data().get_num_samples())
        return self.get_model()

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if self.trained:
            evaluate(self.get_model().get_model(), self.place)

    def evaluate(self) -> dict[str, float]:
        return {}

    def interrupt_fit(self) -> None:
        pass

    def get_framework(self) -> str:
        return "pytorch"


def make_node(place: int, address: str, protocol: Any) -> Any:
    labels = own_rows(place)[1].tolist()
    data = P2PFLDataset(DatasetDict({"train": Dataset.from_dict({"label": labels})}), batch_size=CELL["batch"])
    node = Node(Model(make_model()), data, address, learner=Local(place), aggregator=FedAvg(), protocol=protocol)
    node.start()
    return node


def learn(node: Any) -> None:
    node.set_start_learning(rounds=CELL["rounds"], epochs=1, trainset_size=CELL.get("trainset", CELL["nodes"]))
    while True:
        time.sleep(1)


# end


def one(place: int) -> None:
    nodes, complete = CELL["nodes"], CELL.get("graph") == FULL
    # typed for processes
    addresses = [f"127.0.0.1:{9000 + each}" for each in range(nodes)]
    node = make_node(place, addresses[place], GrpcCommunicationProtocol())
    for other in range(place) if complete else [(place + 1) % nodes]:
        while not node.connect(addresses[other]):
            time.sleep(0.2)
    wait_convergence([node], nodes - 1, wait=100)
    Path(f"known{place}").touch()
    while len(list(Path().glob("known*"))) < nodes:
        time.sleep(0.2)
    if place == 0:
        learn(node)
    threading.Event().wait()
    # $ python other_p2pfl.py NODE (for each node)
    # end


def memory() -> None:
    # typed for memory
    nodes = [make_node(place, f"node-{place}", MemoryCommunicationProtocol()) for place in range(CELL["nodes"])]
    graph = "full" if CELL.get("graph") == FULL else "ring"
    TopologyFactory.connect_nodes(TopologyFactory.generate_matrix(graph, len(nodes)), nodes)
    wait_convergence(nodes, len(nodes) - 1, wait=100)
    learn(nodes[0])
    # $ python other_p2pfl.py
    # end


if __name__ == "__main__":
    if CELL.get("simulated"):
        memory()
    elif sys.argv[1:]:
        one(int(sys.argv[1]))
    else:
        started = [subprocess.Popen([sys.executable, __file__, str(place)]) for place in range(CELL["nodes"])]
        for each in started:
            each.wait()
