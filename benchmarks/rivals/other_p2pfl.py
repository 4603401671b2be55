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

PINS = ["p2pfl[dp]==0.4.4", "torch", "pyarrow<21", "huggingface_hub<1"]
CELLS = {"processes": {"rate": 0.4, "steps": 50}, "memory": {"rate": 0.4, "steps": 50, "simulated": True}}
SEARCH = [
    ("memory", {"rate": 0.4, "simulated": True}),
    ("memory", {"rate": 0.4, "steps": 50, "simulated": True, "graph": "full"}),
    ("memory", {"rate": 0.4, "steps": 50, "simulated": True, "models_period": 0.02}),
    ("memory", {"rate": 0.4, "steps": 50, "simulated": True, "models_period": 1.0, "models": 2}),
    ("memory", {"rate": 0.4, "simulated": True, "trainset": 4}),
]

if __name__ == "__main__" and not (CELL.get("simulated") or sys.argv[1:]):  # it does not need what a node imports
    # typed for processes
    # $ python other_p2pfl.py NODE (for each node)
    # end
    started = [subprocess.Popen([sys.executable, __file__, str(place)]) for place in range(CELL["nodes"])]
    sys.exit(max(each.wait() for each in started))

# typed
from p2pfl.settings import Settings  # noqa: E402 - only a node needs it

Settings.general.DISABLE_RAY = True  # which the import below would start
Settings.set_from_dict(
    {
        "general": {"LOG_LEVEL": "ERROR"},
        "heartbeat": {"PERIOD": 1, "TIMEOUT": 10, "WAIT_CONVERGENCE": 1},
        "gossip": {"PERIOD": 0.05, "AMOUNT_LAST_MESSAGES_SAVED": 10000, "EXIT_ON_X_EQUAL_ROUNDS": 50},
        "training": {"AGGREGATION_TIMEOUT": 20},
    }
)
Settings.gossip.MODELS_PERIOD = CELL.get("models_period", 0.2)
Settings.gossip.MODELS_PER_ROUND = CELL.get("models", 8)
from datasets import Dataset, DatasetDict  # noqa: E402 - the settings are read on import
from p2pfl.communication.protocols.protobuff.grpc import GrpcCommunicationProtocol  # noqa: E402
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol  # noqa: E402
from p2pfl.learning.aggregators.fedavg import FedAvg  # noqa: E402
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset  # noqa: E402
from p2pfl.learning.frameworks.learner import Learner  # noqa: E402
from p2pfl.learning.frameworks.p2pfl_model import P2PFLModel  # noqa: E402
from p2pfl.utils.topologies import TopologyFactory  # noqa: E402
from p2pfl.utils.utils import wait_convergence  # noqa: E402

from p2pfl.node import Node  # noqa: E402

# end


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
    nodes = CELL["nodes"]
    # typed for processes
    addresses = [f"127.0.0.1:{9000 + each}" for each in range(nodes)]
    node = make_node(place, addresses[place], GrpcCommunicationProtocol())
    while not node.connect(addresses[(place + 1) % nodes]):
        time.sleep(0.2)
    wait_convergence([node], nodes - 1, wait=300)
    Path(f"known{place}").touch()
    while len(list(Path().glob("known*"))) < nodes:
        time.sleep(0.2)
    if place == 0:
        learn(node)
    threading.Event().wait()
    # end


def memory() -> None:
    # typed for memory
    nodes = [make_node(place, f"node-{place}", MemoryCommunicationProtocol()) for place in range(CELL["nodes"])]
    TopologyFactory.connect_nodes(TopologyFactory.generate_matrix(CELL.get("graph", "ring"), len(nodes)), nodes)
    wait_convergence(nodes, len(nodes) - 1, wait=300)
    learn(nodes[0])
    # $ python other_p2pfl.py
    # end


if __name__ == "__main__":
    memory() if CELL.get("simulated") else one(int(sys.argv[1]))
