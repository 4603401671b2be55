"""Figures over the test rows of all nodes, from sums over the nodes, to each of which a node adds its own rows alone.

Each node tests its own model. `row_sums` are whole numbers within `WITHIN`, of the same names and shapes at all nodes;
`pooled` turns their sums into figures. Scores are counted in fixed bins, since AUC is no sum: pairs of rows in one bin
count as ties, so that it is off by at most half of their share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.interface import Score
from p2pfl.learn.limbs import LIMBS, MOST, limbs_of, value_of
from p2pfl.learn.metrics import LOSS, Classified, Measure, Metric, OfClasses, classified

WITHIN = (-(2**48), 2**48)
MOST_ODDS, ODDS_BINS = 16, 1024
"""Bins of the logarithm of the odds of class 1, from -16 to 16; the outer ones have all beyond."""
PARTS = 10
"""Bins of probabilities, for calibration."""
PROBABILITY_STEPS = 2**16
MOST_CLASSES = 256

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """The area under the ROC curve over all rows, and how far it may be off."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPart:
    """The rows with a probability of class 1 in this part: its mean, and the share of rows that are of class 1."""

    low: float
    high: float
    rows: int
    predicted: float | None
    observed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Figures over all rows. A figure is None if no node has it, or if the task is of another kind."""

    rows: int
    main: float | None
    """The mean of the nodes' main measures, weighted by their rows."""
    loss: float | None
    confusion: Counts | None
    """(classes, classes): the rows of each true class by predicted class."""
    area: Area | None
    calibration: tuple[CalibrationPart, ...] = ()

    @property
    def calibration_error(self) -> float | None:
        """The mean distance, over rows, between a part's mean probability and its share of class 1. Probabilities are
        rounded, so it may be off by 2^-17.
        """
        rows = sum(part.rows for part in self.calibration)
        known = [part for part in self.calibration if part.predicted is not None and part.observed is not None]
        gaps = [part.rows * abs((part.predicted or 0.0) - (part.observed or 0.0)) for part in known]
        return math.fsum(gaps) / rows if rows else None


def row_sums(score: Score, main: Measure, predictions: Classified | None) -> dict[str, Counts]:
    """Return what a node adds. `predictions` are those of a classification."""
    loss = score.loss
    value = loss if main.name == LOSS.name else score.metrics.get(main.name, score.accuracy)
    found = {"rows": np.array(score.samples)} | _weighted("main", value, score) | _weighted("loss", loss, score)
    if predictions is not None and predictions.logs.shape[1] <= MOST_CLASSES:
        found["confusion"] = _confusion(predictions)
        if predictions.is_binary:
            found |= _histograms(predictions)
    return found


def predictions_of(metrics: Mapping[str, Any], outputs: Any, targets: Any, *, labels: bool) -> Classified | None:
    """Interpret outputs and targets (n, ...), by the task's metrics; None: it is no classification. With `labels`
    targets are classes of several outputs.
    """
    is_of_classes = any(isinstance(one, Metric) and isinstance(one.compute, OfClasses) for one in metrics.values())
    return classified(outputs, targets) if labels or is_of_classes else None


def pooled(sums: Mapping[str, NDArray[Any]]) -> Pooled:
    """Return the figures that the sums give."""
    confusion = sums.get("confusion")
    return Pooled(
        rows=int(sums["rows"]),
        main=_mean("main", sums),
        loss=_mean("loss", sums),
        confusion=confusion,
        area=_area(sums["scores"]) if "scores" in sums else None,
        calibration=_parts(sums["calibration"]) if "calibration" in sums else (),
    )


def _weighted(name: str, value: float | None, score: Score) -> dict[str, Counts]:
    """Return a figure times the rows, and the rows; nothing of one that is not known there."""
    if value is None or not abs(value * score.samples) < MOST:
        return {name: np.zeros(LIMBS, np.int64), f"{name} rows": np.array(0)}
    return {name: limbs_of(value * score.samples), f"{name} rows": np.array(score.samples)}


def _mean(name: str, sums: Mapping[str, NDArray[Any]]) -> float | None:
    rows = int(sums[f"{name} rows"])
    return value_of(sums[name]) / rows if rows else None


def _is_known(predictions: Classified) -> bool:
    return not bool(np.isnan(predictions.logs).any())


def _confusion(predictions: Classified) -> Counts:
    """Rows whose outputs are not finite are of no predicted class."""
    classes = predictions.logs.shape[1]
    found = np.zeros((classes, classes), np.int64)
    if _is_known(predictions):
        np.add.at(found, (predictions.labels, predictions.chosen), 1)
    return found


def _histograms(predictions: Classified) -> dict[str, Counts]:
    """Return `scores` (ODDS_BINS, 2), rows by log odds and class, and `calibration` (PARTS, 3), by probability: rows,
    those of class 1, and the sum of probabilities in steps of 2^-16.
    """
    scores, parts = np.zeros((ODDS_BINS, 2), np.int64), np.zeros((PARTS, 3), np.int64)
    if _is_known(predictions):
        odds, labels = predictions.logs[:, 1] - predictions.logs[:, 0], predictions.labels
        places = np.floor((odds + MOST_ODDS) * ODDS_BINS / (2 * MOST_ODDS))
        np.add.at(scores, (np.clip(places, 0, ODDS_BINS - 1).astype(np.int64), labels), 1)
        chances = predictions.probabilities[:, 1]
        part = np.minimum((chances * PARTS).astype(np.int64), PARTS - 1)
        steps = np.rint(chances * PROBABILITY_STEPS).astype(np.int64)
        np.add.at(parts, part, np.stack([np.ones_like(labels), labels, steps], axis=1))
    return {"scores": scores, "calibration": parts}


def _area(scores: Counts) -> Area | None:
    negative, positive = (scores[:, place].astype(np.float64) for place in (0, 1))
    pairs = negative.sum() * positive.sum()
    if not pairs:
        return None
    ties = float(negative @ positive) / 2
    below = np.cumsum(negative) - negative
    return Area(value=(float(below @ positive) + ties) / float(pairs), error=ties / float(pairs))


def _parts(counts: Counts) -> tuple[CalibrationPart, ...]:
    return tuple(
        CalibrationPart(
            low=place / PARTS,
            high=(place + 1) / PARTS,
            rows=int(rows),
            predicted=float(steps) / PROBABILITY_STEPS / int(rows) if rows else None,
            observed=int(ones) / int(rows) if rows else None,
        )
        for place, (rows, ones, steps) in enumerate(counts)
    )
