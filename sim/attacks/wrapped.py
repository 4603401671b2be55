"""Attacks made of another: lies told only at times, or told in too many exchanges; and one that is no model at all.

Exchange flooding makes a core want more exchanges than its rounds have (`press`).
"""

from __future__ import annotations

import numpy as np

from p2pfl.core.effects import Effect
from p2pfl.core.messages import Ready
from p2pfl.core.node import Node
from sim.attacks.attack import Attack, Lie, Sight, Vector

MISSING = 3
"""a vector of the wrong shape lacks one part in so many."""


def sleeper(lie: Attack | None, period: int) -> Attack:
    """Honest for `period` own rounds, then lies for as many, by turns: standing won is standing to spend.

    Raises:
        ValueError: no lie is named.
    """
    if lie is None:
        raise ValueError("a sleeper has to have a lie")
    awake = lie

    def told(sight: Sight) -> Vector:
        return awake.tell(sight) if sight.rounds // period % 2 else sight.own

    return Attack(spec=f"sleeper:{lie.spec}@{period}", lie=told, refused=lie.refused)


def flood(lie: Attack | None) -> Attack:
    """Begins exchanges as fast as it can, so that its model counts more often than others; it shows `lie`, or truth."""
    if lie is None:
        return Attack(spec="flood", flood=True)
    return Attack(
        spec=f"flood:{lie.spec}", blind=lie.blind, lie=lie.lie, poison=lie.poison, refused=lie.refused, flood=True
    )


def wrong_shape() -> Lie:
    """The model cut short by a third: to be refused whatever stands in it."""

    def lie(sight: Sight) -> Vector:
        size = sight.own.size
        return np.resize(sight.own, size - max(1, size // MISSING) if size > 1 else size + 1)

    return lie


def press(core: Node, now: float) -> list[Effect]:
    """Begin an exchange on every edge where this end can; say again what is waiting; ask for one on the others.

    A Ready that tells no newer version asks for nothing, so the liar tells versions that it does not have. To be called
    as often as the flood shall come, and its effects carried out like those of any event.
    """
    effects: list[Effect] = []
    for edge in core.edges.values():
        if not edge.is_open or core.facts.done:
            continue
        exchange = edge.exchange
        if not exchange.initiates:
            version = exchange.record.seq + core.facts.version + 1
            effects += edge.line.send(Ready(version=version, closing=core.facts.closing))
        elif exchange.record.pending is not None:
            effects += edge.line.send(exchange.record.pending)
        else:
            edge.service.exchanged = None
            effects += exchange.begin_if_wanted(now)
        core.timers.note(edge)
    return effects
