"""A small network in memory, for the protocol of the sums: virtual time, and all its chance from one seed."""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from dataclasses import dataclass
from functools import partial

import numpy as np

from p2pfl.crypto.identity import Identity
from p2pfl.features.sums import (
    BranchPart,
    HeldUp,
    Keep,
    MemberList,
    Post,
    Refused,
    Reveal,
    SendToNeighbor,
    SlotQuit,
    SlotVote,
    SumDone,
    Sums,
    SumSettings,
    Wave,
    decode_statement,
    encode_statement,
    id_of,
    members_of,
)

FEDERATION = b"a federation"
IDENTITIES = [Identity(hashlib.blake2b(b"member %d" % index, digest_size=32).digest()) for index in range(200)]


def ring(count):
    return sorted({(min(a, b), max(a, b)) for a in range(count) for b in [(a + 1) % count]})


def complete(count):
    return [(a, b) for b in range(count) for a in range(b)]


def settings_of(index, count, *, life=1, **changes):
    members = tuple(identity.public for identity in IDENTITIES[:count])
    return SumSettings(
        federation=FEDERATION, members=members, index=index, life=life, **{"sums": 3, "is_plain": True} | changes
    )


def posted(author, statement, settings=None):
    """The statement, signed by the author as its own node would."""
    body = encode_statement(statement)
    signature = IDENTITIES[author].sign(settings_of(0, **(settings or {"count": 5})).domain() + body)
    return Post(author=author, body=body, signature=signature)


@dataclass
class Link:
    """How an edge treats messages. `delay_s` is drawn between both; vectors take longer, at so many bytes a second."""

    delay_s: tuple[float, float] = (0.005, 0.05)
    loss: float = 0.0
    twice: float = 0.0
    bytes_per_s: float = math.inf


class Watch:
    """Sees everything that anybody says, and finds what honest members never do."""

    def __init__(self, needed, vector_of):
        self.needed, self.vector_of = needed, vector_of
        self.found, self.reveals, self.seen = [], [], set()
        self.left = set()
        self.lists, self.waves, self.signed, self.votes, self.vectors, self.masks = {}, {}, {}, {}, {}, {}

    def see(self, message):
        if isinstance(message, Post):
            name = id_of(message.author, message.body)
            if name not in self.seen:
                self.seen.add(name)
                self._see_statement(message.author, decode_statement(message.body), name)
        elif isinstance(message, BranchPart) and len(members_of(message.members)) == 1 and message.wave in self.waves:
            self._see_vector(members_of(message.members)[0], message)

    def _see_vector(self, member, part):
        wave = self.waves[part.wave]
        slot, vector = (wave.setup, wave.number), np.frombuffer(part.vector, "<u8")
        if (slot, member) in self.left and (slot, member) not in self.vectors:
            self.found.append(f"the vector of {member} in a sum that it has left for another set-up")
        self.vectors.setdefault((slot, member), set()).add(part.vector)
        if len(self.vectors[slot, member]) > 1:
            self.found.append(f"two vectors of {member} behind the masks of one sum")
        mask = (vector - self.vector_of(member, wave.terms)).tobytes()
        if self.masks.setdefault((member, mask), slot) != slot:
            self.found.append(f"a seed of {member} used twice")

    def _see_statement(self, author, statement, name):
        match statement:
            case Wave():
                self.waves[name] = statement
            case MemberList():
                self.lists[name] = statement
            case SlotVote():
                slot = statement.setup, statement.number
                if self.signed.setdefault((slot, author), statement.chosen) != statement.chosen:
                    self.found.append(f"two lists of one slot signed by {author}")
                self.votes.setdefault((slot, statement.chosen), set()).add(author)
                if len(self.certified(slot)) > 1:
                    self.found.append("two survivor lists")
            case SlotQuit() if statement.reason == "there is a new set-up":
                self.left.add(((statement.setup, statement.number), author))
            case Reveal():
                self.reveals.append((author, statement))
                if not self.certified((statement.setup, statement.number)):
                    self.found.append(f"{author} reveals before there is a certificate")

    def certified(self, slot):
        """The lists with a quorum; those that say the same are one, whoever proposed them."""
        voters = {}
        for (at, chosen), by in self.votes.items():
            if at == slot:
                voters.setdefault(self.lists.get(chosen, chosen), set()).update(by)
        return [proposal for proposal, by in voters.items() if len(by) >= self.needed]

    def check_kinds(self, share_of):
        """`share_of(author, setup, number, member, in_list=)`: the share of that kind that the author holds."""
        for author, reveal in self.reveals:
            members = members_of(self.certified((reveal.setup, reveal.number))[0].members)
            for member, share in reveal.shares:
                in_list = member in members
                if share != share_of(author, reveal.setup, reveal.number, member, in_list=in_list):
                    self.found.append(f"a share of the wrong kind of {member}")


