"""NVIDIA FLARE 2.9 in its simulator: FedAvg, swarm learning, and the peer-to-peer executors of app_opt/p2p.

The search, with the default polls (2 s, swarm 1 s; the cells have .1 s): s to .9 after the start, rounds, load 7 to 23.
FedAvg at .4 (see flower.py): 20 steps: 57, 18; 50: 47, 16. Swarm at .4: 50, defaults: .881 after 96, 11; 20, eight
submissions at a time, no collection of garbage: 56 to 78, 17. Peers: ring at .2: .844 after 92, 182; all to all at .4:
26, 14. With clients that send float16 as fast; MB, digits, MNIST, CIFAR-10: FedAvg 4.8, 54, 33, swarm 7.7, 93, 86. With
the default `sync_timeout`, 10 s, one slow peer ended a run. `Peer` is DGDExecutor with more than one step a round.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from common import CELL, evaluate, evaluate_common, make_model, own_rows, train

# typed for p2p
from nvflare.app_opt.p2p.controllers.dist_opt_controller import DistOptController
from nvflare.app_opt.p2p.executors.sync_executor import SyncAlgorithmExecutor
from nvflare.app_opt.p2p.types import Config, Neighbor, Network, Node

# typed for fedavg
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

# typed for swarm
from nvflare.app_opt.pt.recipes.swarm import SwarmLearningRecipe

# typed for p2p
from nvflare.job_config.api import FedJob

# typed for fedavg, swarm
from nvflare.recipe import SimEnv

# end
from torch import nn

PINS = ["nvflare==2.9.0", "torch"]
CELLS = {
    "fedavg": {"way": "fedavg", "threads": 8, "rate": 0.4, "steps": 50, "poll_s": 0.1},
    "swarm": {"way": "swarm", "threads": 8, "rate": 0.4, "poll_s": 0.1, "max_concurrent_submissions": 8},
    "p2p": {"way": "p2p", "threads": 8, "rate": 0.4, "graph": "complete"},
}
SENT = torch.float16 if CELL.get("half") else torch.float32
POLLS = ("learn_task_check_interval", "request_to_submit_result_interval")
SEARCH = [
    ("p2p", {"way": "p2p", "threads": 8}),
    ("swarm", {"way": "swarm", "threads": 8, "rate": 0.4, "steps": 50}),
    ("fedavg", {"way": "fedavg", "threads": 8, "rate": 0.4, "steps": 50, "poll_s": 0.1, "half": 1}),
    ("swarm", {"way": "swarm", "threads": 8, "rate": 0.4, "poll_s": 0.1, "max_concurrent_submissions": 8, "half": 1}),
]


# typed for fedavg, swarm
class Net(nn.Sequential):  # jobs name a class that is built without arguments
    def __init__(self) -> None:
        super().__init__(*make_model())


# end


def client() -> None:
    # typed for fedavg, swarm
    import nvflare.client as flare  # noqa: PLC0415 - the peer-to-peer way has no use for it

    flare.init()
    node = int(flare.get_site_name().split("-")[1]) - 1
    model = Net()
    while flare.is_running():
        received = flare.receive()
        model.float().load_state_dict({key: torch.as_tensor(value) for key, value in received.params.items()})
        accuracy = evaluate_common(model, node)
        train(model, node)
        meta = {"NUM_STEPS_CURRENT_ROUND": len(own_rows(node)[1])}
        flare.send(flare.FLModel(params=model.to(SENT).state_dict(), metrics={"accuracy": accuracy}, meta=meta))
    # end


# typed for p2p
class Peer(SyncAlgorithmExecutor):
    """Some local steps, then an exchange with neighbors: as their DGDExecutor, which takes one step."""

    def run_algorithm(self, fl_ctx: Any, shareable: Any, abort_signal: Any) -> None:  # noqa: ARG002
        node, model = self.id - 1, make_model()
        for iteration in range(CELL["rounds"]):
            if abort_signal.triggered:
                break
            train(model, node)
            with torch.no_grad():
                self._exchange_values(fl_ctx, value=model.parameters(), iteration=iteration)
                for place, parameter in enumerate(model.parameters()):
                    parameter.mul_(self._weight)
                    for neighbor in self.neighbors:
                        parameter.add_(self.neighbors_values[iteration][neighbor.id][place], alpha=neighbor.weight)
            del self.neighbors_values[iteration]
            evaluate(model, node)

    def _to_message(self, x: Any) -> Any:
        return [parameter.detach().numpy() for parameter in x]

    def _from_message(self, x: Any) -> Any:
        return [torch.from_numpy(parameter.copy()) for parameter in x]


def network(nodes: int) -> Network:
    """Return a ring, or with `complete` everybody joined to everybody, by Metropolis' weights."""
    hops = range(1, nodes) if CELL.get("graph") == "complete" else (1, nodes - 1)
    near = [[(node + hop) % nodes for hop in hops] for node in range(nodes)]
    weighed = [[Neighbor(id=f"site-{each + 1}", weight=1 / (len(hops) + 1)) for each in some] for some in near]
    return Network(nodes=[Node(id=f"site-{node + 1}", neighbors=weighed[node]) for node in range(nodes)])


def peers(nodes: int) -> Any:
    job = FedJob(name="p2p", min_clients=nodes)
    job.to_server(DistOptController(config=Config(network=network(nodes), extra={"iterations": CELL["rounds"]})))
    for node in range(nodes):
        job.to(Peer(sync_timeout=60), f"site-{node + 1}", tasks=["config", "run_algorithm"])
    return job


# end


def main(way: str) -> None:
    nodes, threads = CELL["nodes"], CELL["threads"]
    asked = {"min_clients": nodes - ("kill" in CELL), "num_rounds": CELL["rounds"], "train_script": "client.py"}
    Path("client.py").write_text("from flare import client\n\nclient()\n", encoding="utf-8")
    if way == "p2p":
        peers(nodes).simulator_run("workspace", threads=threads)
        return
    poll_s, most = CELL.get("poll_s", 1), CELL.get("max_concurrent_submissions", 1)
    if way == "fedavg":
        # typed for fedavg
        job = FedAvgRecipe(model=Net(), **asked)
        job.add_server_config({"server": {"task_request_interval": poll_s}})
    else:
        # typed for swarm
        more = {"max_concurrent_submissions": most, "client_config_overrides": dict.fromkeys(POLLS, poll_s)}
        job = SwarmLearningRecipe(name="swarm", model=Net(), **asked, memory_gc_rounds=0, **more)
    # typed for fedavg, swarm
    job.execute(SimEnv(num_clients=nodes, num_threads=threads, workspace_root=str(Path("workspace").absolute())))
    # typed
    # $ python flare.py
    # end


if __name__ == "__main__":  # by its name, since jobs name classes by module; an import here would be packed for ever
    importlib.import_module("flare").main(CELL["way"])
