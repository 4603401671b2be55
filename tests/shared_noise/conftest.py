"""Nodes and learners with shared noise, for the tests of this folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from p2pfl.engine.ledger import Promise
from p2pfl.features.privacy.permission import give_permission

torch.set_num_threads(1)
_spec = importlib.util.spec_from_file_location(
    "kit_of_nodes", Path(__file__).parents[1] / "integration" / "conftest.py"
)
_kit = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _kit
_spec.loader.exec_module(_kit)
ward, start = _kit.ward, _kit.start

ROUNDS = 5
"""The same in most tests: the noise for a budget takes a second to compute, once for each."""
PRIVACY = {"unit": "member", "noise": "shared", "epsilon": 1000.0, "delta": 1e-2, "clip": 1e4, "accountant": "rdp"}
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
