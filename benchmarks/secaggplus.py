"""Flower's FedAvg with SecAgg+ beside hidden models: the same rows, model, first weights, steps, rate and rounds.

Flower is installed in a virtual environment of its own (--venv, some 1.5 GB); where that fails, the benchmark says so
and is skipped. It runs in Flower's simulation, a client for each node around one server: SecAggPlusWorkflow with five
shares of each secret, of which three open it. Clients train with the learners of p2pfl, and count for their rows, at
most twice the mean, as with hidden models. Prints the accuracy of the common model after each of --rounds, the
kilobytes that a client has received and sent in all (protobuf messages, without gRPC's frames), and the seconds of a
round after the first, in which as many clients as there are cores train at a time.

Usage: python benchmarks/secaggplus.py [--task digits,mnist] [--nodes 8,16] [--rounds 20,40] [--venv FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
import venv
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from hidden import SPLITS, setting

ROOT = Path(__file__).absolute().parents[1]
FLOWER, SHARES, THRESHOLD = "1.42.0", 5, 3
HEARD: dict[str, Any] = {"capture_output": True, "text": True}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", type=lambda text: text.split(","), default=["digits"])
    parser.add_argument("--nodes", type=lambda text: [int(each) for each in text.split(",")], default=[8, 16])
    parser.add_argument("--rounds", type=lambda text: [int(each) for each in text.split(",")], default=[40])
    parser.add_argument("--venv", type=Path, default=ROOT / "bench-out" / "flower")
    parser.add_argument("--mnist", default="mnist", help="the folder of its four files")
    parser.add_argument("--cifar", default="cifar10", help="the folder of train.npz and test.npz")
    options = parser.parse_args()
    if failure := install(python := options.venv.absolute() / "bin" / "python"):
        print(f"skipped: Flower {FLOWER} cannot be installed in {options.venv}: {failure}")
        return
    for name, nodes, split in product(options.task, options.nodes, SPLITS):
        task, training = setting(name, split, options)
        asked = {"nodes": nodes, "task": task, "training": training, "rounds": options.rounds}
        environment = QUIET | {"PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "ASKED": json.dumps(asked)}
        # clients unpickle by name what they run, so that it may not be in __main__
        command = [python, "-c", "import secaggplus; secaggplus.simulate()"]
        done = subprocess.run(command, check=False, **HEARD, env=os.environ | environment)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        for line in (each for each in done.stdout.splitlines() if each.startswith("after ")):
            print(f"{name} {nodes:2} {split:13} {line}", flush=True)


def install(python: Path) -> str:
    """Install Flower and what p2pfl needs, unless it is there; return how that failed, or nothing."""
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
    check = [str(python), "-c", f"import flwr, ray, torch, msgspec; assert flwr.__version__ == '{FLOWER}'"]
    if subprocess.run(check, check=False, **HEARD).returncode == 0:
        return ""
    command = [str(python), "-m", "pip", "install", "--quiet", f"flwr[simulation]=={FLOWER}", f"{ROOT}[torch]"]
    done = subprocess.run(command, check=False, **HEARD)
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1] if done.returncode else ""


@cache
def learner_of(node: int) -> Any:
    """Return a node's learner, as p2pfl makes it, once in each process of the simulation."""
    from p2pfl.config.model import TaskConfig, TrainingConfig  # noqa: PLC0415 - in the other environment
    from p2pfl.learn.load import make_learner  # noqa: PLC0415

    asked, here = json.loads(os.environ["ASKED"]), Path.cwd()
    task = TaskConfig(name=asked["task"].pop("name"), options=asked["task"])
    where = {"base_dir": here, "local": {}, "local_dir": here, "seed": 0, "node_count": asked["nodes"]}
    training = TrainingConfig(**asked["training"])
    return make_learner(task, training, node_index=node, node_name=f"node{node}", **where)


def client_of(context: Any) -> Any:
    from flwr.client import NumPyClient  # noqa: PLC0415 - in the other environment

    from p2pfl.learn.interface import RoundStart  # noqa: PLC0415

    class Client(NumPyClient):  # type: ignore[misc]
        def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
            learner = learner_of(int(context.node_config["partition-id"]))
            local = learner.train(RoundStart(parameters[0].astype(np.float32)), int(config["round"]))
            return [local.vector], min(local.samples, int(config["most"])), {}

    return Client().to_client()


def simulate() -> None:
    from flwr.client import ClientApp  # noqa: PLC0415 - in the other environment
    from flwr.client.mod import secaggplus_mod  # noqa: PLC0415
    from flwr.common import ndarrays_to_parameters  # noqa: PLC0415
    from flwr.common.serde import message_to_proto  # noqa: PLC0415
    from flwr.server import LegacyContext, ServerApp, ServerConfig  # noqa: PLC0415
    from flwr.server.strategy import FedAvg  # noqa: PLC0415
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow  # noqa: PLC0415
    from flwr.simulation import run_simulation  # noqa: PLC0415

    asked = json.loads(os.environ["ASKED"])
    nodes, learner, began_s, sizes = asked["nodes"], learner_of(0), 0.0, {"down": 0, "up": 0}
    most = round(2 * sum(learner_of(node).samples for node in range(nodes)) / nodes)

    def exchange(grid: Any, messages: list[Any], **options: Any) -> list[Any]:
        sizes["down"] += sum(message_to_proto(each).ByteSize() for each in messages)
        replies = list(grid.send_and_receive(messages, **options))
        sizes["up"] += sum(message_to_proto(each).ByteSize() for each in replies)
        return replies

    def evaluate(done: int, parameters: list[Any], _config: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        nonlocal began_s
        began_s = began_s if done > 1 else time.monotonic()
        if done in asked["rounds"]:
            accuracy = learner.evaluate(parameters[0].astype(np.float32), "test").accuracy
            down, up = (sizes[way] / nodes / 1e3 for way in ("down", "up"))
            took_s = (time.monotonic() - began_s) / max(1, done - 1)
            print(f"after {done} rounds {accuracy:.3f} {down:,.0f} kB down {up:,.0f} kB up {took_s:.2f} s", flush=True)
        return 0.0, {}

    strategy = FedAvg(
        **{f"min_{which}_clients": nodes for which in ("fit", "available")},
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters([learner.initial()]),
        evaluate_fn=evaluate,
        on_fit_config_fn=lambda number: {"round": number - 1, "most": most},
    )
    secure, server = SecAggPlusWorkflow(SHARES, THRESHOLD, max_weight=float(most)), ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def _run(grid: Any, context: Any) -> None:
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=max(asked["rounds"])), strategy=strategy)
        counted = SimpleNamespace(send_and_receive=partial(exchange, grid))
        DefaultWorkflow(fit_workflow=lambda _grid, state: secure(counted, state))(grid, legacy)

    client = ClientApp(client_fn=client_of, mods=[secaggplus_mod])
    run_simulation(server, client, nodes, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


if __name__ == "__main__":
    main()
