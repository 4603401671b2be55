"""Everything that can change a node's durable state, as values: live operations and recovery share them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

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
    """`delta` (d,) is what training adds to the model, None for a mixing round or a failed one.

    `local` is what the learner keeps outside the model from this round on, None where that has not changed.
    """

    version: int
    rounds: int
    samples: int
    drift: float
    elapsed_s: float
    delta: Vector | None
    local: dict[str, NDArray[np.generic]] | None = None


class ModelWasReplaced(Struct, frozen=True, kw_only=True, gc=False):
    model: Vector


Change = RequestWasFrozen | RequestWasApplied | ReplyWasApplied | EdgeWasReset | RoundWasCommitted | ModelWasReplaced
