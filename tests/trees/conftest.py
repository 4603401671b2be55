"""Federations whose nodes grow trees, each from a small table of its own, for the tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.features.trees.rounds import TreeRounds
from tests import rounds_kit

ward, start, hasty = rounds_kit.ward, rounds_kit.start, rounds_kit.hasty
ROUNDS = 3
TASK = {
    "name": "csv",
    "model": "trees",
    "target": "y",
    "classes": ["no", "yes"],
    "numeric": ["a", "b"],
    "categories": {"c": ["u", "v", "w"]},
    "max_depth": 2,
    "bins": 8,
    "least_rows": 2,
    "holdout": 0.2,
}
LINEAR = {key: TASK[key] for key in ("name", "target", "classes", "numeric", "categories", "holdout")}


def write_table(file, seed, rows=60):
    """Rows whose target depends on all columns; some cells are missing."""
    chance = np.random.default_rng(seed)
    a, b, c = chance.standard_normal(rows), chance.standard_normal(rows), chance.integers(0, 3, rows)
    odds = 2 * a * (c == 1) - b + (c == 2) + 0.3 * chance.standard_normal(rows)
    lines = ["a,b,c,y"]
    for place in range(rows):
        cells = [f"{a[place]:.4f}" if chance.random() < 0.9 else "", f"{b[place]:.4f}", "uvw"[c[place]]]
        lines.append(",".join([*cells, "yes" if odds[place] > 0 else "no"]))
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture
def tree_ward(ward):
    """Make a federation that grows trees; `task`, `training` and `gossip` replace keys of these tables."""

    def make(nodes=3, *, task=None, training=None, gossip=None, **tables):
        training = {"rounds": ROUNDS, "local_steps": None, "closing_rounds": None, "learning_rate": None} | (
            training or {}
        )
        gossip = {"linger_s": 5.0, "compressor": None, "start_wait_s": None} | (gossip or {})
        field = ward(nodes, training=training, gossip=gossip, task=TASK | (task or {}), **tables)
        for index, name in enumerate(field.names):
            write_table(field.folder / name / "own.csv", index)
            field.write_node(name, data={"path": "own.csv"})
        return field

    return make


class SeenTrees:
    """The rounds of each node by number, and the labels of the sums for which each gave a part."""

    def __init__(self):
        self.rounds, self.given = {}, {}


@pytest.fixture
def seen(monkeypatch):
    seen = SeenTrees()
    begin, total = TreeRounds.__init__, TreeRounds.sum

    def began(rounds, node, course, learner):
        begin(rounds, node, course, learner)
        rounds.index = node.setup().member.index
        seen.rounds[rounds.index] = rounds

    async def summed(rounds, label, *arguments, **asked):
        seen.given.setdefault(rounds.index, []).append(label)
        return await total(rounds, label, *arguments, **asked)

    monkeypatch.setattr(TreeRounds, "__init__", began)
    monkeypatch.setattr(TreeRounds, "sum", summed)
    return seen
