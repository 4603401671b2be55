"""A torch model as a `Learner`: H steps of a torch optimizer from a given vector, and its loss and accuracy.

Each round starts with an empty optimizer state, because the model that it belongs to is mixed in between, unless
`training.keep_optimizer` wants it kept: then it is part of what is not shared. Batch order and dropout depend on (seed,
node, round) alone. Dropout draws from torch's default generator, which is one per process and device: it is seeded for
the round and put back afterwards, so two learners must not train in two threads of one process at the same time. What
is on which device, and in which precision, is for `devices`.

Between calls the module is scratch space for what is shared, and the home of what is not: of the personal tensors and
the integer ones. `_settled` is a copy of these as the last round left them that ended well. A round that does not end
well puts it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from p2pfl.chance import generator, torch_seed
from p2pfl.config.model import Compute, TrainingConfig
from p2pfl.config.privacy import MEMBER, RECORD
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.devices import Device, is_shortage, seeded
from p2pfl.learn.evaluation import BATCH, SMALLER, are_classes, are_labels, batches_of, loss_of, score
from p2pfl.learn.interface import LocalRound, RoundStart, Score, Vector
from p2pfl.learn.metrics import ACCURACY, LOSS, Measure, measured_by
from p2pfl.learn.optimizers import make_optimizer, remember, remembered
from p2pfl.learn.params import FlatModule, TensorPlace
from p2pfl.learn.privacy.draws import Draws
from p2pfl.learn.privacy.gradients import RowGradients, row_gradients
from p2pfl.learn.privacy.member import hide_round
from p2pfl.learn.privacy.plan import Plan, refuse_delta
from p2pfl.learn.privacy.protection import Protected, Protection
from p2pfl.learn.privacy.record import PrivateSteps
from p2pfl.learn.privacy.row_mixing import refuse_mixing
from p2pfl.learn.reloading import files_of
from p2pfl.learn.samples import DataSets, Samples, TensorSamples, batch_sizes, draw_batches, read_samples
from p2pfl.learn.sharing import WHOLE
from p2pfl.learn.task import NodeContext, Task
from p2pfl.plugins import FAILURES, describe_failure


class TorchLearner:
    """The `Learner` of a `Task`. Building it reads the node's data and tries the model on two samples.

    `share` are the patterns of what is shared, `compute` says on which device. With a `protection` its rounds are
    private: it has a `plan`, and tells no figure of what it protects.
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
        self.digest = task.digest
        self.share = tuple(share)
        self._make_module()
        self.train_set, self.test_set = read_samples(task, context)
        self.size = self._flat.size
        self.personal = self._flat.personal
        self.shape_digest = self._flat.digest
        self.samples = len(self.train_set)
        with self.device.seeded(0):
            self.labels = try_out(self.module, self.train_set, task, self.device)
        """Whether targets are class labels."""
        self.measures = _measures(task, labels=self.labels)
        """What the task is measured by, the main measure first."""
        self._protected = None if protection is None else Protected(protection, self.samples)
        self.row_gradients = self._gradients_of_rows()

    @property
    def plan(self) -> Plan | None:
        """What its rounds may tell, and how much noise hides the rest; None: they are not private."""
        return None if self._protected is None else self._protected.plan

    def steps_with(self, samples: int) -> int:
        """Those of a local round on so many samples."""
        if self.plan is not None and self.plan.unit == RECORD:
            return self.plan.spend(samples).steps
        return len(batch_sizes(self.training, samples))

    @property
    def protection(self) -> Protection | None:
        return None if self._protected is None else self._protected.protection

    def _gradients_of_rows(self) -> RowGradients | None:
        """None where no single row is protected. Raises UserError: rows meet in the model."""
        if self.plan is None or self.plan.unit != RECORD:
            return None
        with self.device.seeded(0):
            trial = self.device.rows(self.train_set.rows)(torch.arange(min(2, self.samples)))
            refuse_mixing(self.module, trial[0], self.device, self.task.name)
            return row_gradients(self.module, self._parameters, loss_of(self.task), self.device, trial)

    def _make_module(self) -> None:
        """The task's initial model, as drawn from the federation's seed, and what belongs to it."""
        with seeded(torch_seed(self.context.seed, "model")):
            built = _build(self.task)
        on_host = FlatModule(built, self.task.name, self.share)
        self.module = self.device.place(built)
        self._flat = on_host if self.device.is_host else FlatModule(self.module, self.task.name, self.share)
        if self._flat.digest != on_host.digest:
            text = "tensors of the model that share memory on the processor do not share it there"
            raise self.device.mistake(text, "cpu")
        self._parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self._optimizer = make_optimizer(self._parameters, self.training, self.task.name)
        self._loss_of_batch = self.device.loss(self.module, loss_of(self.task))
        self._settled = self._local()

    @property
    def places(self) -> list[TensorPlace]:
        """The layout of a vector."""
        return self._flat.places

    def at_node(self, context: NodeContext, train_set: Samples, test_set: Samples | None) -> TorchLearner:
        """The same task at another node, with data already read: as one made anew.

        Where the module keeps nothing from one round to the next (no `local_state`), both share it, and the new one
        weighs next to nothing.
        """
        other = copy(self)
        other.context, other.train_set, other.test_set = context, train_set, test_set
        other.samples = len(train_set)
        if self._protected is not None:
            other._protected = Protected(self._protected.protection, other.samples)  # noqa: SLF001 - of the same class
        if self._settled or self.training.keep_optimizer:
            other._make_module()  # noqa: SLF001 - as above
            other.row_gradients = other._gradients_of_rows()  # noqa: SLF001 - as above
        return other

    @property
    def data_sets(self) -> DataSets:
        return DataSets(train=self.train_set, test=self.test_set)

    def data_files(self) -> tuple[Path, ...] | None:
        return files_of(self.task, self.context)

    def read_again(self) -> DataSets:
        train_set, test_set = read_samples(self.task, self.context)
        try:
            with self.device.seeded(0):
                labels = try_out(self.module, train_set, self.task, self.device)
        finally:
            self._load_local(self._settled)
        if labels != self.labels:
            text = "the targets are of another kind than at the node's start"
            allowed = "class labels" if self.labels else "no class labels"
            raise UserError(text, file=self.task.name, key="training set, targets", allowed=allowed)
        if test_set is None and self.test_set is not None:
            raise UserError("there is none any more", file=self.task.name, key="test set", allowed="one, as before")
        if self.plan is not None:
            refuse_delta(self.plan.unit, self.plan.delta, len(train_set))
        return DataSets(train=train_set, test=test_set)

    def adopt(self, found: DataSets) -> None:
        self.train_set, self.test_set = found.train, found.test
        self.samples = len(found.train)

    def initial(self) -> Vector:
        """Builds the model once more: it is asked for once, and a copy kept for it would weigh as much as the model.

        Raises UserError: the task gives the same module each time.
        """
        with seeded(torch_seed(self.context.seed, "model")):
            module = _build(self.task)
        if module is self.module:
            text = "model returned the same module twice, so that nodes would train each other's"
            allowed = "a function that builds a new one each time"
            raise UserError(text, file=self.task.name, key="model", value=type(module).__name__, allowed=allowed)
        return FlatModule(module, self.task.name, self.share).vector()

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        self._flat.load(start.model)
        gradient = self._gradients(start)
        place, rate = (self.context.node, round_index), self.training.rate(round_index, start.elapsed_s)
        draws = None if self._protected is None else self._protected.draws(*place)
        private = self._private_steps(draws)
        batches = self._batches(*place) if private is None else private.batches
        seed = torch_seed(self.context.seed, "dropout", *place) if draws is None else draws.seed()
        try:
            with self.device.seeded(seed):
                loss = self._descend(batches, gradient, rate, private)
            vector = self._ended()
        except BaseException:
            self._load_local(self._settled)
            raise
        if self._protected is not None and draws is not None:
            loss = self._protected.told_loss(loss)
            if self._protected.plan.unit == MEMBER:
                vector = hide_round(start.model, vector, self._protected.plan, draws)
        return LocalRound(
            vector=vector,
            steps=len(batches),
            learning_rate=rate,
            samples=self.samples,
            loss=loss,
        )

    def _ended(self) -> Vector:
        """Where a round has ended, its local part kept. One of a hidden member is in no finite model if that part is in
        none: that such a round was dropped would tell of rows, without noise.
        """
        vector = self._flat.vector()
        try:
            self._settle(vector)
        except LearningError:
            if self.plan is None or self.plan.unit != MEMBER:
                raise
            self._load_local(self._settled)
            return np.full_like(vector, np.nan)
        return vector

    def _batches(self, node: int, round_index: int) -> list[Tensor]:
        return draw_batches(self.training, self.samples, generator(self.context.seed, "batches", node, round_index))

    def _private_steps(self, draws: Draws | None) -> PrivateSteps | None:
        """Of a round in which single rows are protected."""
        if self.plan is None or draws is None or self.row_gradients is None:
            return None
        return PrivateSteps(self.plan, self.samples, draws, self.row_gradients)

    def finetune(self, vector: Vector, epochs: int) -> Vector:
        """The model (d,) after `epochs` passes over the node's own data, from `vector`.

        Where the node trains a part of the model for itself, that alone is trained, and `vector` is returned as it is.
        Raises LearningError: the user's code failed, or what is learned is not finite; UserError: rounds are private.
        """
        if self.plan is not None:
            raise UserError("would tell of the node's rows without noise", key="--finetune", allowed="no [privacy]")
        self._flat.load(vector)
        training = replace(self.training, local_steps=None, local_epochs=epochs)
        place = (self.context.seed, "finetune", self.context.node)
        batches = draw_batches(training, self.samples, generator(*place))
        shared = [parameter for parameter, _ in self._flat.parts({})]
        keeps = len(shared) < len(self._parameters)

        def leave_shared() -> None:
            for parameter in shared if keeps else ():
                parameter.grad = None

        try:
            with self.device.seeded(torch_seed(*place)):
                self._descend(batches, leave_shared, self.training.learning_rate)
            tuned = self._flat.vector()
            self._settle(tuned)
        except BaseException:
            self._load_local(self._settled)
            raise
        if not np.isfinite(tuned).all():
            raise LearningError(f"{self.task.name}: fine-tuning ended in no finite model (learning_rate too high?)")
        return vector if keeps else tuned

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        sets = {"test": self.test_set, "local": self.train_set}
        samples = sets[part]
        if samples is None or (self._protected is not None and not self._protected.tells(part)):
            return None
        self._flat.load(vector)
        for batch in (BATCH, *SMALLER):
            try:
                return score(self.module, samples, self.task, self.device, batch)
            except FAILURES as error:
                if is_shortage(error) and batch != SMALLER[-1]:
                    self.device.free()
                    continue
                self.device.refuse_shortage(error)
                raise LearningError(f"{self.task.name}: evaluation failed: {describe_failure(error)}") from error
        raise AssertionError("no batch was tried")

    def predictions(self, vector: Vector) -> tuple[Tensor, Tensor] | None:
        """Outputs and targets (n, ...) of the test set, on the processor; None without one, or where it is withheld.

        Raises LearningError: the task failed.
        """
        samples = self.test_set
        if samples is None or (self._protected is not None and not self._protected.tells("test")):
            return None
        self._flat.load(vector)
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                batches = batches_of(samples, self.device, SMALLER[0])
                kept = [(self.module(inputs).cpu(), targets.cpu()) for inputs, targets, _ in batches]
        except FAILURES as error:
            self.device.refuse_shortage(error)
            raise LearningError(f"{self.task.name}: evaluation failed: {describe_failure(error)}") from error
        finally:
            self.module.train(was_training)
        return torch.cat([pair[0] for pair in kept]), torch.cat([pair[1] for pair in kept])

    def value_of(self, measure: Measure) -> Callable[[Any, Any], float]:
        """What computes one of the task's measures from all outputs and targets of a set."""
        if measure.name in self.task.metrics:
            metric = self.task.metrics[measure.name]
            return lambda outputs, targets: float(metric(outputs, targets))
        if measure.name == ACCURACY.name:
            return lambda outputs, targets: float((outputs.argmax(dim=1) == targets).float().mean())
        return lambda outputs, targets: float(loss_of(self.task)(outputs, targets))

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        """The very arrays that the learner keeps: a round replaces them, nobody writes to them."""
        return dict(self._settled)

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        self._load_local(state)
        self._settled = dict(state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Vector:
        """Take over a plain model: its shared part (d,) is returned, the rest becomes this learner's.

        Raises RuntimeError: torch says that it is of another model.
        """
        self.module.load_state_dict(dict(state), strict=True)
        self._settled = self._local()
        return self._flat.vector()

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        self._flat.load(vector)
        return self._flat.state_dict()

    def _settle(self, vector: Vector) -> None:
        """Keep what a round that ended in `vector` (d,) made of the tensors that are not shared.

        Raises LearningError: there is one in which training ended in no finite number.
        """
        if not self._settled and not self.training.keep_optimizer:
            return
        if not np.isfinite(vector).all():
            self._load_local(self._settled)
            return
        settled = self._local()
        if not (self._flat.is_finite() and all(np.isfinite(settled[name]).all() for name in _of_optimizer(settled))):
            raise LearningError(f"{self.task.name}: a personal tensor is not finite (learning_rate too high?)")
        self._settled = settled

    def _local(self) -> dict[str, NDArray[np.generic]]:
        """Copies of what is not shared, as it is now."""
        if not self.training.keep_optimizer:
            return self._flat.local_state()
        kept = {OPTIMIZER + name: array for name, array in remembered(self._optimizer).items()}
        return self._flat.local_state() | kept

    def _load_local(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        of_optimizer = _of_optimizer(state)
        self._flat.load_local_state({name: array for name, array in state.items() if name not in of_optimizer})
        if self.training.keep_optimizer:
            remember(self._optimizer, {name.removeprefix(OPTIMIZER): state[name] for name in of_optimizer})

    def _gradients(self, start: RoundStart) -> Callable[[], None]:
        """Called after each backward pass: puts the method's gradients in place of the loss's."""
        method = start.method
        if method is None:
            return lambda: None
        parts = self._flat.parts({"anchor": start.model, **start.given})

        @torch.no_grad()
        def put() -> None:
            for parameter, part in parts:
                if parameter.grad is not None or method.every_parameter:
                    g = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = method.gradient(g, parameter, part)

        return put

    def _descend(
        self,
        batches: list[Tensor],
        put_gradients: Callable[[], None],
        rate: float,
        private: PrivateSteps | None = None,
    ) -> float:
        """The mean of the steps' losses; not a number where no step had a row. Gradients are gone afterwards, from
        memory too, and so is an optimizer's state that is not kept.
        """
        self.module.train()
        read = self.device.rows(self.train_set.rows)
        backward = self._backward(read) if private is None else private.backward(self._parameters, read)
        try:
            losses = self._steps(batches, backward, put_gradients, rate)
        except FAILURES as error:
            self.device.refuse_shortage(error)
            raise LearningError(f"{self.task.name}: training failed: {describe_failure(error)}") from error
        finally:
            for parameter in self._parameters:
                parameter.grad = None
            if not self.training.keep_optimizer:
                self._optimizer.memory = {}
        return float(torch.stack(losses).float().mean()) if losses else math.nan

    def _backward(self, read: Callable[[Tensor], tuple[Any, Any]]) -> Callable[[Tensor], Tensor]:
        """Leaves the gradient of the batch of these rows at the parameters; returns its loss."""
        backward, loss_of_batch = torch.autograd.backward, self._loss_of_batch

        def differentiate(rows: Tensor) -> Tensor:
            inputs, targets = read(rows)
            loss = loss_of_batch(inputs, targets)
            backward(loss)
            return loss.detach()

        return differentiate

    def _steps(
        self,
        batches: list[Tensor],
        backward: Callable[[Tensor], Tensor | None],
        put_gradients: Callable[[], None],
        rate: float,
    ) -> list[Tensor]:
        """The inner loop. What a step looks up stands in local names: a step of a small model takes 0.1 ms."""
        step, losses, parameters = self._optimizer.begin(rate), [], self._parameters
        for rows in batches:
            for parameter in parameters:
                parameter.grad = None
            loss = backward(rows)
            put_gradients()
            step()
            if loss is not None:
                losses.append(loss)
        return losses


OPTIMIZER = "optimizer:"
"""What the names of an optimizer's arrays begin with, where they stand beside a model's."""


def _of_optimizer(state: Mapping[str, NDArray[np.generic]]) -> set[str]:
    return {name for name in state if name.startswith(OPTIMIZER)}


def _build(task: Task) -> nn.Module:
    try:
        module: Any = task.model()
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"model failed: {describe_failure(error)}", file=task.name, key="model") from error
    if not isinstance(module, nn.Module):
        raise UserError(
            "model returned something else", file=task.name, key="model", value=module, allowed="a torch.nn.Module"
        )
    return module


def try_out(module: nn.Module, samples: Samples, task: Task, device: Device | None = None) -> bool:
    """Refuse at the start what would fail in the first round: outputs, targets and loss that do not match.

    Returns whether targets are class labels, so that there is an accuracy.
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
        found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(
            "loss returned something else", file=task.name, key="loss", value=found, allowed="a scalar tensor"
        )
    return are_classes(outputs, targets)


def _measures(task: Task, *, labels: bool) -> tuple[Measure, ...]:
    """Raises UserError: accuracy is to be the main one, and there is none."""
    if task.metric == ACCURACY.name and not labels and task.metric not in task.metrics:
        text, others = "targets are no class labels, so there is no accuracy", (*task.metrics, LOSS.name)
        raise UserError(text, file=task.name, key="metric", value=task.metric, allowed=", ".join(others))
    return measured_by(task.metrics, task.metric, labels=labels)


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
