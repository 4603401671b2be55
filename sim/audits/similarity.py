"""How close reconstructed inputs come to the private ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.floating[Any]]
MOST_DB = 100.0
"""The PSNR of equal arrays: beyond it float32 rounding makes the difference."""
RECOGNIZABLE_DB = 20.0
"""The PSNR from which a picture shows what it is of."""


@dataclass(frozen=True, slots=True)
class Match:
    """The private row that a guess comes closest to, and its `psnr_db`."""

    row: int
    psnr_db: float


def psnr_db(guess: Rows, truth: Rows, span: float) -> float:
    """Return the peak signal-to-noise ratio of two arrays of one shape whose values span `span`, at most 100 dB."""
    error = float(np.mean((guess.astype(np.float64) - truth) ** 2))
    return MOST_DB if error == 0 else min(MOST_DB, 10 * float(np.log10(span**2 / error)))


def span_of(rows: Rows) -> float:
    """Return the range of the values of private rows; 1 where all are equal."""
    return float(rows.max() - rows.min()) or 1.0


def best_match(guess: Rows, truths: Rows, span: float) -> Match:
    """Find the nearest of the rows `truths` (n, ...) to `guess` (...), which is cut off at the range of
    their values.
    """
    flat = truths.reshape(len(truths), -1).astype(np.float64)
    inside = np.clip(np.nan_to_num(guess.reshape(-1)), flat.min(), flat.max())
    row = int(((flat - inside) ** 2).sum(axis=1).argmin())
    return Match(row, psnr_db(inside, flat[row], span))


def matched(guesses: Rows, truths: Rows, span: float) -> list[Match]:
    """Match each of the `guesses` (b, ...) with another row of `truths` (n, ...), the closest pair first."""
    flat = truths.reshape(len(truths), -1).astype(np.float64)
    inside = np.clip(np.nan_to_num(guesses.reshape(len(guesses), -1)), flat.min(), flat.max())
    costs = ((inside[:, None] - flat[None]) ** 2).mean(axis=2)
    free, found = set(range(len(truths))), dict[int, Match]()
    for place in np.argsort(costs, axis=None).tolist():
        guess, row = divmod(place, len(truths))
        if guess not in found and row in free:
            free.discard(row)
            found[guess] = Match(row, psnr_db(inside[guess], flat[row], span))
    return [found[guess] for guess in sorted(found)]
