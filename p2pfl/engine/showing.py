"""What a neighbor is shown of this node: the one place between its model and what is encoded.

An honest node shows what it has. Whoever shows something else (noise for privacy, masks, a liar in a test) gives the
engine another function, and nothing else in a node knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from p2pfl.compress import Payload
from p2pfl.learn.interface import Vector


class Occasion(NamedTuple):
    """The transaction for which something is shown: the sequence number `seq` in an edge's incarnation."""

    incarnation: int
    seq: int


@dataclass(frozen=True, slots=True)
class Forgery:
    """Bytes that no encoder has made, in place of a vector: a neighbor must refuse them."""

    body: Payload


Show = Callable[[Vector, int, Occasion], Vector | Forgery]
"""(channels (c d,), peer, occasion) to what that neighbor is shown: (c d,), finite, left as it is afterwards."""
Claim = Callable[[float], float]
"""The weight a_i of this node to the one that its messages tell."""


def as_it_is(channels: Vector, peer: int, occasion: Occasion) -> Vector:
    """The truth."""
    del peer, occasion
    return channels


def as_weighed(weight: float) -> float:
    """The truth."""
    return weight
