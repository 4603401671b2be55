"""What a node has done over all its lives: a core counts from its own start alone."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.core.core import Core
from p2pfl.reporting.status import MeanAndMax


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """`weighed` are the exchanges whose staleness was weighed; it is in own rounds in which the edge has its turn.

    `mixed` are the rounds that a robust rule had neighbors enough for, `alone` those that it had not.
    """

    exchanges: int = 0
    weighed: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    failed_rounds: int = 0
    mixed: int = 0
    alone: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            exchanges=self.exchanges + other.exchanges,
            weighed=self.weighed + other.weighed,
            staleness_sum=self.staleness_sum + other.staleness_sum,
            staleness_max=max(self.staleness_max, other.staleness_max),
            failed_rounds=self.failed_rounds + other.failed_rounds,
            mixed=self.mixed + other.mixed,
            alone=self.alone + other.alone,
        )

    @property
    def staleness(self) -> MeanAndMax:
        mean = self.staleness_sum / self.weighed if self.weighed else 0.0
        return MeanAndMax(mean=mean, max=self.staleness_max)


def counts_of(core: Core) -> Counts:
    edges = core.edges.values()
    weighing = [edge.exchange.weighing for edge in edges]
    return Counts(
        exchanges=sum(edge.service.exchanges for edge in edges),
        weighed=sum(one.weighed for one in weighing),
        staleness_sum=sum(one.staleness_sum for one in weighing),
        staleness_max=max((one.staleness_max for one in weighing), default=0),
        failed_rounds=core.rounds.training.failed_rounds,
        mixed=core.rounds.mixing.mixed,
        alone=core.rounds.mixing.alone,
    )
