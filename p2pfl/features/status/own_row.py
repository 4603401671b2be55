"""Track from which neighbors bytes arrive, by checking their sessions about once a second.

This is only for people. A silent session stays open until `Limits.silence_s`, because a slow line may take that long
for one encrypted chunk. Meanwhile the chunk's bytes keep arriving, and they count here. Checks are counted instead of
seconds, so that a process that was stopped for a minute does not count a minute of silence.


The link between a node's ledger and its neighbors: the account in its own rows, and the neighbors' memory of it.

A node's row of vitals, which the other members see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from p2pfl.config.model import FederationConfig
from p2pfl.engine.ledger import Signed
from p2pfl.features.privacy.budget import BudgetGuard
from p2pfl.features.privacy.evidence import LostAccount
from p2pfl.learn.metrics import Measure
from p2pfl.node.engine_thread import Correct, EngineThread
from p2pfl.node.feed import Feed
from p2pfl.node.status import SILENT_S, Status
from p2pfl.reporting.measures import value_of
from p2pfl.reporting.status import NodeLine
from p2pfl.reporting.vitals import MOST_WORDS, Vitals, bitmap, figure, in_row, word
from p2pfl.software import software

UNHEARD_LOOKS = round(SILENT_S)
"""A neighbor with a session counts as silent after this many checks without a byte."""
GONE_LOOKS = 2
"""A session counts as closed after this many checks without one: a renewed session is back at once."""


class Hearing:
    """The neighbors from which bytes arrive.

    `came` returns the number of a neighbor's session and the bytes received over it, or None if there is no session.
    """

    def __init__(self, came: Callable[[int], tuple[int, int] | None]) -> None:
        self._came = came
        self._latest: dict[int, tuple[int, int]] = {}
        self._silent: dict[int, int] = {}
        self._away: dict[int, int] = {}

    def look(self, neighbors: Iterable[int]) -> None:
        """Check all sessions; call this about once a second."""
        there = set(neighbors)
        for known in (self._latest, self._silent, self._away):
            for peer in known.keys() - there:
                del known[peer]
        for peer in sorted(there):
            now = self._came(peer)
            if now is None:
                self._away[peer] = self._away.get(peer, GONE_LOOKS) + 1
            else:
                self._away[peer] = 0
                self._silent[peer] = self._silent.get(peer, 0) + 1 if now == self._latest.get(peer) else 0
                self._latest[peer] = now

    @property
    def live(self) -> frozenset[int]:
        """Return the neighbors with a session, silent or not."""
        return frozenset(peer for peer, looks in self._away.items() if looks < GONE_LOOKS)

    @property
    def unheard(self) -> frozenset[int]:
        """Return the neighbors with a session over which nothing has arrived for long."""
        return frozenset(peer for peer in self.live if self.silent_s(peer) >= UNHEARD_LOOKS)

    def silent_s(self, peer: int) -> float:
        """Return the seconds since data arrived over the session with a neighbor, if there is one or was one
        recently.
        """
        now = self._came(peer)
        if now is not None and now[0] != self._latest.get(peer, now)[0]:
            return 0.0  # it has a new session since the last check
        return float(self._silent.get(peer, 0))


NOTHING = Signed(0, 0, 0)


class Witness:
    """Connects the ledger with the rows of vitals, on the event loop."""

    def __init__(self, budget: BudgetGuard, thread: EngineThread) -> None:
        self.budget, self.thread = budget, thread

    def account(self) -> Signed:
        """Return the account that this node signs now. All of it is in the ledger file next to the key before it is
        paid for.
        """
        return self.budget.evidence.account(self.thread.engine.state.ledger) or NOTHING

    def opened(self, peer: int) -> None:
        self.budget.evidence.opened(peer, time.monotonic())

    def note_rows(self, peer: int) -> None:
        self.budget.evidence.note_rows(peer)

    def hear_own(self, vitals: Vitals) -> None:
        """Compare the ledger with a row that this node signed in an earlier process and a neighbor now sends."""
        if not vitals.budget:
            return
        evidence, before = self.budget.evidence, self.thread.engine.state.ledger
        seen = LostAccount(Signed(vitals.begun, vitals.budget, vitals.paid), vitals.epsilon)
        after = evidence.hear(before, seen)
        if after is None or (after is not before and not after.is_whole):
            self.budget.doubt()
        self.thread.jobs.put(Correct(lambda ledger: evidence.hear(ledger, seen)))


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
