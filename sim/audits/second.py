"""A second accountant, which shares no line with the first: a lower bound on what many noisy steps reveal.

It composes the privacy losses of steps with Poisson sampling on a grid, by Fourier transform (Koskela, Jälkö and
Honkela 2020, arXiv 1906.03049), and rounds each loss down. So an accountant that reports less is wrong, however it
computes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
LOST = 0.02
"""The most of epsilon that all roundings together may take."""
MOST_CELLS = 1 << 22
REACH = 12.0
"""The range of noise that is integrated, in standard deviations."""
PARTS = 200_000
"""The number of parts of the noise; each moves all of its probability to where it reveals least."""


def epsilon_at_least(*, noise: float, rate: float, steps: int, delta: float) -> float:
    """Return a lower bound on epsilon at that delta, for a row that is added or taken away, whichever reveals more."""
    return max(_composed(*losses, steps, delta) for losses in _losses(noise, rate))


def _losses(noise: float, rate: float) -> list[tuple[Values, Values]]:
    """Compute the losses of one step, for a row that is taken away and one that is added.

    Each is a pair of losses (n,), log p/q for p with the row and q without it or the reverse, and of their
    probabilities (n,).
    """
    edges = np.linspace(-REACH * noise, REACH * noise + 1.0, PARTS + 1)
    ratio = (
        np.log1p(rate * np.expm1((2.0 * edges - 1.0) / (2.0 * noise**2)))
        if rate < 1
        else (2 * edges - 1) / (2 * noise**2)
    )
    without = np.diff(_phi(edges / noise))
    with_it = (1.0 - rate) * without + rate * np.diff(_phi((edges - 1.0) / noise))
    return [(ratio[:-1], with_it), (-ratio[1:], without)]  # the ratio rises: this is the least loss of each part


def _phi(values: Values) -> Values:
    found: Values = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in values.tolist()])
    return found


def _composed(losses: Values, chances: Values, steps: int, delta: float) -> float:
    """Compose the steps. Probability beyond the range counts as a loss of minus infinity."""
    mean = float((losses * chances).sum())
    spread = math.sqrt(max(1e-300, float(((losses - mean) ** 2 * chances).sum())))
    reach = (
        max(
            float(np.abs(losses[chances > delta * 1e-6]).max(initial=0.0)),
            abs(mean) * steps + 12 * spread * math.sqrt(steps),
        )
        + 1
    )
    cells = min(MOST_CELLS, 1 << math.ceil(math.log2(2 * reach * steps / (2 * LOST))))
    width = 2 * reach / cells
    places = np.floor(losses / width).astype(np.int64)
    seen = np.abs(places) < cells // 2
    one = np.bincount(places[seen] % cells, weights=chances[seen], minlength=cells)
    whole = np.fft.irfft(np.fft.rfft(one) ** steps, cells)
    at = np.where(np.arange(cells) < cells // 2, np.arange(cells), np.arange(cells) - cells) * width
    order = np.argsort(at)
    return _epsilon(at[order], np.maximum(whole[order], 0.0), delta)


def _epsilon(losses: Values, chances: Values, delta: float) -> float:
    """Return the epsilon at which losses (n,), ascending, with these probabilities allow that delta."""
    low, high = 0.0, float(losses[-1])
    for _ in range(50):
        middle = (low + high) / 2
        beyond = losses > middle
        delta_here = float((chances[beyond] * -np.expm1(middle - losses[beyond])).sum())
        low, high = (middle, high) if delta_here > delta else (low, middle)
    return low
