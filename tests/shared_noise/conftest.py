"""Nodes and learners with shared noise, for the tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from p2pfl.features.privacy import give_permission
from p2pfl.features.shared_noise.rounds import SumRounds
from p2pfl.learn.privacy import Promise, Secret
from tests import rounds_kit

torch.set_num_threads(1)

ward, start, hasty = rounds_kit.ward, rounds_kit.start, rounds_kit.hasty
ROUNDS = 5
"""The same in most tests: the noise for a budget takes a second to compute, once for each."""
PRIVACY = {"unit": "member", "noise": "shared", "epsilon": 1000.0, "delta": 1e-2, "clip": 4.0, "accountant": "rdp"}
STEPS = {"rounds": ROUNDS, "local_steps": 1, "learning_rate": 0.2, "closing_rounds": None}


@pytest.fixture
def shared_ward(ward):
    """Make a federation with shared noise whose budgets may begin; `privacy` are keys of its table, `tables` others."""

    def make(nodes=4, *, privacy=None, training=None, gossip=None, **tables):
        gossip = {"linger_s": 3.0, "compressor": None} | (gossip or {})
        field = ward(nodes, training=STEPS | (training or {}), gossip=gossip, **tables)
        field.tables["privacy"] = promised = PRIVACY | (privacy or {})
        field.write()
        for name in field.names:
            promise = Promise(promised["unit"], promised["epsilon"], promised["delta"])
            give_permission(field.folder / name / "node.key", promise)
        return field

    return make


class Seen:
    """The rounds of each node that was started, by number, and what they gave, paid and got."""

    def __init__(self):
        self.rounds, self.parts, self.sums, self.paid = {}, {}, {}, {}

    def steps(self, node):
        """The steps that a node's budget has paid for."""
        ledger = node.application.thread.engine.state.ledger
        return ledger.steps


@pytest.fixture
def seen(monkeypatch):
    """Note what nodes with shared noise do."""
    seen = Seen()
    begin, make, total = SumRounds.__init__, SumRounds._make_part, SumRounds.sum

    def began(rounds, node, course, shared):
        begin(rounds, node, course, shared)
        rounds.index = node.setup().member.index
        seen.rounds[rounds.index] = rounds

    async def made(rounds):
        given = await make(rounds)
        if given is not None:
            steps = getattr(rounds._node.thread.engine.state.ledger, "steps", 0)
            seen.parts.setdefault(rounds.index, []).append((rounds.algorithm.facts.rounds, given, steps))
        return given

    async def summed(rounds, label, words, terms, **asked):
        done = await total(rounds, label, words, terms, **asked)
        if done is not None:
            seen.sums.setdefault(rounds.index, []).append((label, words, done))
        return done

    monkeypatch.setattr(SumRounds, "__init__", began)
    monkeypatch.setattr(SumRounds, "_make_part", made)
    monkeypatch.setattr(SumRounds, "sum", summed)
    return seen


@pytest.fixture
def silent(monkeypatch):
    """Let parts have no noise, so that the model is known."""
    monkeypatch.setattr(Secret, "noise", lambda _, size: np.zeros(size, np.int64))
