"""Which fragment of the model an exchange without replicas is about, and how many neighbors share a value at a time."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.core.profiles import Profile
from p2pfl.core.staleness import Turns


def turn_of(count: int, one: int, other: int, seq: int) -> int:
    """Return which of `count` fragments transaction `seq` of the edge between two members exchanges: all in turn, and
    not the same one on all edges of a node at a time.
    """
    return (seq + one + other) % count


def degree_of(profile: Profile, turns: Mapping[int, Turns], fragments: Mapping[int, int]) -> int:
    """Return how many edges share the node's weight in one round.

    `turns` has the turns of each neighbor, `fragments` the number of fragments on each edge without replicas. Such
    edges exchange a value in one of that many rounds, so fewer of them meet at it: each exchange may move it further.
    """
    if not fragments:
        return profile.degree(turns)
    whole = profile.degree({peer: each for peer, each in turns.items() if peer not in fragments})
    counts = [fragments[peer] for peer in turns if peer in fragments]
    if not counts:
        return whole
    return whole - (-profile.degree({peer: each for peer, each in turns.items() if peer in fragments}) // min(counts))
