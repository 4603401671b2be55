"""Simulated links: sessions that open, die and come back; messages that are late, lost, doubled and reordered.

A session's messages end with it, as TCP's do; within a session a link may be harsher than TCP, because the protocol
promises to bear it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from p2pfl.core.events import Event, MessageReceived, SessionClosed, SessionOpened
from p2pfl.core.messages import Message
from p2pfl.wire import Assembler, split
from sim.kernel import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """Probabilities per message; times in seconds. `jitter_s` above 0 reorders messages; `far_s` is what every message
    to or from a node takes longer.
    """

    latency_s: float = 0.002
    jitter_s: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0
    redial_s: float = 0.05
    far_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Link:
    """`session` is 0 while the link is down."""

    session: int = 0
    bytes_sent: int = 0
    messages_sent: int = 0


class Network:
    """All links of a world; `deliver(index, event)` hands an event to a host, `alive(index)` tells if it runs."""

    def __init__(
        self,
        *,
        kernel: Kernel,
        edges: tuple[tuple[int, int], ...],
        plan: LinkPlan,
        seed: int,
        max_body_bytes: int,
        deliver: Callable[[int, Event], None],
        alive: Callable[[int], bool],
    ) -> None:
        self.kernel = kernel
        self.plan = plan
        self.max_body_bytes = max_body_bytes
        self.deliver = deliver
        self.alive = alive
        self.links = {edge: Link() for edge in edges}
        self.sessions = 0
        seeds = np.random.SeedSequence(entropy=seed, spawn_key=(1,)).spawn(len(edges))
        self.chance = {edge: np.random.default_rng(s) for edge, s in zip(edges, seeds, strict=True)}
        self.quiet = False
        """no loss, no duplication, no reordering from now on."""

    def open(self, edge: tuple[int, int]) -> None:
        """Bring a session up, if both ends run; the two ends notice at slightly different times."""
        link = self.links[edge]
        if link.session or not all(self.alive(end) for end in edge):
            return
        self.sessions += 1
        session = link.session = self.sessions
        for end, peer in (edge, edge[::-1]):
            event = SessionOpened(peer=peer, session=session)
            self.kernel.after(self._delay(edge), self._arrival(edge, session, end, event))

    def cut(self, edge: tuple[int, int], *, redial: bool = True) -> None:
        """End the session; what was on the way is lost, both ends notice in their own time."""
        link = self.links[edge]
        session, link.session = link.session, 0
        if session:
            for end, peer in (edge, edge[::-1]):
                event = SessionClosed(peer=peer, session=session)
                self.kernel.after(self._delay(edge), partial(self.deliver, end, event))
        if redial:
            self.kernel.after(self.plan.redial_s, lambda: self.open(edge))

    def close(self, source: int, target: int, session: int) -> None:
        edge = _edge(source, target)
        if self.links[edge].session == session:
            self.cut(edge)

    def send(self, source: int, target: int, session: int, message: Message) -> None:
        """Through the real encoder and decoder, then late, twice or never."""
        edge = _edge(source, target)
        link = self.links[edge]
        if link.session != session:
            return
        chunks = [bytes(chunk) for chunk in split(message)]
        link.bytes_sent += sum(map(len, chunks))
        link.messages_sent += 1
        chance = self.chance[edge]
        copies = 1
        if not self.quiet:
            copies = int(chance.random() >= self.plan.loss) + int(chance.random() < self.plan.duplication)
        for _ in range(copies):
            event = MessageReceived(peer=source, session=session, message=self._decoded(chunks))
            self.kernel.after(self._delay(edge), self._arrival(edge, session, target, event))

    def _decoded(self, chunks: list[bytes]) -> Message:
        assembler = Assembler(self.max_body_bytes)
        arrived = [message for chunk in chunks for message in assembler.feed(chunk)]
        if len(arrived) != 1:
            raise AssertionError(f"one message became {len(arrived)}")
        return arrived[0]

    def _arrival(self, edge: tuple[int, int], session: int, end: int, event: Event) -> Callable[[], None]:
        def arrive() -> None:
            if self.links[edge].session == session:
                self.deliver(end, event)

        return arrive

    def _delay(self, edge: tuple[int, int]) -> float:
        jitter_s = 0.0 if self.quiet else self.plan.jitter_s * float(self.chance[edge].random())
        return self.plan.latency_s + jitter_s + sum(self.plan.far_s.get(end, 0.0) for end in edge)


def _edge(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
