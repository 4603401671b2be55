"""What happened: the only input of the core. Past tense, frozen, no behavior.

`peer` is a member index, `session` a number that the network edge never reuses within a process.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.core.messages import Message, Reply, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The driver is running; nothing has been sent yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    peer: int
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    peer: int
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    peer: int
    session: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFrozen:
    """A request is built, remembered and (in exchange durability) on disk."""

    peer: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestApplied:
    """The responder's half of a transaction is done and remembered; `chain` is the edge's new payload chain."""

    peer: int
    request: Request
    reply: Reply
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """A check failed before anything was applied."""

    peer: int
    request: Request
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyApplied:
    peer: int
    reply: Reply
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRefused:
    peer: int
    reply: Reply
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrained:
    """Local training ended. The vector stays with the driver, which hands it to the engine on CommitRound."""

    steps: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCommitted:
    """The model moved by the local round (or, with `failed`, did not: the result was not finite or training raised)."""

    version: int
    rounds: int
    samples: int
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """The model is now the coordinate median of the replicas of initialized neighbors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed:
    """The last durable write failed: what is in memory may be ahead of the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRestored:
    """A full snapshot of what is in memory is on disk again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The user wants this node to stop."""


EngineResult = RequestFrozen | RequestApplied | RequestRefused | ReplyApplied | ReplyRefused

Event = (
    Started
    | SessionOpened
    | SessionClosed
    | MessageReceived
    | EngineResult
    | RoundTrained
    | RoundCommitted
    | Bootstrapped
    | StorageFailed
    | StorageRestored
    | StopRequested
)
