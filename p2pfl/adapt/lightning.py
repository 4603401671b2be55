"""A LightningModule with its datamodule as a node's learner, with the optimizer that it configures.

    task = lightning.task(make_module, make_datamodule)

A local round is one `Trainer.fit`, by default of one epoch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2pfl.adapt.client import Arrays, ClientFit, ClientLearner, ClientScore, needed, numbers_of
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.task import NodeContext

QUIET: Mapping[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "devices": 1,
}
LOSSES = ("test_loss", "val_loss", "loss")


def task(
    module: Callable[[], Any],
    datamodule: Callable[[NodeContext], Any],
    *,
    trainer: Mapping[str, Any] | None = None,
    name: str = "",
) -> LightningTask:
    """Make a task of functions that return a new LightningModule, and a node's LightningDataModule.

    `trainer` has further arguments of `Trainer`, such as `max_epochs` (1). A test is `Trainer.test`, or
    `Trainer.validate` if the module has no `test_step`; what it logs are the figures. Raises UserError: lightning is
    not installed, or an argument is no function.
    """
    needed("lightning.pytorch", "lightning", "lightning")
    for key, function in (("module", module), ("datamodule", datamodule)):
        if not callable(function) or (hasattr(function, "training_step") and not isinstance(function, type)):
            raise UserError("this must be a function", file="lightning.task", key=key, value=type(function))
    return LightningTask(module=module, datamodule=datamodule, trainer=trainer or {}, name=name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LightningTask:
    """A task with a learner of its own; `task` makes it."""

    module: Callable[[], Any]
    datamodule: Callable[[NodeContext], Any]
    trainer: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def learner(self, context: NodeContext, training: TrainingConfig) -> ClientLearner:
        """Make the learner of one node. Raises UserError: the module or its data fail."""
        return ClientLearner(lambda: LightningClient(self, context), context, training, "a LightningModule")


class LightningClient:
    """The module of one node. Its optimizer starts anew in each round."""

    def __init__(self, task: LightningTask, context: NodeContext) -> None:
        self.module = task.module()
        self.name = type(self.module).__name__
        self.data = task.datamodule(context)
        self._settings = {"max_epochs": 1, **QUIET, **task.trainer}
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def first(self) -> Arrays:
        return [np.array(tensor.detach().cpu().numpy()) for tensor in self.module.state_dict().values()]

    def names(self, count: int) -> list[str]:
        del count
        return list(self.module.state_dict())

    def count(self) -> int:
        """Return the number of rows that the training loader reads."""
        self.data.prepare_data()
        self.data.setup("fit")
        return len(self.data.train_dataloader().dataset)

    def fit(self, arrays: Arrays, round_index: int) -> ClientFit:
        del round_index
        self._load(arrays)
        trainer = self._trainer()
        trainer.fit(self.module, datamodule=self.data)
        if trainer.interrupted:
            raise LearningError(f"{self.name}: the fit was interrupted")
        return ClientFit(self.first(), self.count(), self._figures(trainer))

    def evaluate(self, arrays: Arrays) -> ClientScore | None:
        from lightning.pytorch.utilities.model_helpers import is_overridden  # noqa: PLC0415 - an extra

        tests = is_overridden("test_step", self.module) and is_overridden("test_dataloader", self.data)
        if not tests and not is_overridden("validation_step", self.module):
            return None
        self._load(arrays)
        trainer = self._trainer()
        run = trainer.test if tests else trainer.validate
        run(self.module, datamodule=self.data, verbose=False)
        figures = self._figures(trainer)
        loaders = trainer.test_dataloaders if tests else trainer.val_dataloaders
        loss = next((figures[name] for name in LOSSES if name in figures), math.nan)
        return ClientScore(loss, len(loaders.dataset), figures)

    def _trainer(self) -> Any:
        from lightning.pytorch import Trainer  # noqa: PLC0415 - an extra

        return Trainer(**self._settings)

    def _figures(self, trainer: Any) -> dict[str, float]:
        return numbers_of({name: float(value) for name, value in trainer.callback_metrics.items()})

    def _load(self, arrays: Arrays) -> None:
        import torch  # noqa: PLC0415 - lightning has loaded it

        names = self.module.state_dict()
        self.module.load_state_dict(
            {key: torch.from_numpy(np.array(array)) for key, array in zip(names, arrays, strict=True)}
        )
