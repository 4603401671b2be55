"""One play: every member's real `Sums` on a graph, in virtual time, with all that is sent and drawn written down."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.features.sums.messages import (
    Effect,
    Keep,
    Message,
    Post,
    Refused,
    SendToNeighbor,
    Statement,
    SumDone,
    SumSettings,
    encode_statement,
)
from p2pfl.features.sums.protocol import Sums
from sim.audits.sums.probes import Ring
from sim.kernel import NS, Kernel

LONGEST_S = 100.0
"""Virtual seconds after which a play ends, whoever still waits."""
MOST_SENT, MOST_SENT_A_PAIR = 5_000, 400
"""Messages after which a play ends, and how many more for each pair of members, in both directions."""
DELAY_S = 0.005, 0.05
PAUSE_S = 0.2
"""From the end of a sum to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumCast:
    """Who plays: a federation's members and graph, and the numbers that its sums have in common."""

    names: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    colluders: int
    least: int
    sums: int = 3
    """The sums of one set-up."""

    @property
    def count(self) -> int:
        return len(self.names)

    def neighbors(self, member: int) -> list[int]:
        return sorted(low + high - member for low, high in self.edges if member in (low, high))

    def settings(self, index: int, life: int, identities: Sequence[Identity]) -> SumSettings:
        """Raises ValueError: no sum is private with these numbers."""
        return SumSettings(
            federation=b"audit",
            members=tuple(identity.public for identity in identities),
            index=index,
            life=life,
            colluders=self.colluders,
            least=self.least,
            sums=self.sums,
        )


_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode


class SumData(Protocol):
    """What the members sum, under each label in turn."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    def vector(self, member: int, label: str) -> Ring: ...

    def terms(self, label: str) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One message on an edge."""

    at_s: float
    sender: int
    receiver: int
    message: Message
    is_forged: bool = False
    """A deed sent it, and not a member's own program."""


@dataclass(slots=True, kw_only=True)
class SumRecord:
    """All that has happened in a play."""

    sent: list[Sent] = field(default_factory=list)
    draws: list[list[bytes]]
    """What each member has drawn at random, in all of its lives."""
    done: list[tuple[int, SumDone]] = field(default_factory=list)
    refused: list[tuple[int, Refused]] = field(default_factory=list)
    died: set[int] = field(default_factory=set)
    """Who died at least once."""
    broken: dict[int, str] = field(default_factory=dict)
    """Honest members that a message broke: each leaves the play, as a real node leaves all sums."""
    wronged: set[int] = field(default_factory=set)
    """Honest members of whom another honest one refused a message as a liar's."""


Tap = Callable[[Sent], bool]
"""Sees a message of or for a colluder before it leaves; False: a colluder does not send it."""


