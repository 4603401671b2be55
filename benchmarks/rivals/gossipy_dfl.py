"""gossipy 0.0.1, a simulator of gossip learning in one process: nodes call each other, and nothing crosses a socket.

The search, seed 0, load 1 to 2: s to .9 after the first step, rounds: one step after each merge, all joined to all at
.4: 3.0, 138; ring at .8: 3.5, 168; at .2: 5.6, 292; at .1, merging after the step (`UPDATE_MERGE`): 9.3, 332; an
epoch, its default, in a ring at .2: 34, 426; two, all joined to all at .4: 25, 190. A node's model is tested after its
own step, as gossipy does. Spared are its progress bar, which costs more than a round of eight nodes, and its own
tests, which compute four scores.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from common import CELL, begin, evaluate, make_model, own_rows

for module in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
    sys.modules[module] = MagicMock()  # gossipy imports it for data sets alone

# typed
from gossipy import LOG, set_seed, simul  # noqa: E402
from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork  # noqa: E402
from gossipy.model import TorchModel  # noqa: E402
from gossipy.model.handler import TorchModelHandler  # noqa: E402
from gossipy.node import GossipNode  # noqa: E402
from gossipy.simul import GossipSimulator, SimulationEventReceiver  # noqa: E402

# end

PINS = ["gossipy-dfl==0.0.1", "torch"]
CELLS = {"simulation": {"rate": 0.4, "epochs": 0, "graph": "complete", "simulated": True}}
SEARCH = [
    ("simulation", {"rate": 0.2, "epochs": 1, "simulated": True}),
    ("simulation", {"rate": 0.4, "epochs": 2, "graph": "complete", "simulated": True}),
    ("simulation", {"rate": 0.2, "epochs": 0, "simulated": True}),
    ("simulation", {"rate": 0.8, "epochs": 0, "simulated": True}),
    ("simulation", {"rate": 0.1, "epochs": 0, "mode": "UPDATE_MERGE", "simulated": True}),
]
LENGTH = 10  # instants in a round; each node speaks at one of them


# typed
class Net(TorchModel):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def init_weights(self) -> None:
        pass

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs)


class Data:
    """All nodes' rows, as a node's `generate` asks for them; the test is the receiver's."""

    def __getitem__(self, node: int) -> Any:
        return own_rows(node), None

    def has_test(self) -> bool:
        return False


# end


class Tests(SimulationEventReceiver):
    def __init__(self, nodes: Any) -> None:
        self.nodes = nodes

    def update_timestep(self, t: int) -> None:
        if (t + 1) % LENGTH == 0:
            for place, node in self.nodes.items():
                evaluate(node.model_handler.model, place)

    def update_message(self, failed: bool, msg: Any = None) -> None:  # noqa: FBT001 - its name and place are gossipy's
        pass

    def update_end(self) -> None:
        pass


# typed
def main() -> None:
    LOG.setLevel("ERROR")
    simul.track = lambda steps, **_: (step for step in steps)  # its progress bar costs more than a round of few nodes
    set_seed(CELL["repeat"])
    ring = np.roll(np.eye(CELL["nodes"]), 1, 0) + np.roll(np.eye(CELL["nodes"]), -1, 0)
    handler = TorchModelHandler(
        Net(),
        torch.optim.SGD,
        {"lr": CELL["rate"]},
        torch.nn.CrossEntropyLoss(),
        local_epochs=CELL["epochs"],  # 0: one step
        batch_size=CELL["batch"],
        create_model_mode=CreateModelMode[CELL.get("mode", "MERGE_UPDATE")],
    )
    network = StaticP2PNetwork(CELL["nodes"], None if CELL.get("graph") == "complete" else ring)
    nodes = GossipNode.generate(Data(), network, handler, LENGTH, sync=True)
    simulator = GossipSimulator(nodes, Data(), LENGTH, AntiEntropyProtocol[CELL.get("protocol", "PUSH_PULL")])
    simulator.add_receiver(Tests(nodes))
    begin(0)
    simulator.init_nodes()
    simulator.start(CELL["rounds"])


# $ python gossipy_dfl.py
# end

if __name__ == "__main__":
    main()
