"""Which robust rule where: `p2pfl check`, `p2pfl plan` and docs/how-to/liars.md say what stands here.

Figures are accuracies of honest nodes on the built-in digits; the page names the sweeps that measure them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """The `rules` to take, the first one first, with at least so many honest neighbors for each liar, and what was
    `measured` there. `world` ends with "honest neighbors for each liar".
    """

    few_classes: bool
    honest_from: int
    world: str
    rules: tuple[str, ...]
    measured: str


ADVICE = (
    Advice(
        few_classes=False,
        honest_from=0,
        world="most classes, fewer than 8",
        rules=("hampel",),
        measured="with 3 or 4, the worst of seven attacks took .01 to .04 from hampel and .14 from nnm+trimmed-mean; "
        "ascent, which knows all data, took .13 to .33 from hampel",
    ),
    Advice(
        few_classes=False,
        honest_from=8,
        world="most classes, 8 or more",
        rules=("hampel", "nnm+trimmed-mean", "geometric-median"),
        measured="the worst of seven attacks took nothing from hampel, ascent .00 to .04; the others are as good",
    ),
    Advice(
        few_classes=True,
        honest_from=0,
        world="few classes, fewer than 5",
        rules=("nnm+trimmed-mean",),
        measured="with 2, .75 with nnm+trimmed-mean and .63 with hampel if nobody lies; under spectral .70 and .59",
    ),
    Advice(
        few_classes=True,
        honest_from=5,
        world="few classes, 5 or more",
        rules=("hampel", "nnm+trimmed-mean"),
        measured="with 5, .83 to .84 with either, with or without an attack",
    ),
)


def advice(*, few_classes: bool, honest_each: float) -> Advice:
    """Return the advice for nodes with data of few or most classes and so many honest neighbors for each liar."""
    return [one for one in ADVICE if one.few_classes == few_classes and one.honest_from <= honest_each][-1]
