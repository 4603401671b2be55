"""One core in virtual time: what its neighbors answer, and how long that takes, is a function of the time."""

from __future__ import annotations

import heapq
import itertools

from core_kit import SAMPLES, frozen, hello, make_node, reply_to

from p2pfl import core

CHAIN = b"c" * 16


class PacedNode:
    """Node 0, which initiates on every edge. `answers` gives by neighbor when a request of a given time is answered."""

    def __init__(self, answers, *, train_s, waited_s=0.0, **changes):
        self.answers, self.train_s, self.waited_s = answers, train_s, waited_s
        self.node = make_node(0, *answers, **({"start_wait_s": 0.0, "rounds": 10**6} | changes))
        self.now, self.rounds, self.exchanges = 0.0, 0, dict.fromkeys(answers, 0)
        self.numbers, self.events = itertools.count(), []
        self.take(core.Started())
        for peer in answers:
            self.take(core.SessionOpened(peer=peer, session=1))
            self.take(core.MessageReceived(peer=peer, session=1, message=hello()))

    def run(self, until):
        """To a time; the rounds a second since the last call."""
        began, before = self.now, self.rounds
        while (at := min(self.wakes_at, self.events[0][0])) < until:
            self.now = max(self.now, at)
            if self.events[0][0] <= self.now:
                self.take(heapq.heappop(self.events)[2])
            else:
                self.carry_out(self.node.wake(self.now))
        self.now = until
        return (self.rounds - before) / (until - began)

    @property
    def wakes_at(self):
        deadline = self.node.deadline()
        return float("inf") if deadline is None else deadline

    def take(self, event):
        self.carry_out(self.node.handle(event, self.now))

    def later(self, at, event):
        heapq.heappush(self.events, (at, next(self.numbers), event))

    def carry_out(self, effects):
        for effect in effects:
            match effect:
                case core.StartRound():
                    trained = core.RoundTrained(steps=1, samples=int(SAMPLES), waited_s=self.waited_s)
                    self.later(self.now + self.train_s + self.waited_s, trained)
                case core.CommitRound(version=version, trained=trained):
                    self.rounds += trained
                    done = core.RoundCommitted(version=version, rounds=self.rounds, samples=int(SAMPLES), failed=False)
                    self.later(self.now, done)
                case core.Freeze():
                    self.later(self.now, core.RequestFrozen(peer=effect.peer, request=frozen(effect)))
                case core.Send(peer=peer, message=core.Request() as asked):
                    if asked.seq > self.exchanges[peer]:  # not a repeat
                        self.exchanges[peer] = asked.seq
                        reply = reply_to(asked, version=asked.seq)
                        answer = core.MessageReceived(peer=peer, session=1, message=reply)
                        self.later(self.answers[peer](self.now), answer)
                case core.ApplyReply(peer=peer, reply=reply):
                    self.later(self.now, core.ReplyApplied(peer=peer, reply=reply, chain=CHAIN))


def takes(seconds):
    """Answers each request after so long."""
    return lambda asked: asked + seconds


def stutters(*, period_s, runs_s, takes_s):
    """Runs in the first `runs_s` of each period; an answer takes `takes_s` of the time in which it runs."""

    def answered(asked):
        period = int(asked / period_s + 1e-9)
        ready = max(asked, period * period_s) + takes_s
        return ready if ready <= period * period_s + runs_s else (period + 1) * period_s + takes_s

    return answered


class Draws:
    """A fixed sequence without pattern in [0, 1), so that the core is given the same world on every machine."""

    def __init__(self, seed):
        self.state = seed

    def __call__(self):
        self.state = (1103515245 * self.state + 12345) % 2**31
        return self.state / 2**31
