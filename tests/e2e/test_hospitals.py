"""Three hospitals and no code, with real processes: scikit-learn's breast cancer data as three tables of different
forms, from `p2pfl new --task csv` to `p2pfl predict`.

The sites differ in size, in the share of malignant rows and in their notation: one writes `1.0` where others write `1`,
one uses semicolons and decimal commas, one lacks a column, and all have missing values, written as -9 by one of them.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2pfl.config import load_config, load_node, node_file
from p2pfl.learn import RoundStart, TensorSamples, with_torch
from p2pfl.learn.table import TableModel, make_layout, read_table
from p2pfl.node import load_learner

datasets, metrics = pytest.importorskip("sklearn.datasets"), pytest.importorskip("sklearn.metrics")
SITES = {"north": (95, 45), "south": (18, 122), "west": (20, 20)}
"""Malignant and benign rows at each site; all other rows are for the test."""
LACKING = {"west": "mean texture"}
HOLES = 0.06
TARGET = "diagnosis"


def write_tables(folder: Path, seed: int = 0) -> tuple[dict[str, Path], Path]:
    """Write the sites' tables, and the table to score, with a column for the truth."""
    data, rng = datasets.load_breast_cancer(), np.random.default_rng(seed)
    malignant = data.target == 0
    rows = {ill: list(rng.permutation(np.flatnonzero(malignant == ill))) for ill in (True, False)}
    paths = {}
    for site, counts in SITES.items():
        own = [rows[ill].pop() for ill, count in zip((True, False), counts, strict=True) for _ in range(count)]
        paths[site] = folder / f"{site}.csv"
        _write(paths[site], site, data, rng.permutation(own), rng)
    test = folder / "test.csv"
    _write(test, "test", data, np.concatenate([rows[True], rows[False]]).astype(int), rng)
    return paths, test


def _write(path: Path, site: str, data: Any, rows: Any, rng: np.random.Generator) -> None:
    names = [str(name) for name in data.feature_names if name != LACKING.get(site)]
    columns = [list(data.feature_names).index(name) for name in names]
    missing = {"south": "-9", "north": "?"}.get(site, "")
    lines = []
    for number, row in enumerate(rows):
        cells = [missing if rng.random() < HOLES else f"{data.data[row, column]:.6g}" for column in columns]
        size = 1 + int(data.data[row, 3] > 500) + int(data.data[row, 3] > 900)
        ward = str(rng.choice(["surgery", "oncology"]))
        grade = f"{size}.0" if site == "north" else str(size)
        lines.append([f"{site}-{number}", *cells, grade, ward, str(1 - int(data.target[row]))])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";" if site == "south" else ",")
        writer.writerow(["patient", *names, "size class", "ward", TARGET])
        writer.writerows([[cell.replace(".", ",") if site == "south" else cell for cell in line] for line in lines])


def p2pfl(*arguments):
    """Run the command; return its stdout."""
    command = [sys.executable, "-m", "p2pfl.cli.main", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def learn(paths: dict[str, Path], folder: Path, rounds: int, *, agreed: bool) -> Path:
    """Create the federation and run it; return its folder."""
    place = folder / "hospitals"
    p2pfl("new", place, "--task", "csv", *paths.values(), "--target", TARGET, "--base-port", "18470")
    file = place / "federation.toml"
    text = file.read_text(encoding="utf-8").replace("rounds = 40", f"rounds = {rounds}")
    if agreed:
        text = text.replace('schema = "schema.toml"', f'schema = "agreed"\ntarget = "{TARGET}"')
        (place / "schema.toml").unlink()
    file.write_text(text, encoding="utf-8")
    p2pfl("check", place)
    p2pfl("launch", place, "--report", folder / "report.json")
    return place


def references(place: Path, test: Path, rounds: int) -> dict[str, float]:
    """Compute the AUC for each site alone, with as many steps, and for all rows together, with the steps of all
    sites.
    """
    federation = load_config(place)
    learners = {
        member.name: with_torch(load_learner(federation, load_node(node_file(federation, member.name), federation)))
        for member in federation.members
    }
    found = {name: _alone(learner, test, rounds) for name, learner in learners.items()}
    one = next(iter(learners.values()))
    sets = [learner.train_set for learner in learners.values()]
    inputs, targets = (np.concatenate([getattr(part, key).numpy() for part in sets]) for key in ("inputs", "targets"))
    torch = sys.modules["torch"]
    pooled = one.at_node(one.context, TensorSamples(torch.from_numpy(inputs), torch.from_numpy(targets)), None)
    return found | {"pooled": _alone(pooled, test, rounds * len(learners))}


def _alone(learner: Any, test: Path, rounds: int) -> float:
    vector = learner.initial()
    for number in range(rounds):
        vector = learner.train(RoundStart(vector), number).vector
    model = TableModel.of(learner.task.preprocessing, learner.state_dict(vector))
    layout = make_layout({"missing": learner.task.preprocessing["missing"]}, {})
    return _auc(test, model.scores(read_table(test, model.schema, layout, scoring=True))["p(1)"])


def federated(place: Path, test: Path) -> dict[str, float]:
    """Compute the AUC of each node's model, by `p2pfl predict`."""
    found = {}
    for site in SITES:
        rows = json.loads(p2pfl("predict", place / site, test, "--format", "json"))
        found[site] = _auc(test, [row["p(1)"] for row in rows])
    return found


def _auc(test: Path, scores: list[float]) -> float:
    with test.open(encoding="utf-8") as file:
        truth = [row[TARGET] == "1" for row in csv.DictReader(file)]
    return float(metrics.roc_auc_score(truth, scores))


def run(folder: Path, *, rounds: int, agreed: bool) -> dict[str, dict[str, float]]:
    """Return the figures by kind of learning and by site."""
    paths, test = write_tables(folder)
    place = learn(paths, folder, rounds, agreed=agreed)
    exported = folder / "model.safetensors"
    p2pfl("export", place / "north", "-o", exported)
    outside = json.loads(p2pfl("predict", exported, test, "--format", "json"))
    alone = references(place, test, rounds)
    pooled = alone.pop("pooled")
    together = federated(place, test)
    return {
        "alone": alone,
        "federated": together,
        "federated, exported": {"north": _auc(test, [row["p(1)"] for row in outside])},
        "pooled": {"all": pooled},
    }


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("agreed", [False, True], ids=["looked at", "agreed"])
def test_together_all_sites_are_as_good_as_all_rows_and_better_than_the_small_ones_alone(tmp_path, agreed):
    found = run(tmp_path, rounds=20, agreed=agreed)
    together, alone, pooled = found["federated"], found["alone"], found["pooled"]["all"]
    assert min(together.values()) > pooled - 0.01
    assert min(together.values()) > max(alone["south"], alone["west"])
    assert found["federated, exported"]["north"] == together["north"]
    assert (tmp_path / "hospitals" / "north" / "state" / "schema.toml").exists() == agreed
