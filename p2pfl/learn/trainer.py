"""A torch task as a `Learner`: one node's data, its local rounds on them, and the scores of a model.

Batch order and dropout depend on (seed, node, round) alone. Dropout draws from torch's default generator, of which
there is one per process and device. It is seeded for the round and restored afterwards, so two learners must not train
in two threads of a process at the same time. The model itself is in `torch_model`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from p2pfl.chance import generator, torch_seed
from p2pfl.config.model import Compute, TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.evaluation import BATCH, Device, are_classes, are_labels, log_shares, loss_of, score
from p2pfl.learn.interface import WHOLE, LocalRound, RoundStart, Score, Vector, batch_sizes
from p2pfl.learn.privacy.gradients import PrivateRounds, PrivateSteps
from p2pfl.learn.privacy.plan import Plan, Protection
from p2pfl.learn.privacy.rounds import own_part
from p2pfl.learn.task import NodeContext, Task, measures_for
from p2pfl.learn.tensors import DataSets, Samples, TensorSamples, draw_batches, read_samples
from p2pfl.learn.torch_model import TorchModel
from p2pfl.plugins import FAILURES, describe_failure


class TorchLearner:
    """The `Learner` of a `Task`. Constructing it reads the node's data and tries the model on two samples.

    `share` has the patterns for what is shared, `compute` selects the device. With a `protection`, its rounds are
    `private`: it has a `plan`, and reports no figure computed from protected rows.
    """

    def __init__(
        self,
        task: Task,
        context: NodeContext,
        training: TrainingConfig,
        share: Sequence[str] = WHOLE,
        compute: Compute | None = None,
        *,
        protection: Protection | None = None,
    ) -> None:
        self.device = Device(compute)
        self.task = task
        self.context = context
        self.training = training
        self.model = TorchModel(task, training, share, self.device, context.seed)
        self.digest = _joined(task.digest, self.model.flat.frozen_digest())
        self.train_set, self.test_set = read_samples(task, context)
        self.size = self.model.flat.size
        self.personal, self.frozen = self.model.flat.personal, self.model.flat.frozen
        self.shape_digest = self.model.flat.digest
        self.samples = len(self.train_set)
        with self.device.seeded(0):
            self.classes = try_out(self.model.module, self.train_set, task, self.device)
        """The number of classes, if targets are class labels, or 0."""
        if training.logit_adjust and (not self.classes or task.loss is not None):
            text, value = "adjusts the cross entropy of class labels, which this task has not", training.logit_adjust
            raise UserError(text, file=task.name, key="training.logit_adjust", value=value, allowed="0")
        self.measures = measures_for(task, labels=self.labels)
        """The task's measures, the main one first."""
        self.private = None if protection is None else PrivateRounds(protection, self.model, self.train_set)

    @cached_property
    def prior(self) -> Tensor | None:
        """What the loss adds to outputs (classes,), if it is adjusted; from labels that only this node knows."""
        weight, samples = self.training.logit_adjust, self.train_set
        if not weight:
            return None
        if isinstance(samples, TensorSamples):
            return log_shares(samples.targets, self.classes, weight)
        parts = torch.split(torch.arange(len(samples)), BATCH)
        return log_shares(torch.cat([samples.rows(part)[1].flatten() for part in parts]), self.classes, weight)

    @property
    def labels(self) -> bool:
        """Return True if targets are class labels."""
        return self.classes > 0

    @property
    def plan(self) -> Plan | None:
        """Return the plan for the noise in its rounds, or None if they are not private."""
        return None if self.private is None else self.private.plan

    def steps_with(self, samples: int) -> int:
        """Return the number of steps in a local round on `samples` rows."""
        private = None if self.private is None else self.private.steps_with(samples)
        return len(batch_sizes(self.training, samples)) if private is None else private

    def at_node(self, context: NodeContext, train_set: Samples, test_set: Samples | None) -> TorchLearner:
        """Return a learner of the same task for another node, whose data have already been read.

        If the model keeps nothing from one round to the next, both share it, and the new learner needs almost no
        memory.
        """
        other = copy(self)
        other.context, other.train_set, other.test_set = context, train_set, test_set
        other.samples = len(train_set)
        other.__dict__.pop("prior", None)
        if not self.model.keeps_nothing:
            other.model = self.model.anew()
        if self.private is not None and other.model is self.model:
            other.private = self.private.at_node(other.samples)
        elif self.private is not None:
            other.private = PrivateRounds(self.private.protection, other.model, train_set)
        return other

    @property
    def data_sets(self) -> DataSets:
        return DataSets(train=self.train_set, test=self.test_set)

    def initial(self) -> Vector:
        return self.model.initial()

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        if self.private is not None and self.private.shared is not None and not self.private.hides_member:
            return self._give_part(start, round_index, self.private)
        model, private, place = self.model, self.private, (self.context.node, round_index)
        model.flat.load(start.model)
        put_gradients = model.gradients(start)
        rate = self.training.rate(round_index, start.elapsed_s, start.closing)
        draws = None if private is None else private.protection.chance.of_round(*place)
        steps = None if private is None or draws is None else private.steps(self.samples, draws)
        batches = self._batches(*place) if steps is None else steps.batches
        seed = torch_seed(self.context.seed, "dropout", *place) if draws is None else draws.seed()
        with model.attempt():
            with self.device.seeded(seed):
                loss = model.descend(batches, self._backward(steps), put_gradients, rate)
            vector = self._end_round()
        if private is not None and draws is not None:
            loss, vector = private.protection.public_loss(loss), private.next_model(start.model, vector, draws)
        return LocalRound(vector=vector, steps=len(batches), learning_rate=rate, samples=self.samples, loss=loss)

    def _give_part(self, start: RoundStart, round_index: int, private: PrivateRounds) -> LocalRound:
        """Make this node's part of a sum of all rows' clipped gradients; until the sum is known the model stays."""
        model, draws = self.model, private.protection.chance.of_round(self.context.node, round_index)
        model.flat.load(start.model)
        model.module.train()
        try:
            with model.attempt(), self.device.seeded(draws.seed()):
                private.gradient_part(self.samples, draws, model.reader(self.train_set))
        except FAILURES as error:
            self.device.refuse_shortage(error)
            raise LearningError(f"{self.task.name}: training failed: {describe_failure(error)}") from error
        loss, rate = private.protection.public_loss(math.nan), self.training.learning_rate
        return LocalRound(vector=start.model, steps=1, learning_rate=rate, samples=self.samples, loss=loss)

    def _batches(self, node: int, round_index: int) -> list[Tensor]:
        return draw_batches(self.training, self.samples, generator(self.context.seed, "batches", node, round_index))

    def _backward(self, steps: PrivateSteps | None) -> Callable[[Tensor], Tensor | None]:
        if steps is None:
            return self.model.backward(self.train_set, self.prior)
        return steps.backward(self.model.parameters, self.model.reader(self.train_set))

    def _end_round(self) -> Vector:
        """Return the model at the end of a round, and keep its local part. If members are protected and the local part
        is not finite, the whole model becomes NaN, because dropping the round would reveal something about rows without
        noise.
        """
        vector = self.model.flat.vector()
        try:
            self.model.settle(vector)
        except LearningError:
            if self.private is None or not self.private.hides_member:
                raise
            self.model.put_back()
            return np.full_like(vector, np.nan)
        return vector

    def finetune(self, vector: Vector, epochs: int) -> Vector:
        """Return the model (d,) after `epochs` passes over the node's own data, starting from `vector`.

        If the node has personal parameters, only these are trained, and `vector` is returned unchanged. Raises
        LearningError: the user's code failed, or the result is not finite; UserError: rounds are private.
        """
        if self.plan is not None:
            raise UserError("would reveal the node's rows without noise", key="--finetune", allowed="no [privacy]")
        model = self.model
        model.flat.load(vector)
        training = replace(self.training, local_steps=None, local_epochs=epochs)
        place = (self.context.seed, "finetune", self.context.node)
        batches = draw_batches(training, self.samples, generator(*place))
        shared = [parameter for parameter, _ in model.flat.parts({})]
        keeps = len(shared) < len(model.parameters)

        def leave_shared() -> None:
            for parameter in shared if keeps else ():
                parameter.grad = None

        with model.attempt():
            with self.device.seeded(torch_seed(*place)):
                model.descend(batches, self._backward(None), leave_shared, self.training.learning_rate)
            tuned = model.flat.vector()
            model.settle(tuned)
        if not np.isfinite(tuned).all():
            raise LearningError(
                f"{self.task.name}: the model is not finite after fine-tuning (learning_rate too high?)"
            )
        return vector if keeps else tuned

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        sets = {"test": self.test_set, "local": self.train_set}
        samples = sets[part]
        if samples is None or (self.private is not None and not self.private.protection.may_report(part)):
            return None
        self.model.flat.load(vector)
        return score(self.model.module, samples, self.task, self.device)

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        shared = None if self.private is None else self.private.shared
        return self.model.local_state() | ({} if shared is None else shared.kept())

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        self.model.load_local_state(own_part(None if self.private is None else self.private.shared, state))

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        self.model.flat.load(vector)
        return self.model.flat.state_dict()


