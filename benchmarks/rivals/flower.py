"""Flower 1.42, FedAvg around a server: in its simulation, and as real processes (a SuperLink, eight SuperNodes).

The search, rounds to .9 on shards:2, FedAvg alone, the weights and split of seed 0, 2,000 steps at most (steps a round,
rate: rounds): 10, .8: 20; 10, 1.6: never; 20, .2: 26; 20, .4: 15; 20, .8: 14; 20, 1.6: never; 50, .2: 22; 50, .4: 12;
50, .8: 17; 100, .1: never; 100, .2: 19; 100, .4: 12; 100, .8: 14; 200, .1, .2, .4: never. MNIST to .9: 20, .2: 37; 20,
.4: 24; 20, .8: never; 50, .1: 52; 50, .2: 27; 50, .4: 22; 100, .2: 20; 100, .4: 14. CIFAR-10 to .4: 20, .05: 18; 20,
.1: 20; 50, .05: 9; 50, .1: 10. In the simulation a round costs little, so that 20 steps win. Of real processes a new
one is started for each node and round, which imports torch again, so that they get 50: a round takes 70 s at a load of
12 on two cores. By its source `--isolation process` cannot help: the SuperExec that one then starts oneself starts a
process for each task, too (its warm pools are for Kubernetes, and not for a ClientApp); and a dead SuperNode is noticed
by missing heartbeats, after a minute, with no setting for it. SuperExecs look for tasks ten times a second in place of
once; telemetry and the search for updates are off. `run_simulation` is deprecated, but starts less than `flwr run`. The
server tests the common model, once a round.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import CELL, evaluate, evaluate_common, make_model, own_rows, tell, train

# typed
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

# end

PINS = ["flwr[simulation]==1.42.0", "torch"]
CELLS = {
    "simulation": {"rate": 0.4, "simulated": True},
    "processes": {"rate": 0.4, "steps": 50, "limit_s": 600.0, "repeats": 1},
}
SEARCH = [
    ("simulation", {"simulated": True}),
    ("simulation", {"rate": 0.8, "simulated": True}),
    ("simulation", {"rate": 0.4, "simulated": True, "cpus": 2}),
    ("simulation", {"rate": 0.4, "steps": 50, "simulated": True}),
]
SERVER = ["server"]
OPTIONS = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

# typed
client, server = ClientApp(), ServerApp()


@client.train()
def fit(message: Message, context: Context) -> Message:
    node = int(context.node_config["partition-id"])
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    # end
    if "kill" in CELL:
        evaluate_common(model, node)  # so that it is seen who goes on
    # typed
    train(model, node)
    metrics = MetricRecord({"num-examples": len(own_rows(node)[1])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@server.main()
def serve(grid: Grid, _context: Context) -> None:
    model, nodes = make_model(), CELL["nodes"]

    def tested(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": evaluate(model) if number and "kill" not in CELL else 0.0})

    least = nodes - ("kill" in CELL)  # else the server would wait for the dead one
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=least, min_available_nodes=least)
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=CELL["rounds"], evaluate_fn=tested)


# end


def simulate() -> None:
    # typed for simulation
    from flwr.simulation import run_simulation  # noqa: PLC0415 - the other way has no use for it

    resources = {"client_resources": {"num_cpus": CELL.get("cpus", 1), "num_gpus": 0.0}}
    run_simulation(server, client, CELL["nodes"], backend_config=resources)
    # $ python flower.py
    # end


PYPROJECT = """
[project]
name = "rival"
version = "1.0.0"
[tool.flwr.app]
publisher = "rival"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
"""
CONFIG = """
[superlink.local]
address = "127.0.0.1:8000"
insecure = true
"""


def processes() -> None:
    home, app = Path("home"), Path("app")
    home.mkdir()
    app.mkdir()
    (home / "config.toml").write_text(CONFIG)
    (app / "pyproject.toml").write_text(PYPROJECT)
    (app / "app.py").write_text("import flower\n\nclient = flower.client\nserver = flower.server\n")
    environment = os.environ | OPTIONS | {"FLWR_HOME": str(home.absolute())}

    def start(*words: str) -> Any:
        return subprocess.Popen([str(Path(sys.executable).with_name(words[0])), *words[1:]], env=environment)

    # typed for processes
    # $ write pyproject.toml: seven lines
    # $ write config.toml: three lines
    # $ export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
    # $ flower-superlink --insecure
    # $ flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9100 --node-config partition-id=0 (for each node)
    # $ flwr run app local
    # end
    link = start("flower-superlink", "--insecure", "--disable-runtime-dependency-installation")
    tell(node="server", pid=link.pid)
    for node in range(CELL["nodes"]):
        where = ["--superlink", "127.0.0.1:8000", "--port", str(9100 + node)]
        own = f"partition-id={node} num-partitions={CELL['nodes']}"
        tell(node=node, pid=start("flower-supernode", "--insecure", *where, "--node-config", own).pid)
    while start("flwr", "run", "app", "local").wait():
        time.sleep(1)
    link.wait()


if __name__ == "__main__":
    simulate() if CELL.get("simulated") else processes()
