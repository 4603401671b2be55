"""Figures of docs/how-to/adapters.md.

python benchmarks/adapters.py sklearn [--splits 10]      # breast cancer at three sites: AUC, simulated
python benchmarks/adapters.py flower [--rounds 20]       # one client here and in Flower's simulation (flwr[simulation])

`flower` runs each side as a process of its own: `--side p2pfl` or `--side flower` is that process.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

NODES = 4
EPOCHS = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sklearn", "flower"))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--side", choices=("p2pfl", "flower"))
    given = parser.parse_args()
    if given.what == "sklearn":
        breast_cancer(given.splits, given.rounds)
    elif given.side:
        {"p2pfl": here, "flower": in_flower}[given.side](given.rounds)
        memory = (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        )
        print(f"CPU-s of this process {time.process_time():.1f}, most memory in MB {memory / 1024:.0f}")
    else:
        compare(given.rounds)
    return 0


# -- scikit-learn -----------------------------------------------------------------------------------------------------


def breast_cancer(splits: int, rounds: int) -> None:
    """AUC of three sites together, of pooled `partial_fit` with as many steps, and of each site alone."""
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415 - an extra
    from sklearn.linear_model import SGDClassifier  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    from p2pfl import Federation  # noqa: PLC0415 - `flower` needs none of it
    from p2pfl.adapt import sklearn  # noqa: PLC0415
    from p2pfl.config.model import TrainingConfig  # noqa: PLC0415
    from p2pfl.learn.interface import RoundStart  # noqa: PLC0415
    from p2pfl.learn.task import NodeContext  # noqa: PLC0415
    from sim import simulate  # noqa: PLC0415

    X, y = load_breast_cancer(return_X_y=True)
    X, X_test, y, y_test = train_test_split(StandardScaler().fit_transform(X), y, random_state=0, stratify=y)

    def task(partition: str) -> Any:
        def data(node: Any) -> Any:
            rows = node.partition(y, partition)
            return (X[rows], y[rows]), (X_test, y_test)

        return sklearn.task(SGDClassifier(loss="log_loss"), data, classes=[0, 1], metrics=["auc"], metric="auc")

    def trained(partition: str, seed: int, node: int, nodes: int) -> float:
        context = NodeContext(node=node, nodes=nodes, name="", seed=seed, base_dir=Path())
        learner = task(partition).learner(context, TrainingConfig(rounds=rounds))
        model = learner.initial()
        for index in range(rounds):
            model = learner.train(RoundStart(model), index).vector
        return learner.evaluate(model, "test").metrics["auc"]

    for partition in ("iid", "dirichlet:0.3"):
        together, pooled, alone = [], [], []
        for seed in range(splits):
            how = {"nodes": 3, "topology": "complete", "rounds": rounds, "seed": seed}
            report = simulate(Federation(task=task(partition), **how), references=False)
            together.append(min(node.metrics["auc"] for node in report.nodes))
            pooled.append(trained("iid", seed, 0, 1))
            alone.append(fmean(trained(partition, seed, node, 3) for node in range(3)))
        named = (("worst of three sites", together), ("pooled", pooled), ("a site alone, mean", alone))
        print(partition, *(f"{name} {fmean(found):.4f} (sd {np.std(found):.4f})" for name, found in named), sep="; ")


# -- Flower -----------------------------------------------------------------------------------------------------------


def compare(rounds: int) -> None:
    """Run both sides; wall time and the CPU time of all processes come from here."""
    for side in ("p2pfl", "flower"):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, __file__, "flower", "--side", side, "--rounds", str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{side}: {done.stdout.strip() or done.stderr[-800:]}; all processes {cpu:.1f} CPU-s, {wall:.1f} s")


def client_fn(context: Any) -> Any:
    """A client as in Flower's documentation (1.42): a perceptron of the digits, in numpy, unequal labels."""
    from flwr.client import NumPyClient  # noqa: PLC0415 - an extra
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.neural_network import MLPClassifier  # noqa: PLC0415

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    test, train = order[:360], order[360:]
    train = train[np.argsort(digits[train] // 3, kind="stable")]
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    rows = np.array_split(train, parts)[part]

    class DigitsClient(NumPyClient):
        def __init__(self) -> None:
            self.net = MLPClassifier((32,), solver="sgd", learning_rate_init=0.02, batch_size=32, random_state=0)
            self.net.partial_fit(images[:1] / 16, digits[:1], classes=range(10))

        def get_parameters(self, config: Any) -> Any:  # noqa: ARG002 - Flower's signature
            return [*self.net.coefs_, *self.net.intercepts_]

        def set_parameters(self, parameters: Any) -> None:
            self.net.coefs_, self.net.intercepts_ = list(parameters[:2]), list(parameters[2:])

        def fit(self, parameters: Any, config: Any) -> Any:
            self.set_parameters(parameters)
            for _ in range(EPOCHS):
                self.net.partial_fit(images[rows] / 16, digits[rows])
            return self.get_parameters(config), len(rows), {"train_loss": float(self.net.loss_)}

        def evaluate(self, parameters: Any, config: Any) -> Any:  # noqa: ARG002 - as above
            self.set_parameters(parameters)
            chosen = self.net.predict_proba(images[test] / 16)
            loss = -np.log(np.clip(chosen[np.arange(360), digits[test]], 1e-9, None)).mean()
            return float(loss), 360, {"accuracy": float((chosen.argmax(1) == digits[test]).mean())}

    return DigitsClient().to_client()


def here(rounds: int) -> None:
    """The client as nodes of a federation, in one process, over sockets."""
    from p2pfl import Federation  # noqa: PLC0415
    from p2pfl.adapt import flower  # noqa: PLC0415 - an extra

    federation = Federation(task=flower.task(client_fn), nodes=NODES, topology="complete", rounds=rounds)
    report = federation.run()
    print(f"accuracy, worst and mean {report.accuracy.min:.3f} {report.accuracy.mean:.3f}, ", end="")


def in_flower(rounds: int) -> None:
    """The client in Flower's simulation, under FedAvg."""
    import logging  # noqa: PLC0415

    from flwr.client import ClientApp  # noqa: PLC0415 - an extra
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig  # noqa: PLC0415
    from flwr.server.strategy import FedAvg  # noqa: PLC0415
    from flwr.simulation import run_simulation  # noqa: PLC0415

    logging.getLogger("flwr").setLevel(logging.ERROR)
    found = []

    def mean(figures: Any) -> Any:
        accuracy = sum(count * one["accuracy"] for count, one in figures) / sum(count for count, _ in figures)
        found.append(accuracy)
        return {"accuracy": accuracy}

    def server_fn(context: Any) -> Any:  # noqa: ARG001 - Flower's signature
        strategy = FedAvg(min_available_clients=NODES, evaluate_metrics_aggregation_fn=mean)
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    server, clients = ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(server_app=server, client_app=clients, num_supernodes=NODES, backend_config=resources)
    print(f"accuracy {found[-1]:.3f}, ", end="")


if __name__ == "__main__":
    sys.exit(main())
