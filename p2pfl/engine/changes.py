"""Everything that can change a node's durable state, as values: live operations and recovery share them."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.core.messages import Reply, Request
from p2pfl.learn.interface import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWasFrozen:
    peer: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWasApplied:
    peer: int
    request: Request
    reply: Reply
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyWasApplied:
    peer: int
    reply: Reply
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeWasReset:
    peer: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWasCommitted:
    """`delta` (d,) is what training adds to the model, None for a mixing round or a failed one."""

    version: int
    rounds: int
    samples: int
    drift: float
    elapsed_s: float
    delta: Vector | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWasReplaced:
    model: Vector


Change = RequestWasFrozen | RequestWasApplied | ReplyWasApplied | EdgeWasReset | RoundWasCommitted | ModelWasReplaced