class SumPlay:
    """Members ask for the sums of `data` in turn. An active attack puts taps and deeds of `colluders` in."""

    def __init__(self, cast: SumCast, data: SumData, *, seed: int, colluders: Iterable[int] = ()) -> None:
        self.cast, self.data, self.colluders = cast, data, frozenset(colluders)
        self.kernel, self._chance = Kernel(), random.Random(f"sums play {seed}")
        self._seed = seed
        self.identities = [
            Identity(hashlib.blake2b(b"%d %d" % (seed, index), digest_size=32, person=b"sums audit").digest())
            for index in range(cast.count)
        ]
        self.record = SumRecord(draws=[[] for _ in range(cast.count)])
        self.members: list[Sums | None] = [None] * cast.count
        self.taps: list[Tap] = []
        self._lives = [0] * cast.count
        self._past: list[list[tuple[bytes, frozenset[int]]]] = [[] for _ in range(cast.count)]
        self._asking: dict[int, str] = {}
        self._due: dict[int, tuple[Sums, float]] = {}
        self._todo = 0
        for index in range(cast.count):
            self.start(index)
            self.later(self._chance.random() * PAUSE_S, partial(self.ask, index, data.labels[0]))

    @property
    def now(self) -> float:
        return self.kernel.now

    def later(self, delay_s: float, deed: Callable[[], object]) -> None:
        """Do something from outside; the play waits for it."""
        self._todo += 1
        self.kernel.after(delay_s, partial(self._do, deed))

    def _do(self, deed: Callable[[], object]) -> None:
        self._todo -= 1
        deed()

    def start(self, index: int, *, is_forgetful: bool = False) -> None:
        """Begin a life of a member; `is_forgetful`: it draws what it has drawn in its first life."""
        self._lives[index] += 1
        life = 1 if is_forgetful else self._lives[index]
        drawn, chance = self.record.draws[index], random.Random(f"{self._seed} {index} {life}")

        def draw(size: int) -> bytes:
            drawn.append(chance.randbytes(size))
            return drawn[-1]

        settings = self.cast.settings(index, self._lives[index], self.identities)
        self.members[index] = Sums(settings, self.identities[index], draw=draw, past=list(self._past[index]))
        for peer in self.cast.neighbors(index):
            if self.members[peer] is not None:
                for end, other in ((index, peer), (peer, index)):
                    self.kernel.after(1e-6, partial(self._opened, end, other, self.members[end]))

    def _opened(self, end: int, other: int, member: Sums | None) -> None:
        if member is not None and self.members[end] is member and self.members[other] is not None:
            self._carry_out(end, member.opened(other, self.now))

    def kill(self, index: int) -> None:
        if self.members[index] is None:
            return
        self.members[index] = None
        self.record.died.add(index)
        self._asking.pop(index, None)
        for peer in self.cast.neighbors(index):
            member = self.members[peer]
            if member is not None:
                self._carry_out(peer, member.closed(index, self.now))

    def ask(self, index: int, label: str) -> None:
        member = self.members[index]
        if member is None or index in self._asking:
            return
        self._asking[index] = label
        vector, terms = self.data.vector(index, label), self.data.terms(label)
        self._guarded(index, lambda: member.ask(label, vector, terms, self.now))

    def ask_on(self, index: int) -> None:
        """Go on after a restart with the first sum that this member has had no outcome of."""
        had = {each.label for at, each in self.record.done if at == index}
        had |= {each.label for at, each in self.record.refused if at == index}
        for label in self.data.labels:
            if label not in had:
                self.ask(index, label)
                return

    def post(self, author: int, statement: Statement) -> Post:
        """A statement that a colluder signs."""
        body = encode_statement(statement)
        domain = self.cast.settings(author, 1, self.identities).domain()
        return Post(author=author, body=body, signature=self.identities[author].sign(domain + body))

    def tell(self, sender: int, receiver: int, message: Message) -> None:
        """A colluder hands a message to anybody, neighbor or not. What no session would carry does not arrive."""
        try:
            _decode(_encode(message))
        except msgspec.MsgspecError:
            return
        sent = Sent(at_s=self.now, sender=sender, receiver=receiver, message=message, is_forged=True)
        self.record.sent.append(sent)
        self.later(0.0, lambda: self._hear(receiver, sender, message))

    def run(self) -> SumRecord:
        """Play until nobody waits for a sum, or for too long."""
        most = MOST_SENT + MOST_SENT_A_PAIR * self.cast.count**2
        while (self._asking or self._todo) and self.kernel.next_ns <= LONGEST_S * NS and len(self.record.sent) < most:
            if not self.kernel.step():
                break
        return self.record

    def _guarded(self, index: int, act: Callable[[], list[Effect]], sender: int | None = None) -> None:
        """Carry out what a member does. Where its code fails, it leaves: a colluder has tied itself in knots."""
        try:
            effects = act()
        except PeerFault:
            if sender is not None and not {sender, index} & self.colluders:
                self.record.wronged.add(sender)
            return
        except Exception as error:
            if not self.colluders:
                raise
            if index not in self.colluders:
                self.record.broken[index] = f"{type(error).__name__}: {error}"
            self.kill(index)
            return
        self._carry_out(index, effects)

    def _carry_out(self, index: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToNeighbor):
                self._send(index, effect.peer, effect.message)
            elif isinstance(effect, Keep):
                self._past[index].append((effect.data, effect.members))
            elif isinstance(effect, SumDone | Refused):
                self._end(index, effect)
        member = self.members[index]
        if member is not None and member.deadline is not None and self._due.get(index) != (member, member.deadline):
            self._due[index] = member, member.deadline
            self.kernel.at(max(member.deadline, self.now), partial(self._wake, index, member, member.deadline))

    def _end(self, index: int, outcome: SumDone | Refused) -> None:
        if isinstance(outcome, SumDone):
            self.record.done.append((index, outcome))
        else:
            self.record.refused.append((index, outcome))
        self._asking.pop(index, None)
        at = self.data.labels.index(outcome.label) + 1
        if at < len(self.data.labels):
            self.later(PAUSE_S, partial(self.ask, index, self.data.labels[at]))

    def _wake(self, index: int, member: Sums, deadline: float) -> None:
        if self.members[index] is member and member.deadline == deadline:
            self._guarded(index, lambda: member.wake(self.now))

    def _send(self, sender: int, receiver: int, message: Message) -> None:
        if self.members[receiver] is None:
            return
        sent = Sent(at_s=self.now, sender=sender, receiver=receiver, message=message)
        if sender in self.colluders or receiver in self.colluders:
            passed = [tap(sent) for tap in self.taps]
            if sender in self.colluders and not all(passed):
                return
        self.record.sent.append(sent)
        delay_s = self._chance.uniform(*DELAY_S)
        self.kernel.after(delay_s, partial(self._arrive, sender, receiver, self.members[receiver], message))

    def _arrive(self, sender: int, receiver: int, member: Sums | None, message: Message) -> None:
        if member is not None and self.members[receiver] is member and self.members[sender] is not None:
            self._hear(receiver, sender, message)

    def _hear(self, receiver: int, sender: int, message: Message) -> None:
        member = self.members[receiver]
        if member is not None:
            self._guarded(receiver, lambda: member.hear(sender, message, self.now), sender)
