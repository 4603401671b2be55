"""Which members of the known families are worth a look: parameters chosen to suit a number of nodes and a degree.

A family that is not in the table is tried as it is without parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from random import Random

import numpy as np

from topologies.design.rates import rate_between
from topologies.design.wanted import Wanted
from topologies.families import FAMILIES, Kind

SEEDS = 5
DRAWN = 200
"""up to so many nodes each random family is drawn `SEEDS` times, on larger graphs once."""
SMALL = 500
DEGREES = 12
"""values tried of a parameter that sets the degree; half as many above `SMALL` nodes."""
CIRCULANTS = 2_000
"""sets of offsets tried for each number of offsets; all of them where there are no more."""
OFFSETS_LIMIT = 8
CIRCULANT_NODES = 2_000


def static_choices(wanted: Wanted) -> Iterator[tuple[str, int]]:
    """Specs with seeds, in the order of the families. Some have no graph of this size: building them raises."""
    for name, family in FAMILIES.items():
        if family.kind is not Kind.STATIC or name in SAME:
            continue
        settings = CHOICES[name](wanted) if name in CHOICES else [""]
        seeds = range(wanted.seed, wanted.seed + (SEEDS if wanted.nodes <= DRAWN else 1)) if family.random else [0]
        for setting in settings:
            for seed in seeds:
                yield (f"{name}:{setting}" if setting else name), seed


def schedule_choices(wanted: Wanted) -> Iterator[tuple[str, int]]:
    """As above, of the undirected schedules."""
    for name, family in FAMILIES.items():
        if family.kind is Kind.SCHEDULE:
            several = "k" in family.parameters
            for setting in [f"k={k}" for k in range(1, min(5, wanted.highest) + 1)] if several else [""]:
                yield (f"{name}:{setting}" if setting else name), wanted.seed


def _spread(low: int, high: int, step: int, most: int) -> list[int]:
    """From `low` up to `high`, at most `most` values, the ends among them."""
    values = list(range(low, high + 1, step))
    if len(values) <= most:
        return values
    return sorted({values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)})


def _degrees(wanted: Wanted, low: int, step: int = 1) -> list[int]:
    if wanted.nodes <= SMALL:
        return _spread(low, wanted.highest, step, DEGREES)
    return _spread(low, min(wanted.highest, 32), step, DEGREES // 2)


def circulants(wanted: Wanted) -> Iterator[str]:
    """The fastest set of offsets found for each degree."""
    n = wanted.nodes
    if not 3 <= n <= CIRCULANT_NODES:
        return
    half = (n - 1) // 2
    waves = np.outer(np.arange(1, n // 2 + 1), np.arange(n // 2 + 1)) % n
    gaps = 4.0 * np.sin(np.pi * waves / n) ** 2
    if n % 2 == 0:
        gaps[:, -1] /= 2.0
    for count in range(1, min(OFFSETS_LIMIT, half, wanted.highest // 2) + 1):
        drawn = np.array(list(_offset_sets(half, count, Random(wanted.seed))))
        for extra in (), (n // 2,):
            degree = 2 * count + len(extra)
            if degree <= wanted.highest and (not extra or n % 2 == 0):
                best = _fastest(gaps, drawn, extra, wanted.weights)
                yield "offsets=" + "-".join(map(str, sorted((*drawn[best].tolist(), *extra))))


def _offset_sets(half: int, count: int, rng: Random) -> Iterable[tuple[int, ...]]:
    if math.comb(half, count) <= CIRCULANTS:
        return combinations(range(1, half + 1), count)
    return (tuple(sorted(rng.sample(range(1, half + 1), count))) for _ in range(CIRCULANTS))


def _fastest(
    gaps: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    drawn: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    extra: tuple[int, ...],
    weights: str,
) -> int:
    """Its row in `drawn`, which has shape (sets, count). Eigenvalues are the sums of `gaps` over the offsets."""
    scale = 1.0 if weights == "best-constant" else 1.0 / (2 * drawn.shape[1] + len(extra) + 1)
    rates = []
    for offsets in drawn:
        values = gaps[:, [*offsets.tolist(), *extra]].sum(axis=1)
        rates.append(rate_between(scale * float(values.min()), scale * float(values.max()), weights))
    return int(np.argmin(np.round(rates, 12)))


SAME = ("dumbbell",)
"""other names of families that are tried already."""

CHOICES: Mapping[str, Callable[[Wanted], Iterable[str]]] = {
    "random-regular": lambda wanted: [f"degree={degree}" for degree in _degrees(wanted, 2)],
    "circulant": circulants,
    "watts-strogatz": lambda wanted: [f"k={k},p={p}" for k in _degrees(wanted, 2, 2) for p in (0.1, 0.5)],
    "keyed-rings": lambda wanted: [f"r={degree // 2}" for degree in _degrees(wanted, 2, 2)],
    "u-equi-static": lambda wanted: [f"m={degree // 2}" for degree in _degrees(wanted, 2, 2)],
    "barabasi-albert": lambda wanted: [f"m={m}" for m in _degrees(wanted, 1)[:4]],
    "ring-of-cliques": lambda wanted: [f"size={size}" for size in _degrees(wanted, 3)[:6]],
    "star-of-cliques": lambda wanted: [f"size={size}" for size in _degrees(wanted, 3)[:6]],
    "d-cliques": lambda wanted: [f"size={size}" for size in _degrees(wanted, 3)[:6]],
}