class SumWorld:
    """Nodes on edges. `schedule(at, action)` puts anything else on the time line."""

    def __init__(self, count, edges, *, seed=0, link=None, make=Sums, size=5, **changes):
        self.count, self.edges, self.now = count, list(edges), 0.0
        self.random = random.Random(seed)
        self.link = link or Link()
        self.size, self.changes, self.make = size, changes, make
        self.nodes: dict[int, Sums | None] = {}
        self.lives = [0] * count
        self.past = [[] for _ in range(count)]
        self.done, self.refused, self.messages = [], [], []
        self.held_up = []
        """Who was named by whom as holding sums up, when, and why."""
        self.asked = {}
        self.open: set[tuple[int, int]] = set()
        self.labels = {}
        self.watch = Watch(settings_of(0, count, **changes).quorum, self._vector_behind)
        self.on_message = lambda *_: None
        self.sent = {}
        self.crashed_at = {}
        self.down: set[tuple[int, int]] = set()
        self.on_outcome = lambda *_: None
        self.data, self.only = lambda _: None, frozenset()
        self._queue, self._count, self._todo = [], 0, 0
        for index in range(count):
            self.start(index)

    def schedule(self, at, action):
        """Something from outside, which the world waits for."""
        self._todo += 1
        self._later(at, lambda: self._do(action))

    def later(self, action):
        """At this moment, after whatever is being done."""
        self._later(self.now, action)

    def _do(self, action):
        self._todo -= 1
        action()

    def _later(self, at, action):
        self._count += 1
        heapq.heappush(self._queue, (at, self._count, action))

    def start(self, index):
        self.lives[index] += 1
        chance = random.Random(f"{self.random.random()} {index}")
        settings = settings_of(index, self.count, life=self.lives[index], **self.changes)
        make = self.make[index] if isinstance(self.make, dict) else self.make
        self.nodes[index] = make(settings, IDENTITIES[index], draw=chance.randbytes, past=list(self.past[index]))
        for edge in self.edges:
            if index in edge:
                self.connect(edge)

    def connect(self, edge):
        if edge in self.open or edge in self.down or any(self.nodes.get(end) is None for end in edge):
            return
        self.open.add(edge)
        for end, other in (edge, edge[::-1]):
            self._later(self.now + 1e-6, lambda end=end, other=other: self._opened(edge, end, other))

    def _opened(self, edge, end, other):
        if edge in self.open and self.nodes[end] is not None:
            self.carry_out(end, self.nodes[end].opened(other, self.now))

    def disconnect(self, edge):
        if edge in self.open:
            self.open.discard(edge)
            for end, other in (edge, edge[::-1]):
                if self.nodes[end] is not None:
                    self.carry_out(end, self.nodes[end].closed(other, self.now))

    def crash(self, index):
        if self.nodes[index] is None:
            return
        self.nodes[index] = None
        self.crashed_at[index] = self.now
        self.asked.pop(index, None)
        for edge in list(self.edges):
            if index in edge:
                self.disconnect(edge)

    def cut(self, edges):
        self.down |= set(edges)
        for edge in edges:
            self.disconnect(edge)

    def heal(self):
        down, self.down = self.down, set()
        for edge in sorted(down):
            self.connect(edge)

    def vector(self, index, label):
        seed = hashlib.blake2b(f"{index} {label}".encode(), digest_size=8).digest()
        chance = np.random.default_rng(int.from_bytes(seed, "little"))
        return chance.integers(0, 2**40, self.size).astype("<u8")

    def terms(self, label):
        terms = hashlib.blake2b(label.encode(), digest_size=32).digest()
        self.labels[terms] = label
        return terms

    def _vector_behind(self, member, terms):
        return self.vector(member, self.labels[terms])

    def ask_all(self, *labels, pause_s=0.1, spread_s=0.05):
        """Everybody asks for these sums one after the other; who was restarted goes on with what it has not had.

        `pause_s` may be of each member.
        """
        pauses = pause_s if isinstance(pause_s, list) else [pause_s] * self.count

        def go_on(index, effect):
            at = labels.index(effect.label) + 1
            if at < len(labels):
                self.schedule(self.now + pauses[index], lambda: self.ask(index, labels[at]))

        self.on_outcome = go_on
        for index in range(self.count):
            self.schedule(self.random.random() * spread_s, lambda index=index: self.ask(index, labels[0]))

    def ask(self, index, label, terms=None, values=None):
        if self.nodes[index] is not None and index not in self.asked:
            self.asked[index] = label
            values = self.vector(index, label) if values is None else values
            terms = self.terms(label) if terms is None else terms
            self.carry_out(
                index, self.nodes[index].ask(label, values, terms, self.now, data=self.data(index), only=self.only)
            )

    def carry_out(self, index, effects):
        for effect in effects:
            match effect:
                case SendToNeighbor(peer=peer, message=message):
                    self._send(index, peer, message)
                case Keep(data=data, members=members):
                    self.past[index].append((data, members))
                case HeldUp(member=member, why=why):
                    self.held_up.append((self.now, index, member, why))
                case SumDone() | Refused():
                    if isinstance(effect, SumDone):
                        self.done.append((index, effect))
                    else:
                        self.refused.append((index, effect))
                    assert self.asked.pop(index) == effect.label
                    self.on_outcome(index, effect)
        node = self.nodes[index]
        if node is not None and node.deadline is not None:
            at = max(node.deadline, self.now)
            if self.sent.get((index, id(node))) != at:
                self.sent[index, id(node)] = at
                self._later(at, lambda: self._wake(index, node))

    def _wake(self, index, node):
        if self.nodes[index] is node and node.deadline is not None and node.deadline <= self.now:
            self.carry_out(index, node.wake(self.now))

    def _send(self, index, peer, message):
        edge = min(index, peer), max(index, peer)
        if edge not in self.open:
            return
        self.watch.see(message)
        self.on_message(index, message)
        self.messages.append((index, message))
        if self.random.random() < self.link.loss:
            return
        for _ in range(2 if self.random.random() < self.link.twice else 1):
            at = self.now + self.random.uniform(*self.link.delay_s)
            at += len(getattr(message, "vector", b"")) / self.link.bytes_per_s
            self._later(at, partial(self._arrive, edge, index, peer, self.nodes[peer], message))

    def _arrive(self, edge, index, peer, receiver, message):
        if self.nodes[peer] is receiver and receiver is not None and edge in self.open:
            self.carry_out(peer, receiver.hear(index, message, self.now))

    def run(self, until_s=1e4, most=10**6):
        """Run until nobody waits for a sum. Fails if it goes on for longer than that."""
        for _ in range(most):
            if not (self.asked or self._todo):
                return
            if not self._queue or self._queue[0][0] > until_s:
                break
            self.run_once()
        raise AssertionError(f"no rest at {self.now:.3f} s: {self.asked}")

    def run_once(self):
        self.now, _, action = heapq.heappop(self._queue)
        action()

    def check(self):
        """What holds in any world: sums are exact, agreed on, and large enough."""
        sets = {}
        for index, done in self.done:
            expected = sum((self.vector(member, done.label) for member in done.members), np.zeros(self.size, "<u8"))
            assert np.array_equal(done.total, expected), f"the sum at {index} is not that of {done.members}"
            assert len(done.members) >= self.changes.get("least", 3)
            assert sets.setdefault((done.setup, done.number), done.members) == done.members
        assert not self.watch.found, self.watch.found
