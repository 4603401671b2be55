"""The same events at the same times give the same effects, whatever the events are."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from core_kit import hello, make_node, reply_to, request

from p2pfl import core
from tests.invariants import check_invariants


def answer(chance, effect, node):
    """What an engine might say to an operation; None for what needs no answer."""
    refuses = chance.random() < 0.05
    match effect:
        case core.Freeze():
            built = request(incarnation=effect.incarnation, seq=effect.seq, version=effect.version, echo=effect.echo)
            return core.RequestFrozen(peer=effect.peer, request=built)
        case core.ApplyRequest(request=asked):
            if refuses:
                return core.Refused(peer=effect.peer, message=asked, reason="no")
            reply = reply_to(asked, factor=effect.factor, version=effect.version)
            return core.RequestApplied(peer=effect.peer, request=asked, reply=reply, chain=chance.bytes(16))
        case core.ApplyReply(reply=reply):
            if refuses:
                return core.Refused(peer=effect.peer, message=reply, reason="no")
            return core.ReplyApplied(peer=effect.peer, reply=reply, chain=chance.bytes(16))
        case core.CommitRound():
            rounds = node.facts.rounds + effect.trained
            return core.RoundCommitted(version=effect.version, rounds=rounds, samples=30, failed=False)
        case core.StartRound():
            return core.RoundTrained(steps=3, samples=30)
    return None


def said(chance, edge):
    """What a neighbor might say, mostly to the point."""
    record = edge.exchange.record
    incarnation = max(0, record.incarnation + int(chance.integers(-1, 2)) * int(chance.random() < 0.03))
    seq = max(0, record.seq + int(chance.choice([-1, 0, 1, 1, 1, 2])))
    if not edge.is_open and chance.random() < 0.95:
        return hello(incarnation=record.incarnation, seq=record.seq, chain=record.chain)
    asked = record.pending or request(incarnation=incarnation, seq=max(1, seq))
    return [
        hello(incarnation=incarnation, seq=record.seq, chain=record.chain),
        request(incarnation=incarnation, seq=max(1, seq), version=int(chance.integers(9))),
        reply_to(asked, version=int(chance.integers(9))),
        core.Ready(version=int(chance.integers(20)), closing=None),
        core.Resync(incarnation=incarnation),
        core.Ask(incarnation=incarnation, seq=seq, request_digest=asked.digest),
        core.Busy(incarnation=incarnation, seq=seq, retry_after_s=1.0),
        core.Done(version=5),
    ][int(chance.choice(8, p=[0.2, 0.25, 0.25, 0.1, 0.05, 0.05, 0.05, 0.05]))]


def random_life(seed, steps=300):
    """Events with their times, made up as the node's own effects suggest, and the effects; invariants hold."""
    chance = np.random.default_rng(seed)
    node = make_node(1, 0, 2, 3, start_wait_s=1.0, exchanges_per_s=5.0)
    now, session, owed, events, effects = 0.0, 0, [], [], []
    for step in range(steps):
        now += float(chance.exponential(0.5))
        peer = int(chance.choice([0, 2, 3]))
        edge = node.edges[peer]
        pick = chance.random()
        if step == 0:
            event = core.Started()
        elif owed and pick < 0.5:
            event = owed.pop(0)
        elif pick < 0.58 or edge.line.session is None:
            session += 1
            event = core.SessionOpened(peer=peer, session=session)
        elif pick < 0.6:
            event = core.SessionClosed(peer=peer, session=edge.line.session)
        elif pick < 0.602:
            event = core.StorageFailed()
        elif node.facts.halted and pick < 0.7:
            event = core.StorageRestored()
        else:
            event = core.MessageReceived(peer=peer, session=edge.line.session, message=said(chance, edge))
        made = node.handle(event, now)
        check_invariants(node)
        deadline = node.deadline()
        assert deadline is None or deadline > now
        owed += [reaction for effect in made if (reaction := answer(chance, effect, node)) is not None]
        events.append((copy.deepcopy(event), now))
        effects.append(made)
    return events, effects


@pytest.mark.parametrize("seed", range(15))
def test_a_life_replayed_gives_the_same_effects_and_no_timer_is_ever_in_the_past(seed):
    events, effects = random_life(seed)
    node = make_node(1, 0, 2, 3, start_wait_s=1.0, exchanges_per_s=5.0)
    assert [node.handle(event, now) for event, now in copy.deepcopy(events)] == effects
    assert any(
        isinstance(effect, core.Freeze | core.ApplyRequest | core.ApplyReply) for made in effects for effect in made
    )


def test_the_order_in_which_neighbors_are_named_does_not_matter():
    one, other = make_node(2, 0, 1, 3), make_node(2, 3, 1, 0)
    for node in (one, other):
        node.handle(core.Started(), 0.0)
    assert list(one.edges) == list(other.edges) == [0, 1, 3]
