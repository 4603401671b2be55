"""Exchange flooding: a core made to want more exchanges than its rounds have."""

from __future__ import annotations

from p2pfl.core.effects import Effect
from p2pfl.core.messages import Ready
from p2pfl.core.node import Node


def press(core: Node, now: float) -> list[Effect]:
    """Begin an exchange on every edge where this end can; say again what is waiting; ask for one on the others.

    A Ready that tells no newer version asks for nothing, so the liar tells versions that it does not have. To be called
    as often as the flood shall come, and its effects carried out like those of any event.
    """
    effects: list[Effect] = []
    for edge in core.edges.values():
        if not edge.is_open or core.facts.done:
            continue
        if not edge.initiator:
            effects += edge.send(Ready(version=edge.record.seq + core.facts.version + 1, closing=core.facts.closing))
        elif edge.record.pending is not None:
            effects += edge.send(edge.record.pending)
        else:
            edge.exchanged = None
            effects += edge.exchange_if_wanted(now)
        core.timers.note(edge)
    return effects
