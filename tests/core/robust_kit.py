"""A core in the robust profile among neighbors that answer at once, or do not."""

from __future__ import annotations

from collections import deque

from core_kit import SAMPLES, frozen, known_to, make_node, open_session, reply_to, say, started

from p2pfl import core
from tests.invariants import check_invariants


class Around:
    """Node 0, initiator of all its edges. `silent` neighbors keep their sessions and answer nothing.

    `seen` has all effects in order; `trained` answers a round, everything else is answered at once.
    """

    def __init__(self, degree, *, liars=1, silent=(), **changes):
        self.node = make_node(0, *range(1, degree + 1), liars=liars, **({"rounds": 1000} | changes))
        self.silent = set(silent)
        self.weights, self.paces = {}, {}
        self.fails, self.moves = False, True
        self.seen = []
        self.session = 0
        self.now = 0.0
        self.carry_out(started(self.node))

    def meet(self, *peers, **greeting):
        for peer in peers or tuple(self.node.edges):
            self.session += 1
            self.carry_out(open_session(self.node, peer, self.now, self.session, **greeting))

    def meet_again(self, peer):
        """As it was left."""
        self.meet(peer, greeting=known_to(self.node.edges[peer].exchange.record))

    def lose(self, *peers):
        for peer in peers:
            number = self.node.edges[peer].line.session
            self.carry_out(self.node.handle(core.SessionClosed(peer=peer, session=number), self.now))

    def rounds(self, count, *, pace_s=0.1):
        """So many local rounds, and what they lead to; silent neighbors are waited for."""
        for _ in range(count):
            self.now += pace_s
            self.carry_out(self.node.handle(core.RoundTrained(steps=1, samples=int(SAMPLES)), self.now))
            self.wait()

    def wait(self):
        """Until the next round begins, or nothing is due."""
        while not isinstance(self.last(core.StartRound, core.CommitRound, core.Mix, core.Bootstrap), core.StartRound):
            self.now = self.node.deadline()
            self.carry_out(self.node.wake(self.now))

    def last(self, *kinds):
        return next((effect for effect in reversed(self.seen) if isinstance(effect, kinds)), None)

    def of(self, *kinds):
        return [effect for effect in self.seen if isinstance(effect, kinds)]

    def alarms(self, *kinds):
        return [alarm.kind for alarm in self.of(core.Alarm) if alarm.kind in kinds]

    def carry_out(self, effects):
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            self.seen.append(effect)
            waiting.extend(self.answer(effect))
            check_invariants(self.node)

    def answer(self, effect):
        handle = self.node.handle
        match effect:
            case core.Freeze(peer=peer):
                return handle(core.RequestFrozen(peer=peer, request=frozen(effect)), self.now)
            case core.Send(peer=peer, message=core.Request() as asked) if peer not in self.silent:
                told = {"weight": self.weights.get(peer, SAMPLES), "pace_s": self.paces.get(peer, 0.1)}
                return say(self.node, peer, reply_to(asked, version=asked.version, **told), self.now, effect.session)
            case core.ApplyReply(peer=peer, reply=reply):
                return handle(core.ReplyApplied(peer=peer, reply=reply, chain=b"c" * 16), self.now)
            case core.CommitRound(version=version, trained=trained):
                done = self.node.facts.rounds + trained
                event = core.RoundCommitted(version=version, rounds=done, samples=int(SAMPLES), failed=False)
                return handle(event, self.now)
            case core.Mix():
                return handle(core.Mixed(failed=self.fails, moved=self.moves), self.now)
            case core.Bootstrap():
                return handle(core.Bootstrapped(), self.now)
        return []
