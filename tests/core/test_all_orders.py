"""One edge in all orders: whatever comes first, both ends carry out the same transactions and nobody is blamed.

Two cores greet each other, exchange, and each completes a round, while at any moment a session or a process is lost,
with what was on its way. A process comes back with all that its engine had written, with the last operation or
without, or without its replicas. Every order of all this is tried, where time stands still: a message is
lost only with its session, so nothing has to be repeated. Worlds with clocks, more nodes and faults are in
tests/property.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import astuple

import pytest
from core_kit import apply_reply, freeze, make_node, reply_to, say

from p2pfl import core
from tests.invariants import check_invariants

LOSSES = ("the session", "the process", "the process that has just worked", "the replicas")


class Pair:
    """Node 0 initiates. `script` is what has happened since they were made, as `choices` names it."""

    def __init__(self, script, losses):
        self.nodes = [make_node(0, 1), make_node(1, 0)]
        self.sessions, self.newest, self.jobs, self.rounds = [0, 0], 1, [None, None], [1, 1]
        self.ways = [[], []]
        """The messages on their way to each node, with their session."""
        self.losses, self.alarms = list(losses), set()
        for each in script:
            self.do(*each)

    def record(self, index):
        return self.nodes[index].edges[1 - index].exchange.record

    def choices(self):
        """What may come next; what is lost comes apart, since it need not."""
        next_ = [("opens", index) for index in (0, 1) if self.sessions[index] < self.newest]
        next_ += [("hears", index) for index in (0, 1) if self.heard(index)]
        next_ += [("works", index) for index in (0, 1) if self.jobs[index]]
        next_ += [("rounds", index) for index in (0, 1) if self.rounds[index]]
        lost = [(what, index) for what in self.losses for index in (0, 1) if max(self.sessions) == self.newest]
        return next_, [(what, index) for what, index in lost if what != LOSSES[2] or self.jobs[index]]

    def heard(self, index):
        return [message for session, message in self.ways[index] if session == self.sessions[index]]

    def do(self, what, index):
        node, peer = self.nodes[index], 1 - index
        match what:
            case "opens":
                self.sessions[index] = self.newest
                effects = node.handle(core.SessionOpened(peer=peer, session=self.newest), 0.0)
            case "hears":
                message = self.heard(index)[0]
                self.ways[index].remove((self.sessions[index], message))
                effects = say(node, peer, message, session=self.sessions[index])
            case "works":
                effects = self.work(index)
            case "rounds":
                self.rounds[index] = 0
                node.facts.version += 1
                effects = node.edges[peer].begin_round(0.0)
            case _:
                effects = []
                self.lose(what, index)
        for effect in effects:
            assert not isinstance(effect, core.CloseSession)
            if isinstance(effect, core.Send):
                self.ways[peer].append((effect.session, effect.message))
            elif isinstance(effect, core.Freeze | core.ApplyRequest | core.ApplyReply):
                assert self.jobs[index] is None, "the engine has one operation of an edge at a time"
                self.jobs[index] = effect
            elif isinstance(effect, core.Alarm):
                self.alarms.add(effect.kind)

    def work(self, index):
        """The engine answers; what follows."""
        job, self.jobs[index] = self.jobs[index], None
        node, record = self.nodes[index], self.record(index)
        if isinstance(job, core.Freeze):
            return freeze(node, [job], body=bytes([job.version]))[1]
        if isinstance(job, core.ApplyReply):
            return apply_reply(node, [job], chain=core.next_chain(record.chain, record.pending, job.reply))
        reply = reply_to(job.request, version=job.version, factor=job.factor, body=bytes([job.version]))
        chain = core.next_chain(record.chain, job.request, reply)
        return node.handle(core.RequestApplied(peer=1 - index, request=job.request, reply=reply, chain=chain), 0.0)

    def lose(self, what, index):
        self.losses.remove(what)
        self.newest += 1
        if what == LOSSES[0]:
            return
        if what == LOSSES[2]:
            self.work(index)
        record, version = deepcopy(self.record(index)), self.nodes[index].facts.version
        record = record.without_replicas() if what == LOSSES[3] else record
        self.nodes[index] = make_node(index, 1 - index, records={1 - index: record}, version=version, fresh=False)
        self.sessions[index], self.jobs[index] = 0, None

    def key(self):
        """All by which two states differ in what can follow."""
        ends = []
        for index, node in enumerate(self.nodes):
            edge = node.edges[1 - index]
            line, exchange, progress = edge.line, edge.exchange, edge.progress
            own = (exchange.audit_next,) if exchange.initiates else (exchange.refused, exchange.is_answered)
            ends += [astuple(exchange.record), line.session, line.mine, line.theirs, line.is_open, line.inbox, own]
            ends += [exchange.busy, exchange.has_refused, progress.version, progress.requested_version]
            ends += [edge.service.exchanged, node.facts.version]
            ends += [way for way in self.ways[index] if way[0] >= self.sessions[index]]
        return repr((ends, self.sessions, self.newest, self.jobs, self.rounds, self.losses))

    def check(self, *, at_end):
        """In every state; `at_end` nothing can follow but a loss."""
        one, other = self.record(0), self.record(1)
        for index, node in enumerate(self.nodes):
            check_invariants(node)
            assert not node.reputations(0.0)[1 - index].faults
            assert node.edges[1 - index].is_open or not at_end
        if at_end:
            assert (one.incarnation, one.seq, one.chain) == (other.incarnation, other.seq, other.chain)
            assert (one.pending, one.seq > 0) == (None, True)
        if one.incarnation != other.incarnation or not (one.has_replicas and other.has_replicas):
            return
        if one.seq == other.seq:
            assert one.chain == other.chain
        else:
            assert (other.seq, one.pending.seq, one.chain) == (one.seq + 1, other.seq, other.chain_before)
            assert one.pending.digest == other.request_digest


def explore(losses):
    """In how many states nothing can follow, and the alarms of all."""
    waiting, came, ends, alarms = deque([()]), set(), 0, set()
    while waiting:
        script = waiting.popleft()
        pair = Pair(script, losses)
        if (key := pair.key()) in came:
            continue
        came.add(key)
        next_, lost = pair.choices()
        try:
            pair.check(at_end=not next_)
        except AssertionError as error:
            raise AssertionError(f"after {script}") from error
        ends += not next_
        alarms |= pair.alarms
        waiting += [(*script, each) for each in (*next_, *lost)]
    return ends, alarms


@pytest.mark.parametrize("losses", [(), *(pytest.param((each,), marks=pytest.mark.long) for each in LOSSES)])
def test_both_ends_carry_out_the_same_transactions_in_all_orders(losses):
    ends, alarms = explore(losses)
    assert ends
    assert alarms == ({"resync"} if LOSSES[3] in losses else set())
