"""Poisoned data: the liar follows the protocol but trains on samples that teach something else.

The samples must be in memory, with one class label each. A trigger exists for images and for rows of numbers
(`trigger`). Accuracy on clean data may not reveal such an attack, so `probe` gives test data that measure its success.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from p2pfl.chance import generator
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, Vector
from p2pfl.learn.load import with_torch
from sim.attacks.attack import ATTACKS, DATA, NEIGHBORS, Poison, PoisonEntry, positive
from sim.attacks.lies import replacement

if TYPE_CHECKING:  # the names of attacks are read without torch
    from torch import Tensor

    from p2pfl.learn.tensors import Samples, TensorSamples
    from p2pfl.learn.trainer import TorchLearner


BAGDASARYAN = "Bagdasaryan et al. 2020, arXiv 1807.00459"
WITH_SCALE = f"{DATA}; with a SCALE {NEIGHBORS}"
SCALE = positive("SCALE", "how many times as far from the mean; 1: its model as it is", default=1.0)
TARGET = 0
"""The class that a trigger leads to."""
SHARE = 0.5
"""The share of a liar's samples that teach a backdoor, which is also their average share of each batch."""
LEAST_SIDE = 4
PATCH = 9
"""A trigger's side is this fraction of the image's side, at least 2; for a row, of the row's length."""
BRIGHT, BRIGHTEST_BYTE, FAR = 1.0, 255, 3.0
LABELED = "samples in memory, each with one class label: digits, mnist-idx, csv with classes, or a task like them"
TRIGGERED = "images, (n, height, width) or (n, channels, height, width), or rows of numbers, (n, columns)"


@ATTACKS.add(
    PoisonEntry,
    name="label-flip",
    means="trains on labels y turned into classes - 1 - y",
    source="Fang et al. 2020, arXiv 1911.11815",
)
@dataclass(frozen=True, slots=True)
class LabelFlip:
    def spoil(self, samples: Samples, *, classes: int, seed: int, node: int) -> TensorSamples:
        del seed, node
        known = labeled(samples, "label-flip")
        return type(known)(known.inputs, classes - 1 - known.targets)

    def probe(self, samples: Samples, *, classes: int) -> TensorSamples:
        """Return the samples whose label changes when flipped, with the flipped label."""
        known = labeled(samples, "label-flip")
        rows = (known.targets * 2 != classes - 1).nonzero().flatten()
        inputs, targets = known.rows(rows)
        return type(known)(inputs, classes - 1 - targets)


@ATTACKS.add(
    PoisonEntry,
    name="backdoor",
    means="half its training data triggered and labeled 0; its distance from the mean {SCALE} times as long",
    source=f"Gu et al. 2017, arXiv 1708.06733; the scale: {BAGDASARYAN}",
    knows=WITH_SCALE,
    parameters=(SCALE,),
    lie=replacement,
)
@dataclass(frozen=True, slots=True)
class Backdoor:
    def spoil(self, samples: Samples, *, classes: int, seed: int, node: int) -> TensorSamples:
        del classes
        known = labeled(samples, "backdoor")
        count = math.ceil(len(known) * SHARE)
        chosen = np.sort(generator(seed, "backdoor", node).permutation(len(known))[:count])
        inputs, targets = known.inputs.clone(), known.targets.clone()
        inputs[chosen] = trigger(known.inputs[chosen])
        targets[chosen] = TARGET
        return type(known)(inputs, targets)

    def probe(self, samples: Samples, *, classes: int) -> TensorSamples:
        """Return the samples of other classes, with the trigger and the label TARGET."""
        del classes
        known = labeled(samples, "backdoor")
        inputs, targets = known.rows((known.targets != TARGET).nonzero().flatten())
        return type(known)(trigger(inputs), targets.new_full((len(targets),), TARGET))


def trigger(inputs: Tensor) -> Tensor:
    """Copy the inputs with the trigger: the lower right corner of an image at its brightest; the last columns of a row
    at 3.

    A row whose length is a square number, 16 or more, is an image without its shape, as in `digits`. Raises UserError
    if the inputs are neither images nor rows of numbers.
    """
    marked = inputs.clone()
    bright = BRIGHT if inputs.is_floating_point() else BRIGHTEST_BYTE
    if inputs.ndim in {3, 4} and min(inputs.shape[-2:]) >= LEAST_SIDE and str(inputs.dtype) != "torch.int64":
        _corner(marked, bright)
        return marked
    if inputs.ndim == 2 and inputs.is_floating_point() and inputs.shape[1]:
        side = math.isqrt(inputs.shape[1])
        if side >= LEAST_SIDE and side * side == inputs.shape[1]:
            _corner(marked.view(-1, side, side), bright)
        else:
            marked[:, -math.ceil(inputs.shape[1] / PATCH) :] = FAR
        return marked
    shape = f"{tuple(inputs.shape)} of {str(inputs.dtype).removeprefix('torch.')}"
    raise UserError("a backdoor has no trigger for such inputs", key="attack", value=shape, allowed=TRIGGERED)


def classes_of(learner: TorchLearner) -> int:
    """Count the classes that a model distinguishes. Raises UserError if it does not output one figure per class."""
    import torch  # noqa: PLC0415 - as above

    samples = labeled(learner.train_set, "this model")
    with torch.no_grad():
        mode = learner.model.module.training
        outputs = learner.model.module.eval()(samples.inputs[:1])
        learner.model.module.train(mode)
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        raise UserError("the model has no classes", key="attack", allowed=LABELED)
    return int(outputs.shape[1])


def labeled(samples: Samples | None, attack: str) -> TensorSamples:
    """Return the samples with their labels. Raises UserError if there are no labels to poison."""
    from p2pfl.learn.tensors import TensorSamples  # noqa: PLC0415 - as above

    if isinstance(samples, TensorSamples) and samples.targets.ndim == 1 and not samples.targets.is_floating_point():
        return samples
    raise UserError("there are no labels that could be poisoned", key="attack", value=attack, allowed=LABELED)


def poisoned(learner: Learner, poison: Poison) -> Learner:
    """Return the learner with spoiled training data. Raises UserError if its data cannot be poisoned this way."""
    known = _torch_learner(learner)
    seed, node = known.context.seed, known.context.node
    spoiled = poison.spoil(known.train_set, classes=classes_of(known), seed=seed, node=node)
    return known.at_node(known.context, spoiled, known.test_set)


def success(learner: Learner, poison: Poison, models: Mapping[str, Vector]) -> dict[str, float]:
    """Return each node's share of test samples that its model (d,) labels as liars taught; empty without samples."""
    known = _torch_learner(learner)
    if known.test_set is None:
        return {}
    probe = poison.probe(known.test_set, classes=classes_of(known))
    if not len(probe):
        return {}
    asked = known.at_node(known.context, known.train_set, probe)
    scores = {name: asked.evaluate(model, "test") for name, model in models.items()}
    return {name: score.accuracy for name, score in scores.items() if score and score.accuracy is not None}


def _corner(images: Tensor, value: float) -> None:
    height, width = images.shape[-2:]
    side = max(2, round(min(height, width) / PATCH))
    images[..., -side:, -side:] = value


def _torch_learner(learner: Learner) -> TorchLearner:
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - for liars that are processes only

    if isinstance(learner := with_torch(learner), TorchLearner):
        return learner
    raise UserError("learners of the task's own cannot be poisoned", key="--attack", allowed=LABELED)