def _joined(digest: bytes, frozen: bytes) -> bytes:
    """Return one digest of what a task must have in common and of its frozen values, if there are any."""
    return hashlib.blake2b(digest + frozen, digest_size=32, person=b"p2pfl-fixed").digest() if frozen else digest


def try_out(module: nn.Module, samples: Samples, task: Task, device: Device | None = None) -> int:
    """Check at the start that outputs, targets and loss fit together, instead of failing in the first round.

    Returns the number of classes if targets are class labels, so that there is an accuracy; 0 if not.
    """
    device = device or Device()
    module.eval()
    try:
        with torch.no_grad():
            inputs, targets = device.rows(samples.rows)(torch.arange(min(2, len(samples))))
            outputs = module(inputs)
            _check_labels(task, outputs, samples)
            loss = loss_of(task)(outputs, targets)
    except UserError:
        raise
    except FAILURES as error:
        device.refuse_shortage(error)
        text = f"model and loss fail on the first samples: {describe_failure(error)}"
        raise UserError(text, file=task.name, key="data") from error
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()):
        returned = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(
            "loss returned no scalar tensor", file=task.name, key="loss", value=returned, allowed="a scalar tensor"
        )
    return int(outputs.shape[1]) if are_classes(outputs, targets) else 0


def _check_labels(task: Task, outputs: Any, samples: Samples) -> None:
    if task.loss is not None or not isinstance(samples, TensorSamples) or not are_labels(outputs, samples.targets):
        return
    lowest, highest = int(samples.targets.min()), int(samples.targets.max())
    if lowest < 0 or highest >= outputs.shape[1]:
        raise UserError(
            "a class label has no output of the model",
            file=task.name,
            key="training set, targets",
            value=lowest if lowest < 0 else highest,
            allowed=f"0 to {outputs.shape[1] - 1}",
        )
