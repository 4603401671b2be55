"""The other project called p2pfl: FedAvg of nodes without a server, over gRPC or in one process's memory.

The search, seed 0, load 1 to 7: s to .9 after the start, rounds, CPU-s in all: processes, 50 steps at .4: 25.6, 13,
59; 20: 34.9, 17, 73; memory, 50: 14.2, 11, 11.6; 20: 16.8, 15, 12.1; 50 and the full graph: 19.0, 14, 17.2; 50 and
models once a second to two nodes: .878 after 75 s; 20 and four that train: 14.5, 17, 5.9. Rounds by steps and rate are
FedAvg's, see flower.py. Its defaults are unkind here: four nodes train, models go out once a second, to two nodes, and
Lightning's learner takes rows in their order; so all train, models go out five times a second, and `Local` is a
learner of one's own with the common steps, tested as soon as a round's model is there. The graph carries votes and
heartbeats; models go straight to all that train. Its extra for torch pins torchvision 0.17 and so torch 2.2: it is not
installed; Scaffold and FedProx need it and were not tried. The package cannot be imported without opendp. Its wheel
has no certificates, so gRPC is not encrypted. For a killed node it waits 20 s (by default 300).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PINS = ["p2pfl[dp]==0.4.4", "torch", "pyarrow<21", "huggingface_hub<1"]
CELLS = {"processes": {"rate": 0.4, "steps": 50}, "memory": {"rate": 0.4, "steps": 50, "simulated": True}}
SEARCH = [
    ("processes", {"rate": 0.4}),
    ("processes", {"rate": 0.4, "steps": 50, "trainset": 4}),
    ("memory", {"rate": 0.4, "simulated": True}),
    ("memory", {"rate": 0.4, "steps": 50, "simulated": True, "models_period": 1.0, "models": 2}),
    ("memory", {"rate": 0.4, "steps": 50, "simulated": True, "trainset": 4}),
]

CELL: dict[str, Any] = json.loads(os.environ.get("RIVAL_CELL", "{}"))  # not from common, which imports torch
if __name__ == "__main__" and not (CELL.get("simulated") or sys.argv[1:]):
    # typed for processes
    # $ python other_p2pfl.py NODE (for each node)
    # end
    started = [subprocess.Popen([sys.executable, __file__, str(place)]) for place in range(CELL["nodes"])]
    sys.exit(max(each.wait() for each in started))

import torch  # noqa: E402 - the nodes alone need this and what follows
from common import evaluate, make_model, own_rows, train  # noqa: E402

# typed
from p2pfl.settings import Settings  # noqa: E402

Settings.general.DISABLE_RAY, Settings.general.LOG_LEVEL = True, "ERROR"  # what follows would start Ray
Settings.heartbeat.PERIOD, Settings.heartbeat.TIMEOUT, Settings.heartbeat.WAIT_CONVERGENCE = 1, 10, 1
Settings.gossip.PERIOD, Settings.gossip.MODELS_PERIOD = 0.05, CELL.get("models_period", 0.2)
Settings.gossip.MODELS_PER_ROUND, Settings.gossip.AMOUNT_LAST_MESSAGES_SAVED = CELL.get("models", 8), 10000
Settings.gossip.EXIT_ON_X_EQUAL_ROUNDS, Settings.training.AGGREGATION_TIMEOUT = 50, 20
from datasets import Dataset, DatasetDict  # noqa: E402 - the settings are read on import
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol  # noqa: E402
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

    def interrupt_fit(self) -> None: ...

    def get_framework(self) -> str:
        return "pytorch"


def make_node(place: int, address: str, protocol: Any = None) -> Any:
    data = P2PFLDataset(DatasetDict({"train": Dataset.from_dict({"label": own_rows(place)[1].tolist()})}))
    node = Node(Model(make_model()), data, address, learner=Local(place), protocol=protocol)
    node.start()
    return node


def learn(node: Any) -> None:
    node.set_start_learning(rounds=CELL["rounds"], epochs=1, trainset_size=CELL.get("trainset", CELL["nodes"]))
    threading.Event().wait()


# end


def one(place: int) -> None:
    nodes = CELL["nodes"]
    # typed for processes
    addresses = [f"127.0.0.1:{9000 + each}" for each in range(nodes)]
    node = make_node(place, addresses[place])
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
