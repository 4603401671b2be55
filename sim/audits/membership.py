"""Membership inference by likelihood ratio: was this row among those that a node trained on?

Carlini et al. 2022, "Membership inference attacks from first principles" (arXiv 2112.03570, algorithm 1 and sections
V-VI): for each row, two Gaussians are fitted to the confidence of models with it and without it. The attacker trains
these shadow models itself, so it knows everything but which rows there are. As in the paper, success is the rate of
true positives at few false ones, not only the area under the curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.learn.interface import Vector
from p2pfl.learn.params import FlatModule

Values = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
FEW = 64
"""With fewer shadow models all rows share one variance, as in section VI-C of the paper."""
LEAST = 1e-3
"""The smallest standard deviation of confidences."""
FALSE_POSITIVES = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipFigures:
    """The success. `auc` is 0.5 for guessing; `tpr` is the share of members recognized where 1% of non-members are
    mistaken for members.
    """

    auc: float
    tpr: float


def confidences(module: nn.Module, inputs: Tensor, targets: Tensor) -> Values:
    """Logit-scaled confidence (n,) of each row's own class: log p_y - log(1 - p_y), from outputs (n, classes)."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        logs = functional.log_softmax(module(inputs).double(), dim=1)
    module.train(was_training)
    own = logs.gather(1, targets[:, None])[:, 0]
    others = logs.scatter(1, targets[:, None], -torch.inf).logsumexp(1)
    found: Values = (own - others).numpy()
    return found


def mean_confidences(
    module: nn.Module, flat: FlatModule, models: Sequence[Vector], inputs: Tensor, targets: Tensor
) -> Values:
    """Average the confidence (n,) over several `models` (d,) that were shown: each is one more query."""
    total = np.zeros(len(targets))
    for model in models:
        flat.load(model)
        total += confidences(module, inputs, targets)
    return total / max(1, len(models))


def likelihood_ratios(confidence: Values, shadows: Values, members: Flags) -> Values:
    """Compute for each row the log ratio (q,) of having been trained on to not.

    `confidence` (q,) is that of the target model and `shadows` (k, q) that of the shadow models, of which those that
    `members` (k, q) flags were trained on the row. A row that every shadow or none was trained on has ratio 0.
    """
    with_it, without = _fit(shadows, members), _fit(shadows, ~members)
    if len(shadows) < FEW:
        with_it, without = (
            (mean, np.full_like(spread, _pooled(shadows, flags)))
            for (mean, spread), flags in ((with_it, members), (without, ~members))
        )
    ratios: Values = _log_density(confidence, *with_it) - _log_density(confidence, *without)
    return np.where(members.any(axis=0) & (~members).any(axis=0), ratios, 0.0)


def attack_each(confidence: Values, members: Flags) -> MembershipFigures:
    """Make each of k models (k, q) in turn the target, and the others its shadows."""
    ratios = np.empty(confidence.shape)
    for target in range(len(confidence)):
        others = np.arange(len(confidence)) != target
        ratios[target] = likelihood_ratios(confidence[target], confidence[others], members[others])
    return judge(ratios.ravel(), members.ravel())


def judge(scores: Values, members: Flags) -> MembershipFigures:
    """Judge the `scores` (n,), which should be larger for `members` (n,). Raises ValueError: all rows are members, or
    none.
    """
    inside, outside = np.sort(scores[members]), np.sort(scores[~members])
    if not len(inside) or not len(outside):
        raise ValueError("members and others are needed")
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    auc = float(below.sum()) / (2.0 * len(inside) * len(outside))
    allowed = int(FALSE_POSITIVES * len(outside))
    hits = int((inside > outside[len(outside) - 1 - allowed]).sum())
    return MembershipFigures(auc=auc, tpr=hits / len(inside))


def _fit(shadows: Values, flags: Flags) -> tuple[Values, Values]:
    """Fit mean and standard deviation (q,) over the flagged entries of each row."""
    counts = np.maximum(flags.sum(axis=0), 1)
    mean = np.where(flags, shadows, 0.0).sum(axis=0) / counts
    square = np.where(flags, (shadows - mean) ** 2, 0.0).sum(axis=0) / np.maximum(counts - 1, 1)
    return mean, np.maximum(np.sqrt(square), LEAST)


def _pooled(shadows: Values, flags: Flags) -> float:
    """Return one standard deviation for all rows."""
    counts = flags.sum(axis=0)
    mean = np.where(flags, shadows, 0.0).sum(axis=0) / np.maximum(counts, 1)
    square = float(np.where(flags, (shadows - mean) ** 2, 0.0).sum())
    return max(LEAST, float(np.sqrt(square / max(1, int(np.maximum(counts - 1, 0).sum())))))


def _log_density(values: Values, mean: Values, spread: Values) -> Values:
    density: Values = -(((values - mean) / spread) ** 2) / 2 - np.log(spread)
    return density
