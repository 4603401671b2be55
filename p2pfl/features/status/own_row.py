"""A node's row of vitals, which the other members see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from p2pfl.config.model import FederationConfig
from p2pfl.features.status.hearing import Hearing
from p2pfl.features.status.witness import NOTHING, Witness
from p2pfl.learn.metrics import Measure
from p2pfl.node.feed import Feed
from p2pfl.node.status import Status
from p2pfl.reporting.measures import value_of
from p2pfl.reporting.status import NodeLine
from p2pfl.reporting.vitals import MOST_WORDS, Vitals, bitmap, figure, in_row, word
from p2pfl.software import software


class OwnRow:
    """Makes this node's row of vitals.

    `federation` returns the node's current federation, `own` is the node's index, `line` its short status. `measures`
    are its task's measures, the main one first. There is a `witness` if there is a privacy budget.
    """

    def __init__(
        self,
        *,
        federation: Callable[[], FederationConfig],
        own: int,
        status: Status,
        line: Callable[[], NodeLine],
        feed: Feed,
        measures: Callable[[], Sequence[Measure]],
        hearing: Hearing,
        witness: Witness | None = None,
    ) -> None:
        self._federation, self._own, self._status, self._line = federation, own, status, line
        self._feed, self._measures, self._hearing, self._witness = feed, measures, hearing, witness

    @property
    def intervals(self) -> Mapping[str, tuple[float, float]]:
        """Return the intervals of its scores, by name, for readers of this node only."""
        return self._line().intervals

    def vitals(self) -> Vitals:
        """Return the current vitals, still without a counter."""
        line, core = self._line(), self._status.core
        account = NOTHING if self._witness is None else self._witness.account()
        return Vitals(
            member=self._own,
            counter=0,
            life=core.life.name,
            phase=word(line.phase),
            rounds=line.rounds,
            accuracy=figure(line.accuracy),
            loss=figure(line.loss),
            distance=figure(line.neighbor_distance),
            staleness=None if line.staleness is None else figure(float(line.staleness.mean)),
            bytes_sent=line.bytes_sent,
            bytes_received=line.bytes_received,
            exchanges=line.exchanges,
            live=bitmap(self._hearing.live),
            unheard=bitmap(self._hearing.unheard),
            alarms=sum(self._status.alarms.values()),
            standing=tuple(word(kind) for kind in self._feed.kinds[:MOST_WORDS]),
            charter=self._federation().charter_version,
            software=word(software()),
            metrics=tuple(figure(value_of(line, one)) for one in in_row(self._measures())),
            epsilon=None if line.privacy is None else figure(line.privacy.epsilon),
            budget=account.name,
            begun=account.order,
            paid=account.steps,
            tested_round=line.tested_round if line.test_is_stale else None,
        )


def account_alone(own: Vitals) -> Vitals:
    """Return a row with nothing but the budget's account, for a federation without vitals."""
    return Vitals(
        member=own.member,
        counter=own.counter,
        life=own.life,
        phase="",
        rounds=0,
        accuracy=None,
        loss=None,
        distance=None,
        staleness=None,
        bytes_sent=0,
        bytes_received=0,
        exchanges=0,
        live=b"",
        alarms=0,
        standing=(),
        charter=0,
        software="",
        epsilon=own.epsilon,
        budget=own.budget,
        begun=own.begun,
        paid=own.paid,
    )
