"""A node's display of a federation that is not running: real rows, signed with as many keys, from nodes that seem to
train.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from p2pfl.config import FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features import FEATURES
from p2pfl.features.status import Display, Hearing, Roster, VitalsTold, period_s
from p2pfl.learn import ACCURACY, LOSS, Measure, wilson
from p2pfl.node import Feed, alarm_texts
from p2pfl.plugins import software
from p2pfl.reporting import PrivacyStatus, Vitals, bitmap, figure, in_row, realm_of, sign, value_of
from topologies import build

ROUNDS = 400
TESTED = 200
"""The number of rows in the test set."""


def identity_of(index: int) -> Identity:
    return Identity((index + 1).to_bytes(32, "little"))


def federation_of(nodes: int, topology: str) -> FederationConfig:
    names = [f"pi{index + 1}" for index in range(nodes)]
    members = tuple(
        Member(index=index, name=name, key=identity_of(index).public, address=None) for index, name in enumerate(names)
    )
    return FederationConfig(
        path=Path("federation.toml"),
        name="ward-7",
        seed=0,
        topology=topology,
        task=TaskConfig(),
        training=TrainingConfig(rounds=ROUNDS),
        gossip=GossipConfig(),
        members=members,
        edges=tuple((int(a), int(b)) for a, b in build(topology, nodes, 0).edges),
    )


class Made:
    """A display that `pass_time` feeds; node `own` is the one whose page is shown. `fast` is how many times faster
    rounds come.
    """

    def __init__(
        self,
        nodes: int,
        topology: str = "",
        *,
        fast: float = 1.0,
        measures: Sequence[Measure] = (ACCURACY, LOSS),
        private: bool = False,
        own: int = 0,
        send: Any = lambda peer, told, *, urgent=False: True,  # noqa: ARG005 - they are not there
    ) -> None:
        """Make the display. The first of `measures` is the main one; one that is neither accuracy nor loss falls with
        the loss.

        A `private` federation has a budget, and reveals no score.
        """
        self.private = private
        self.federation = federation_of(nodes, topology or ("ring" if nodes < 20 else "random-regular:degree=4"))
        self.chance = random.Random(1)
        self.fast = fast
        self.measures = measures
        self.speed = [self.chance.uniform(0.6, 1.3) for _ in range(nodes)]
        self.counters = [0] * nodes
        self.due = [self.chance.uniform(0, period_s(nodes)) for _ in range(nodes)]
        self.rounds = [0.0] * nodes
        self.sent = [0.0] * nodes
        self.silent: set[int] = set()
        self.away: set[int] = set()
        self.wrong: dict[int, tuple[str, ...]] = {}
        self.began = time.monotonic()
        self.feed = Feed(lambda index: self.federation.members[index].name, texts=alarm_texts(FEATURES))
        neighbors = self.federation.neighbors(own)
        self.pulled: set[int] = set()
        """Members that send nothing although their sessions stay open."""
        self.heard = Counter[int]()
        self.edges = {peer: SimpleNamespace(is_open=peer not in self.silent) for peer in neighbors}
        core: Any = SimpleNamespace(edges=self.edges, peers=self.edges.keys(), lifetime=SimpleNamespace(name=7))
        status: Any = SimpleNamespace(core=core, alarms={}, privacy=lambda: self.budget(own))
        roster = Roster(lambda: self.federation, own)
        self.hearing = Hearing(self.came)
        self.display = Display(
            identity=identity_of(own),
            roster=roster,
            status=status,
            line=lambda: self.line(own),
            feed=self.feed,
            measures=lambda: self.measures,
            hearing=self.hearing,
            raise_alarm=self.alarm,
            send=send,
        )
        for peer in neighbors:
            self.display.opened(peer)
        self.source = neighbors[0]

    def came(self, peer: int) -> tuple[int, int] | None:
        """Return the bytes received over the session with a neighbor; none if its cable is unplugged."""
        if not self.edges[peer].is_open:
            return None
        self.heard[peer] += peer not in self.pulled
        return 1, self.heard[peer]

    def lose(self, peer: int) -> None:
        """End the session with a neighbor."""
        self.edges[peer].is_open = False
        self.display.closed(peer)

    def alarm(self, kind: str, peer: int | None, text: str) -> None:
        self.feed.stand(kind, peer, text)
        self.feed.tell(kind, peer, text, wrong=True)

    def budget(self, index: int) -> PrivacyStatus | None:
        spent = 8.0 * math.sqrt(min(1.0, self.rounds[index] / ROUNDS))
        left = max(0, ROUNDS - int(self.rounds[index]))
        told = PrivacyStatus("record", round(spent, 4), 8.0, 1e-5, left, "open" if left else "spent")
        return told if self.private else None

    def accuracy(self, index: int) -> float:
        base = 0.965 - 0.02 * math.sin(index * 12.9898)
        return base - 0.75 * math.exp(-self.rounds[index] / 25) + self.chance.gauss(0, 0.003)

    def line(self, index: int) -> Any:
        rounds = int(self.rounds[index])
        loss = None if self.private else 0.05 + math.exp(-self.rounds[index] / 30)
        accuracy = max(0.0, self.accuracy(index)) if rounds and not self.private else None
        ends = None if accuracy is None else wilson(accuracy, TESTED)
        return SimpleNamespace(
            phase="finished" if rounds >= ROUNDS else "training",
            rounds=min(ROUNDS, rounds),
            accuracy=accuracy,
            intervals={} if ends is None else {ACCURACY.name: ends},
            loss=loss,
            test_loss=loss,
            metrics={} if loss is None else {one.name: 9 * loss + 0.1 * index for one in self.measures},
            privacy=self.budget(index),
            tested_round=rounds,
            test_is_stale=False,
            neighbor_distance=0.004 + 0.3 * math.exp(-self.rounds[index] / 20),
            staleness=SimpleNamespace(mean=0.5 + 0.2 * math.sin(index)),
            bytes_sent=int(self.sent[index]),
            bytes_received=int(self.sent[index]),
            exchanges=2 * rounds,
        )

    def row(self, index: int) -> bytes:
        line = self.line(index)
        self.counters[index] += 1
        there = [peer for peer in self.federation.neighbors(index) if peer not in self.silent | self.away]
        return sign(
            Vitals(
                member=index,
                counter=self.counters[index],
                life=index + 1,
                phase=line.phase,
                rounds=line.rounds,
                accuracy=figure(line.accuracy),
                loss=figure(line.loss),
                distance=figure(line.neighbor_distance),
                staleness=figure(line.staleness.mean),
                bytes_sent=line.bytes_sent,
                bytes_received=line.bytes_received,
                exchanges=line.exchanges,
                live=bitmap(there),
                unheard=bitmap(self.pulled.intersection(there)),
                alarms=len(self.wrong.get(index, ())),
                standing=self.wrong.get(index, ()),
                charter=0,
                software=software(),
                metrics=tuple(figure(value_of(line, one)) for one in in_row(self.measures)),
                epsilon=None if line.privacy is None else figure(line.privacy.epsilon),
            ),
            identity_of(index),
            realm_of(self.federation),
        )

    def pass_time(self, seconds: float, *, ago_s: float = 0.0) -> None:
        """Train on, and receive the rows that are due, as of `ago_s` before now."""
        heard = []
        for index, speed in enumerate(self.speed):
            if index in self.silent | self.pulled:
                continue
            step = seconds * speed * self.fast
            self.rounds[index] += step * 0.5
            self.sent[index] += step * 14_000 * self.chance.uniform(0.9, 1.1)
            self.due[index] -= seconds
            if index and self.due[index] <= 0:
                self.due[index] += period_s(len(self.speed))
                heard.append(VitalsTold(rows=((round(ago_s), self.row(index)),)))
        for told in heard:
            self.display.hear(self.source, told)
        self.hearing.look(self.edges)
        self.display.tick()
