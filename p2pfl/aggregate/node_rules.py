"""The rules as a node uses them: its own model and the neighbors' replicas in, the model to go on with out.

Rules of many vectors take the own model as one of n = m + 1, of which b may lie, and ask for no weights: b counts
vectors, and a weight that a neighbor can raise by its own account would count for more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2pfl.aggregate import selection
from p2pfl.aggregate.batch import Rows
from p2pfl.aggregate.centered import Centered
from p2pfl.aggregate.columns import SAMPLED, Plain, Source
from p2pfl.aggregate.distances import Floats, combined, spread_of
from p2pfl.aggregate.interface import Mixture, Neighborhood
from p2pfl.aggregate.rules import AfterNNM, Aggregator, CenteredClipping, Chosen, Columnwise


class _Bearing:
    """What both kinds say of themselves."""

    __slots__ = ()
    rule: Aggregator

    @property
    def liars(self) -> int:
        return self.rule.f

    @property
    def least(self) -> int:
        return max(2 * self.liars + 1, self.rule.least - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around(_Bearing):
    """A rule around the own model, with the neighbors' weights."""

    spec: str
    rule: Centered

    def mix(self, around: Neighborhood) -> Mixture:
        if len(around.others) < self.least:
            return _unmoved(around)
        others = list(around.others)
        pulls = self.rule.pulls(around.own, others, around.weights, progress=around.progress)
        kept = self.rule.kept(pulls, around.weights) * self.rule.uncut(around.own, others)
        return Mixture(model=self.rule.moved(around.own, others, pulls.tolist()), kept=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Among(_Bearing):
    """A rule of the own model and the neighbors' alike."""

    spec: str
    rule: Aggregator

    def mix(self, around: Neighborhood) -> Mixture:
        if len(around.others) < self.least:
            return _unmoved(around)
        rows = [around.own, *around.others]
        match self.rule:
            case Chosen():
                return _shared(rows, self.rule.shares(spread_of(rows)))
            case CenteredClipping():
                return _shared(rows, self.rule.shares(spread_of(rows), slice(0, None)))
            case AfterNNM(rule=Chosen() as after):
                spread = spread_of(rows)
                return _shared(rows, after.shares_after(spread, selection.near_each(spread.squares, self.liars)))
            case Columnwise():
                source = Plain(rows)
                return Mixture(model=self.rule.of_source(source), kept=_let_through(source, self.rule)[1:])
            case _:
                return Mixture(model=self.rule.of(rows))


def _unmoved(around: Neighborhood) -> Mixture:
    """Too few neighbors for the rule to bear its liars: as if none were there."""
    return Mixture(model=around.own.copy(), kept=np.zeros(len(around.others)))


def _shared(rows: Rows, shares: Floats) -> Mixture:
    kept = np.minimum(1.0, shares[1:] * len(rows))
    return Mixture(model=combined(rows, shares.tolist()), kept=kept)


def _let_through(source: Source, rule: Columnwise) -> Floats:
    """(n,) the part of its values that was not cut off, of evenly spaced columns."""
    step = max(1, source.size // SAMPLED)
    values = np.stack(source.read(slice(0, source.size, step)))
    if not values.size:
        return np.ones(source.count)
    cut = rule.trimmed(source.count)
    order = np.sort(values, axis=0)
    inside = (order[cut] <= values) & (values <= order[source.count - 1 - cut])
    return np.asarray(inside.mean(axis=1))
