"""Long runs of real nodes: which of them raise `loss-grows`, and which must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from p2pfl import Federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MNIST = Path(os.environ.get("P2PFL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "mnist"
ROWS = 60
CSV = {"partition": "iid", "target": "y", "numeric": [f"x{place}" for place in range(20)]}


def raised(federation):
    """The kinds of alarms at any node, and the report."""
    report = federation.run()
    return {kind for node in report.nodes for kind in node.alarms}, report


def few_rows(folder, *, classes):
    """Twenty inputs, few rows: a model learns them by heart. The test table is drawn alike."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=20)
    for name, count in (("train", ROWS), ("test", 200)):
        inputs = rng.normal(size=(count, 20))
        targets = inputs @ truth + 2.0 * rng.normal(size=count)
        shown = np.where(targets > 0, "yes", "no") if classes else targets.round(3).astype(str)
        lines = [",".join([*(f"{value:.4f}" for value in row), one]) for row, one in zip(inputs, shown, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([",".join([*CSV["numeric"], "y"]), *lines]) + "\n")
    return {**CSV, "path": str(folder / "train.csv"), "test_path": str(folder / "test.csv")}


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_steps_that_are_too_long_raise_it_within_a_hundred_rounds(tmp_path, seed):
    options = few_rows(tmp_path, classes=False)
    how = {"learning_rate": 0.4, "closing_rounds": 0, "linger_s": 2.0}
    kinds, _ = raised(Federation(task="csv", nodes=3, rounds=100, seed=seed, options=options, **how))
    assert "loss-grows" in kinds


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.long
def test_a_table_that_is_learned_by_heart_raises_nothing(tmp_path, classes):
    options = few_rows(tmp_path, classes=classes) | {"model": "mlp", "hidden": 64}
    options |= {"classes": ["no", "yes"]} if classes else {}
    kinds, _ = raised(Federation(task="csv", nodes=3, rounds=600, learning_rate=0.1, options=options))
    assert kinds == set()


@pytest.mark.parametrize("partition", ["iid", "shards:2"])
@pytest.mark.long
def test_digits_for_long_raise_nothing(partition):
    kinds, report = raised(Federation(task="digits", nodes=4, rounds=900, options={"partition": partition}))
    assert kinds == set()
    assert report.accuracy.min > 0.95


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_liar_raises_it_within_a_hundred_rounds(tmp_path, seed):
    """The mean bears no liar: it is the alarm that says so."""
    command = [*(sys.executable, "-m", "p2pfl.cli.main", "demo", "--format", "json", "--seed", str(seed))]
    command += ["--dir", str(tmp_path / "demo"), "--nodes", "5", "--topology", "complete", "--partition", "iid"]
    command += ["--rounds", "100", "--byzantine", "1", "--attack", "sign-flip", "--rule", "mean"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    honest = [row for row in json.loads(done.stdout)["nodes"] if not row["byzantine"]]
    assert all(row["alarms"].get("loss-grows") for row in honest)


@pytest.mark.long
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"MNIST is not in {MNIST}; name its parent in P2PFL_DATA")
def test_mnist_for_long_raises_nothing():
    options = {"path": str(MNIST), "partition": "iid"}
    how = {"rounds": 250, "local_steps": 40, "learning_rate": 0.1, "evaluate_every": 5}
    kinds, report = raised(Federation(task="mnist-idx", nodes=3, options=options, **how))
    assert kinds == set()
    assert report.accuracy.min > 0.95
