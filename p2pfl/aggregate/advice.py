"""Which robust rule where: `p2pfl check`, `p2pfl plan` and docs/how-to/liars.md say what stands here.

Figures are accuracies of honest nodes on the built-in digits; the page names the sweeps that measure them.
"""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """The rules to take, the first one first, where each node knows few or most `classes` and has at least so many
    honest neighbors for each liar, and what was measured there.
    """

    classes: str
    honest_from: int
    world: str
    rules: tuple[str, ...]
    measured: str


_CLOSE = (
    "with 3 or 4, the worst of seven attacks took .01 to .04 from hampel and .14 from nnm+trimmed-mean; "
    "ascent, which knows all data, took .13 to .33 from hampel"
)
_MANY = "the worst of seven attacks took nothing from hampel, ascent .00 to .04; the others are as good"
_FEW = "with 2, .75 with nnm+trimmed-mean and .63 with hampel if nobody lies; under spectral .70 and .59"
_FEW_MANY = "with 5, .83 to .84 with either, with or without an attack"
ADVICE = (
    Advice("most", 0, "most classes, fewer than 8", ("hampel",), _CLOSE),
    Advice("most", 8, "most classes, 8 or more", ("hampel", "nnm+trimmed-mean", "geometric-median"), _MANY),
    Advice("few", 0, "few classes, fewer than 5", ("nnm+trimmed-mean",), _FEW),
    Advice("few", 5, "few classes, 5 or more", ("hampel", "nnm+trimmed-mean"), _FEW_MANY),
)


def advice(*, few_classes: bool, honest_each: float) -> Advice:
    """Return the advice for nodes with data of few or most classes and so many honest neighbors for each liar."""
    return [one for one in ADVICE if (one.classes == "few") == few_classes and one.honest_from <= honest_each][-1]
