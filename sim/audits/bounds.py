"""Proofs from the errors of an attack: confidence bounds, and the least epsilon that allows so few errors.

If a mechanism is (epsilon, delta)-private, nobody can tell two neighboring data sets apart with fewer errors than that
allows (Kairouz, Oh, Viswanath 2015, arXiv 1311.0776). If its noise is Gaussian, a whole curve of errors bounds every
attack, that of two Gaussians at a distance mu (Dong, Roth, Su 2019, arXiv 1905.02383), so fewer tries prove more: Nasr
et al. 2023 (arXiv 2302.07956). Written without scipy, which is an extra.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating[Any]]
CONFIDENCE = 0.95
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Bounds that hold with 95% confidence; zero where nothing is proven.

    `mu` is the least distance of two unit Gaussians that allows as few errors as were observed; `epsilon` is the least
    of any mechanism that does, at the given delta.
    """

    mu: float
    epsilon: float
    tries: int
    """Runs with the row; as many run without it."""


def clopper_pearson(hits: int, tries: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Bound a probability of which `tries` gave `hits`: each bound is wrong with probability (1 - confidence) / 2."""
    error = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _root(lambda p: _at_least(hits, tries, p) - error)
    high = 1.0 if hits == tries else _root(lambda p: error - (1.0 - _at_least(hits + 1, tries, p)))
    return low, high


def proof(with_row: Values, without: Values, delta: float) -> Proof:
    """Prove bounds from the scores (n,) of runs with a row, which should be larger, and of runs without it (n,).

    The threshold is chosen on the first quarter of each and tested on the rest.
    """
    first = min(len(with_row), len(without)) // 4
    tries = min(len(with_row), len(without)) - first
    threshold = _threshold(with_row[:first], without[:first])
    positives = int((without[first : first + tries] > threshold).sum())
    negatives = int((with_row[first : first + tries] <= threshold).sum())
    fpr, fnr = (clopper_pearson(errors, tries)[1] for errors in (positives, negatives))
    mu = max(0.0, NORMAL.inv_cdf(1 - fpr) - NORMAL.inv_cdf(fnr)) if max(fpr, fnr) < 1 else 0.0
    return Proof(
        mu=mu,
        epsilon=max(0.0, _log_ratio(1 - delta - fnr, fpr), _log_ratio(1 - delta - fpr, fnr)),
        tries=tries,
    )


def epsilon_of_gaussians(mu: float, delta: float) -> float:
    """Return the epsilon of two unit Gaussians at a distance mu: corollary 2.13 of Dong, Roth and Su."""

    def delta_at(epsilon: float) -> float:
        at = -epsilon / mu + mu / 2
        beyond = NORMAL.cdf(at - mu)
        return NORMAL.cdf(at) - (math.exp(epsilon + math.log(beyond)) if beyond > 0 else 0.0)

    if mu <= 0 or delta_at(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_at(high) > delta:
        high *= 2
    return high * _root(lambda part: delta - delta_at(part * high))


def _threshold(with_row: Values, without: Values) -> float:
    """Return the threshold with the fewest errors of both kinds for Gaussians of these means: half way between them."""
    return float(with_row.mean() + without.mean()) / 2 if len(with_row) and len(without) else 0.0


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 and below > 0 else 0.0


def _at_least(hits: int, tries: int, p: float) -> float:
    """Return the probability of at least `hits` successes in `tries` of probability p."""
    if p <= 0.0:
        return 0.0 if hits > 0 else 1.0
    if p >= 1.0:
        return 1.0
    counts = np.arange(tries + 1)
    logs = _log_binomials(tries) + counts * math.log(p) + (tries - counts) * math.log1p(-p)
    return float(np.exp(logs[hits:]).sum())


def _log_binomials(tries: int) -> Values:
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, tries + 1)))])
    found: Values = logs[-1] - logs - logs[::-1]
    return found


def _root(rising: Callable[[float], float]) -> float:
    """Find the zero of an increasing function, between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return (low + high) / 2
