"""What the searches of robust rules vary: a task and a method of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from p2pfl.learn.digits import digits as built_in
from p2pfl.learn.task import NodeContext

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "robust"))
from momentum import Smoothed
from shared_images import digits


def test_every_node_has_the_shared_images_besides_its_own(tmp_path):
    """As many of each digit; the test set is the common one, and holds none of them."""
    found = []
    for node in range(4):
        context = NodeContext(node=node, nodes=4, name="a", seed=0, base_dir=tmp_path, local={})
        (inputs, targets), test = digits(partition="shards:2", shared=50).data(context)
        (own, _), common = built_in(partition="shards:2").data(context)
        assert torch.equal(inputs[: len(own)], own)
        assert targets[len(own) :].bincount(minlength=10).tolist() == pytest.approx([5] * 10, abs=1)
        assert torch.equal(test[0], common[0])
        found.append(inputs[len(own) :])
    assert all(torch.equal(found[0], one) for one in found)


def test_smoothed_rounds_move_as_far_in_the_long_run():
    method, node = Smoothed(beta=0.5), SimpleNamespace(kept={"smoothed": np.zeros(2, np.float32)})
    change, moved = np.array([1.0, -2.0], np.float32), []
    for _ in range(20):
        new = method.trained(change, node, SimpleNamespace(rho=1.0))
        node.kept = new.kept
        moved.append(new.change["model"])
    assert moved[0].tolist() == [0.5, -1.0]
    np.testing.assert_allclose(moved[-1], change, rtol=1e-5)
