"""Everything that can change a node's durable state, as values: live operations and recovery share them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from p2pfl.core.lives import Life
from p2pfl.core.messages import Reply, Request
from p2pfl.learn.interface import Vector


class RequestWasFrozen(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    request: Request


class RequestWasApplied(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    request: Request
    reply: Reply
    chain: bytes


class ReplyWasApplied(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    reply: Reply
    chain: bytes


class EdgeWasReset(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    incarnation: int


class RoundWasCommitted(Struct, frozen=True, kw_only=True, gc=False):
    """`delta` (c d,) is what training adds to the channels, None for a mixing round or a failed one. `alone` counts the
    rounds trained without a neighbor, `terms` and `kept` are what the learning method keeps of the node from now on.

    `local` is what the learner keeps outside the model from this round on, None where that has not changed.
    """

    version: int
    rounds: int
    samples: int
    terms: tuple[float, ...]
    elapsed_s: float
    alone: int
    delta: Vector | None
    local: dict[str, NDArray[np.generic]] | None = None
    kept: dict[str, Vector] | None = None


class ModelWasReplaced(Struct, frozen=True, kw_only=True, gc=False):
    """`model` are all channels (c d,); `rounds` and `elapsed_s` are those to go on from, None where they stay."""

    model: Vector
    rounds: int | None = None
    elapsed_s: float | None = None


class LifeWasHeard(Struct, frozen=True, kw_only=True, gc=False):
    """`member` is in its life `life`; None: this node is."""

    member: int | None
    life: Life


Change = (
    RequestWasFrozen
    | RequestWasApplied
    | ReplyWasApplied
    | EdgeWasReset
    | RoundWasCommitted
    | ModelWasReplaced
    | LifeWasHeard
)
