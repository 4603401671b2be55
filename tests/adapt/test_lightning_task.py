"""`p2pfl.adapt.lightning`: a module is trained by its own steps and optimizer."""

from __future__ import annotations

import numpy as np
import pytest

lightning = pytest.importorskip("lightning", reason="the extra lightning has it, which `dev` does without")

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from p2pfl.adapt.lightning import task  # noqa: E402
from p2pfl.config import TrainingConfig  # noqa: E402
from p2pfl.errors import UserError  # noqa: E402
from p2pfl.learn import (  # noqa: E402
    NodeContext,
    RoundStart,
)

pytestmark = pytest.mark.filterwarnings("ignore")


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch, index):
        self.log("test_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))
        self.log("accuracy", 0.5)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


class Points(lightning.LightningDataModule):
    def __init__(self, node):
        super().__init__()
        x = torch.rand(40 + node.node, 2, generator=torch.Generator().manual_seed(node.node))
        self.rows = TensorDataset(x, x @ torch.tensor([[1.0], [2.0]]))

    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=8)

    def test_dataloader(self):
        return DataLoader(self.rows, batch_size=64)


def learner(module=Line, node=1):
    context = NodeContext(node=node, nodes=2, name="n", seed=0, base_dir=None)
    return task(module, Points).learner(context, TrainingConfig())


def test_a_module_learns_from_a_start_that_all_nodes_share():
    made = learner()
    np.testing.assert_array_equal(made.initial(), learner(node=0).initial())
    assert (made.size, made.samples) == (3, 41)
    done = made.train(RoundStart(made.initial()), 0)
    before, after = made.evaluate(made.initial(), "test"), made.evaluate(done.vector, "test")
    assert after.loss < 0.5 * before.loss
    assert (after.accuracy, after.samples, done.loss > 0) == (0.5, 41, True)
    assert list(made.state_dict(done.vector)) == ["layer.weight", "layer.bias"]


def test_what_does_not_fit_is_one_clear_error():
    with pytest.raises(UserError, match="module: this must be a function"):
        task(Line(), Points)
    with pytest.raises(UserError, match="first arrays: failed: ZeroDivisionError"):
        learner(lambda: 1 / 0)
