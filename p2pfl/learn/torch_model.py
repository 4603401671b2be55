"""A task's torch module in training: the optimizer's steps, and the state that is kept between rounds.

Each round starts with an empty optimizer state, because mixing changes the model between rounds. With
`training.keep_optimizer`, the state is kept as part of what is not shared. `Device` chooses device and precision; the
learner chooses the rows to read, the random draws, and which figures may be reported.

Between rounds, the module is only scratch space for the shared tensors, but it holds the personal and integer ones. A
copy of those is kept from the last successful round, and a failed round restores it.

Steps are those of torch's SGD, written out, and torch's Adam and AdamW through its functional interface, bit for bit.
The `torch.optim.Optimizer` objects pull in torch's compiler when the first one is made, which costs a node on a small
board 1.3 CPU-seconds and 80 MB for nothing. State lasts for one local round, unless `training.keep_optimizer` is set.
Then it carries over to the next round, although mixing has changed the model in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from p2pfl.chance import torch_seed
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.evaluation import Device, loss_of, seeded, with_prior
from p2pfl.learn.interface import RoundStart, Vector
from p2pfl.learn.task import Task
from p2pfl.learn.tensors import FlatModule, Samples
from p2pfl.methods import Method
from p2pfl.plugins import FAILURES, describe_failure

Step = Callable[[], None]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
PIECE = 1 << 18
"""The number of values that Adam moves at once."""


Memory = dict[str, dict[Tensor, Tensor]]
"""The state of an optimizer, by kind and parameter; a missing entry is zero."""


class Sgd:
    def __init__(self, parameters: Sequence[nn.Parameter], training: TrainingConfig) -> None:
        self.parameters = parameters
        self.training = training
        self.memory: Memory = {}
        self.slots = int(training.momentum > 0)
        """The number of values that it keeps for each parameter."""

    def begin(self, rate: float) -> Step:
        """Make a step function with this learning rate, to be called under `torch.no_grad`. It skips parameters whose
        gradient is None. Its state starts from `memory`, or empty.
        """
        parameters, training = self.parameters, self.training
        momentum, decay = training.momentum, training.weight_decay
        if not training.keep_optimizer:
            self.memory = {}
        buffers = self.memory.setdefault("momentum", {}) if momentum else {}

        def step() -> None:
            for parameter in parameters:
                if (move := parameter.grad) is None:
                    continue
                if decay:
                    move = move.add(parameter, alpha=decay)
                if momentum:
                    kept = buffers.get(parameter)
                    move = move.clone() if kept is None else kept.mul_(momentum).add_(move)
                    buffers[parameter] = move
                parameter.add_(move, alpha=-rate)

        return step


class Adam:
    """Adam, or AdamW with `decoupled` weight decay."""

    slots = 2

    def __init__(self, parameters: Sequence[nn.Parameter], training: TrainingConfig, *, decoupled: bool) -> None:
        self.parameters = parameters
        self.training = training
        self.function = adamw if decoupled else adam
        self.memory: Memory = {}

    def begin(self, rate: float) -> Step:
        parameters = self.parameters
        if not self.training.keep_optimizer:
            self.memory = {}
        first, second, taken = (self.memory.setdefault(kind, {}) for kind in ("first", "second", "taken"))
        for parameter in parameters:
            first.setdefault(parameter, torch.zeros_like(parameter))
            second.setdefault(parameter, torch.zeros_like(parameter))
            taken.setdefault(parameter, torch.tensor(0.0))

        move = partial(
            self.function,
            max_exp_avg_sqs=[],
            amsgrad=False,
            beta1=BETA1,
            beta2=BETA2,
            lr=rate,
            weight_decay=self.training.weight_decay,
            eps=EPSILON,
            maximize=False,
            foreach=False,
            fused=False,
        )

        def step() -> None:
            """Move large parameters in pieces: what a step takes beside its vectors then stays in the cache."""
            moving: list[Tensor] = [parameter for parameter in parameters if parameter.grad is not None]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            rest: list[int] = []
            for number, (parameter, gradient) in enumerate(zip(moving, gradients, strict=True)):
                vectors = (parameter, gradient, first[parameter], second[parameter])
                if parameter.numel() <= PIECE or not all(each.is_contiguous() for each in vectors):
                    rest.append(number)
                    continue
                flat, count = [each.view(-1) for each in vectors], taken[parameter]
                for begin in range(0, parameter.numel(), PIECE):
                    w, g, m, v = ([each[begin : begin + PIECE]] for each in flat)
                    move(w, g, m, v, state_steps=[count.clone()])
                count += 1
            if rest:
                small = [moving[number] for number in rest]
                moments = ([moment[parameter] for parameter in small] for moment in (first, second))
                steps = [taken[parameter] for parameter in small]
                move(small, [gradients[number] for number in rest], *moments, state_steps=steps)

        return step


Optimizer = Sgd | Adam


def make_optimizer(parameters: Sequence[nn.Parameter], training: TrainingConfig, source: str) -> Optimizer:
    """Make the optimizer that `training.optimizer` names.

    Raises UserError: there is no such optimizer, no parameter to train, or momentum is set for an optimizer without it.
    """
    if not parameters:
        raise UserError("the model has no parameter that can be trained", file=source, key="model")
    if training.momentum and training.optimizer != "sgd":
        text = f"{training.optimizer} has no momentum"
        raise UserError(text, key="training.momentum", value=training.momentum, allowed="0, or optimizer sgd")
    match training.optimizer:
        case "sgd":
            return Sgd(parameters, training)
        case "adam" | "adamw":
            return Adam(parameters, training, decoupled=training.optimizer == "adamw")
        case other:
            raise UserError("no such optimizer", key="training.optimizer", value=other, allowed="sgd, adam, adamw")


def remembered(optimizer: Optimizer) -> dict[str, NDArray[np.generic]]:
    """Copy the state of an optimizer, keyed by kind and parameter number, such as `momentum.0`."""
    numbers = {id(parameter): number for number, parameter in enumerate(optimizer.parameters)}
    return {
        f"{kind}.{numbers[id(parameter)]}": tensor.detach().float().cpu().numpy().copy()
        for kind, tensors in optimizer.memory.items()
        for parameter, tensor in tensors.items()
    }


def remember(optimizer: Optimizer, state: Mapping[str, NDArray[np.generic]]) -> None:
    """Restore what `remembered` returned. Arrays that do not fit the parameters come from a different optimizer and are
    dropped.
    """
    memory: Memory = {}
    for name, array in state.items():
        kind, _, number = name.rpartition(".")
        parameter = optimizer.parameters[int(number)] if int(number) < len(optimizer.parameters) else None
        if parameter is not None and array.shape in {(), tuple(parameter.shape)}:
            like = torch.from_numpy(np.array(array))
            memory.setdefault(kind, {})[parameter] = like if kind == "taken" else like.to(parameter)
    optimizer.memory = memory


OPTIMIZER = "optimizer:"
"""The prefix for the names of an optimizer's arrays, which are stored with a model's."""


class TorchModel:
    """A task's model on a device, initialized from the federation's `seed`.

    `share` has the patterns for what is shared; `flat` copies vectors (d,) in and out.
    """

    def __init__(self, task: Task, training: TrainingConfig, share: Sequence[str], device: Device, seed: int) -> None:
        """Build the model. Raises UserError: the task's function fails, or its model cannot be shared, trained or
        placed there.
        """
        self.task, self.training, self.device, self.seed = task, training, device, seed
        self.share = tuple(share)
        built = self._build()
        on_host = FlatModule(built, task.name, self.share)
        self.module = device.place(built)
        self.flat = on_host if device.is_host else FlatModule(self.module, task.name, self.share)
        if self.flat.digest != on_host.digest:
            text = "tensors of the model that share memory on the CPU do not share it there"
            raise device.mistake(text, "cpu")
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        """The parameters that are trained."""
        self._optimizer = make_optimizer(self.parameters, training, task.name)
        self._outputs = device.compiled(self.module)
        self._loss_of_batch = device.loss(self._outputs, loss_of(task))
        self._last_local = self._local()

    def anew(self) -> TorchModel:
        """Build another model from the same arguments."""
        return TorchModel(self.task, self.training, self.share, self.device, self.seed)

    @property
    def keeps_nothing(self) -> bool:
        """Return True if no state carries over from one round to the next, so that several nodes may share this model,
        one round at a time.
        """
        return not self._last_local and not self.training.keep_optimizer

    @property
    def bytes_in_training(self) -> int:
        """Return the host's memory at most for weights, gradients and the optimizer, or for the vector at the end.

        A step, a method's gradient, or the sum of two for a parameter that is used twice takes as much again as one
        parameter. Intermediate results of the task's model are not counted.
        """
        vector = 4 * self.flat.size
        if not self.device.is_host:
            return vector
        weights = sum(each.nbytes for each in (*self.module.parameters(), *self.module.buffers()))
        trained = [parameter.nbytes for parameter in self.parameters]
        stepping = sum(trained) * (1 + self._optimizer.slots) + max(trained)
        kept = sum(trained) * self._optimizer.slots * self.training.keep_optimizer
        return weights + max(stepping, vector + kept)

    def initial(self) -> Vector:
        """Build the model again and return its vector (d,). This is called only once, and keeping a copy for it would
        double the memory.

        Raises UserError: the task returns the same module each time.
        """
        module = self._build()
        if module is self.module:
            text = "model returned the same module twice, so that nodes would train each other's"
            allowed = "a function that builds a new one each time"
            raise UserError(text, file=self.task.name, key="model", value=type(module).__name__, allowed=allowed)
        return FlatModule(module, self.task.name, self.share).vector()

    def _build(self) -> nn.Module:
        task = self.task
        with seeded(torch_seed(self.seed, "model")):
            try:
                module: Any = task.model()
            except UserError:
                raise
            except FAILURES as error:
                raise UserError(f"model failed: {describe_failure(error)}", file=task.name, key="model") from error
        if not isinstance(module, nn.Module):
            text = "model returned no torch module"
            raise UserError(text, file=task.name, key="model", value=module, allowed="a torch.nn.Module")
        return module

    # -- steps --------------------------------------------------------------------------------------------------------

    def reader(self, samples: Samples) -> Callable[[Tensor], tuple[Any, Any]]:
        """Return a function that maps row numbers to their inputs and targets, on the device."""
        return self.device.rows(samples.rows)

    def backward(self, samples: Samples, prior: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """Make a function that computes the gradient for a batch of rows, stores it in the parameters, and returns the
        loss, adjusted by a `prior` (classes,). Both are means over rows, whether computed at once or in parts.
        """
        backward, loss_of_batch, read = torch.autograd.backward, self._loss_of_batch, self.reader(samples)
        if prior is not None:
            outputs, placed = self._outputs, prior.to(self.device.torch)
            loss_of_batch = self.device.loss(lambda inputs: with_prior(outputs(inputs), placed), loss_of(self.task))
        most = self.device.compute.micro_batch_size

        def differentiate(rows: Tensor) -> Tensor:
            inputs, targets = read(rows)
            loss = loss_of_batch(inputs, targets)
            backward(loss)
            return loss.detach()

        def accumulate(rows: Tensor) -> Tensor:
            total = torch.zeros((), device=self.device.torch)
            for part in torch.split(rows, most or len(rows)):
                inputs, targets = read(part)
                loss = loss_of_batch(inputs, targets) * (len(part) / len(rows))
                backward(loss)
                total += loss.detach()
            return total

        return differentiate if most is None else accumulate

    def gradients(self, start: RoundStart) -> Callable[[], None]:
        """Make a function to call after each backward pass: it replaces the gradients of the loss by the method's."""
        method = start.method
        if method is None:
            return lambda: None
        anchor = {"anchor": start.model} if method.needs_anchor or method.is_users else {}
        parts = self.flat.parts({**anchor, **start.given})

        def put() -> None:
            for parameter, part in parts:
                g = parameter.grad
                if g is not None or method.every_parameter:
                    g = torch.zeros_like(parameter) if g is None else g
                    parameter.grad = _corrected(method, g, parameter, part)

        return put

    def descend(
        self,
        batches: list[Tensor],
        backward: Callable[[Tensor], Tensor | None],
        put_gradients: Callable[[], None],
        rate: float,
    ) -> float:
        """Take a step for each of `batches`, from the module's current state. Return the mean loss of the steps, or NaN
        if no step had a row.

        Afterwards the gradients are freed, and so is the optimizer's state unless it is kept. Raises LearningError: the
        task's code failed; UserError: memory ran out.
        """
        self.module.train()
        try:
            losses = self._steps(batches, backward, put_gradients, rate)
        except FAILURES as error:
            self.device.refuse_shortage(error)
            raise LearningError(f"{self.task.name}: training failed: {describe_failure(error)}") from error
        finally:
            for parameter in self.parameters:
                parameter.grad = None
            if not self.training.keep_optimizer:
                self._optimizer.memory = {}
        return float(torch.stack(losses).float().mean()) if losses else math.nan

    def _steps(
        self,
        batches: list[Tensor],
        backward: Callable[[Tensor], Tensor | None],
        put_gradients: Callable[[], None],
        rate: float,
    ) -> list[Tensor]:
        """Run the inner loop. It keeps all in local variables: a step of a small model takes only 0.1 ms."""
        step, losses, parameters = self._optimizer.begin(rate), [], self.parameters
        for rows in batches:
            for parameter in parameters:
                parameter.grad = None
            loss = backward(rows)
            with torch.no_grad():
                put_gradients()
                step()
            if loss is not None:
                losses.append(loss)
        return losses

    # -- what is not shared -------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Restore the state that is not shared if the body fails."""
        try:
            yield
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Reset the state that is not shared to the end of the last successful round."""
        self._load_local(self._last_local)

    def settle(self, vector: Vector) -> None:
        """Keep the current tensors that are not shared, after a round that ended in `vector` (d,).

        Raises LearningError: training made one of them infinite or NaN.
        """
        if self.keeps_nothing:
            return
        if not np.isfinite(vector).all():
            self.put_back()
            return
        settled = self._local()
        if not (self.flat.is_finite() and all(np.isfinite(settled[name]).all() for name in _of_optimizer(settled))):
            raise LearningError(f"{self.task.name}: a personal tensor is not finite (learning_rate too high?)")
        self._last_local = settled

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        """Return the kept arrays themselves: a round replaces them, and nobody writes to them."""
        return dict(self._last_local)

    def load_local_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore what `local_state` returned. Raises UserError: it came from another model."""
        self._load_local(state)
        self._last_local = dict(state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Vector:
        """Load a plain model: return its shared part (d,) and keep the rest here.

        Raises RuntimeError: according to torch, the state belongs to another model.
        """
        self.module.load_state_dict(dict(state), strict=True)
        self._last_local = self._local()
        return self.flat.vector()

    def _local(self) -> dict[str, NDArray[np.generic]]:
        """Copy the current state that is not shared."""
        if not self.training.keep_optimizer:
            return self.flat.local_state()
        kept = {OPTIMIZER + name: array for name, array in remembered(self._optimizer).items()}
        return self.flat.local_state() | kept

    def _load_local(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        of_optimizer = _of_optimizer(state)
        self.flat.load_local_state({name: array for name, array in state.items() if name not in of_optimizer})
        if self.training.keep_optimizer:
            remember(self._optimizer, {name.removeprefix(OPTIMIZER): state[name] for name in of_optimizer})


def _corrected(method: Method, g: Tensor, parameter: nn.Parameter, part: Mapping[str, Tensor]) -> Tensor:
    """Return the method's gradient for a parameter. A large one by a method of ours, which are all elementwise, is
    computed piece by piece in the memory of `g`.
    """
    every = (g, parameter, *part.values())
    if method.is_users or g.numel() <= PIECE or not all(each.is_contiguous() for each in every):
        whole: Tensor = method.gradient(g, parameter, part)
        return whole
    flat, weights = g.view(-1), parameter.view(-1)
    vectors = {name: vector.view(-1) for name, vector in part.items()}
    for first in range(0, flat.numel(), PIECE):
        piece = slice(first, first + PIECE)
        here = {name: vector[piece] for name, vector in vectors.items()}
        flat[piece] = method.gradient(flat[piece], weights[piece], here)
    return g


def _of_optimizer(state: Mapping[str, NDArray[np.generic]]) -> set[str]:
    return {name for name in state if name.startswith(OPTIMIZER)}
