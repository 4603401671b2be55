"""Events: the only input of the core. Each says what happened: past tense, frozen, no behavior.

`peer` is a member index, `session` a number that the network layer never reuses within a process.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from p2pfl.core.messages import Message, Reply, Request
from p2pfl.core.settings import Settings
from p2pfl.core.staleness import Turns
from p2pfl.core.standing import Fault


class Started(Struct, frozen=True, kw_only=True, gc=False):
    """The driver is running; nothing has been sent yet."""


class SessionOpened(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    session: int


class SessionClosed(Struct, frozen=True, kw_only=True, gc=False):
    """A session has ended. `malformed` is the fault if the neighbor had sealed bytes that are not a message."""

    peer: int
    session: int
    malformed: str = ""


class MessageReceived(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    session: int
    message: Message


class RequestFrozen(Struct, frozen=True, kw_only=True, gc=False):
    """A request is built, remembered and (in exchange durability) on disk."""

    peer: int
    request: Request
    cost_s: float = 0.0
    """Engine time that the operation took, in seconds, as in the other results; 0 in the simulator."""


class RequestApplied(Struct, frozen=True, kw_only=True, gc=False):
    """The responder's half of a transaction is done and remembered; `chain` is the edge's new payload chain."""

    peer: int
    request: Request
    reply: Reply
    chain: bytes
    cost_s: float = 0.0


class RequestRefused(Struct, frozen=True, kw_only=True, gc=False):
    """A check failed before anything was applied. `fault` is None if an honest node could have sent the request."""

    peer: int
    request: Request
    reason: str
    fault: Fault | None = None
    cost_s: float = 0.0


class ReplyApplied(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    reply: Reply
    chain: bytes
    cost_s: float = 0.0


class ReplyRefused(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    reply: Reply
    reason: str
    fault: Fault | None = None
    cost_s: float = 0.0


class RoundTrained(Struct, frozen=True, kw_only=True, gc=False):
    """Local training ended. The vector stays with the driver, which hands it to the engine on CommitRound."""

    steps: int
    samples: int
    waited_s: float = 0.0
    """How long the round waited, in seconds, for data or for its turn (nodes that share a process train in turn)."""
    figure: float | None = None
    """The figure watched by early stopping (lower is better); None if there is none, or if it is not known yet."""


class RoundRefused(Struct, frozen=True, kw_only=True, gc=False):
    """A round could not begin: the privacy budget is too small for it, or could not be written.

    `for_good`: no later round can begin either; otherwise it is tried again. `planned`: this is not a fault.
    """

    why: str
    for_good: bool
    planned: bool = False


class RoundCommitted(Struct, frozen=True, kw_only=True, gc=False):
    """The local round has changed the model.

    If `failed`, it has not: the result was not finite, or training raised an error.
    """

    version: int
    rounds: int
    samples: int
    failed: bool


class Bootstrapped(Struct, frozen=True, kw_only=True, gc=False):
    """The model is now the coordinate median of the replicas of initialized neighbors."""


class Mixed(Struct, frozen=True, kw_only=True, gc=False):
    """The robust rule has mixed the model with the neighbors' (if `failed`, the model is unchanged).

    If `moved` is False, there were other models, but this one has hardly moved.
    """

    failed: bool = False
    moved: bool = True


class StorageFailed(Struct, frozen=True, kw_only=True, gc=False):
    """The last durable write failed: the state in memory may be ahead of the disk."""


class StorageRestored(Struct, frozen=True, kw_only=True, gc=False):
    """A full snapshot of the state in memory is on disk again."""


class StopRequested(Struct, frozen=True, kw_only=True, gc=False):
    """The user wants this node to stop."""


class MemberEnded(Struct, frozen=True, kw_only=True, gc=False):
    """The launcher of all nodes says that a member's process has ended for good; a new session contradicts it."""

    member: int


class Amended(Struct, frozen=True, kw_only=True):
    """The federation has changed; the fields replace those with which the core was built.

    The change takes effect between two rounds. The newest of several changes counts; a repeated one changes nothing.
    """

    neighbors: tuple[int, ...]
    """Member indices of the neighbors, ascending."""
    turns: Mapping[int, Turns]
    settings: Settings


EngineResult = RequestFrozen | RequestApplied | RequestRefused | ReplyApplied | ReplyRefused

Event = (
    Started
    | SessionOpened
    | SessionClosed
    | MessageReceived
    | EngineResult
    | RoundTrained
    | RoundRefused
    | RoundCommitted
    | Bootstrapped
    | Mixed
    | StorageFailed
    | StorageRestored
    | StopRequested
    | MemberEnded
    | Amended
)
