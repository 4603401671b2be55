"""Events, the only input of the core, and effects, its only output. Both are frozen values without behavior.

An event says what happened, in the past tense. `peer` is a member index, `session` a number that the network layer
never reuses within a process.

An effect is an order to the outside world, in the imperative. Operations (`Freeze` to `Mix`) go to the engine, which
runs them one at a time in the order given and answers each with the event named after the arrow, if there is one.
Everything else goes to the network and the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from p2pfl.core.limits import Fault
from p2pfl.core.members import Lifetime
from p2pfl.core.messages import Message, Reply, Request
from p2pfl.core.settings import Best, Settings, Turns


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


class ReplyApplied(Struct, frozen=True, kw_only=True, gc=False):
    peer: int
    reply: Reply
    chain: bytes
    cost_s: float = 0.0


class Refused(Struct, frozen=True, kw_only=True, gc=False):
    """A check failed before a request or reply was applied. `fault` is None if an honest node could have sent it."""

    peer: int
    message: Request | Reply
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


EngineResult = RequestFrozen | RequestApplied | ReplyApplied | Refused

SessionEvent = SessionOpened | SessionClosed | MessageReceived
RoundEvent = Started | RoundTrained | RoundRefused | RoundCommitted | Bootstrapped | Mixed | StopRequested
Event = EngineResult | SessionEvent | RoundEvent | StorageFailed | StorageRestored | MemberEnded | Amended


class Send(Struct, frozen=True, kw_only=True, gc=False):
    """Hand `message` to the session; if that session is gone, drop it."""

    peer: int
    session: int
    message: Message


class CloseSession(Struct, frozen=True, kw_only=True, gc=False):
    """End a session. For `rest_s` seconds any new session would be closed as well, so there is no point in dialing."""

    peer: int
    session: int
    reason: str
    rest_s: float = 0.0


class Freeze(Struct, frozen=True, kw_only=True, gc=False):
    """Build the edge's next request from the current model. -> RequestFrozen"""

    peer: int
    incarnation: int
    seq: int
    version: int
    echo: int | None
    weight: float
    staleness: float
    pace_s: float
    audit: bool


class ApplyRequest(Struct, frozen=True, kw_only=True, gc=False):
    """Check a neighbor's request and apply it with mixing factor `factor`. -> RequestApplied or Refused

    `gather`: the node joins, and keeps what neighbors show where an edge has no replicas.
    """

    peer: int
    request: Request
    factor: float
    weight: float
    version: int
    pace_s: float
    gather: bool = False


class ApplyReply(Struct, frozen=True, kw_only=True, gc=False):
    """Check the answer to the edge's pending request and apply it. -> ReplyApplied or Refused

    `gather`: see `ApplyRequest`.
    """

    peer: int
    reply: Reply
    gather: bool = False


class ResetEdge(Struct, frozen=True, kw_only=True, gc=False):
    """Zero both replicas and the edge's flow; forget pending and logged messages. (No answer: the order is enough.)"""

    peer: int
    incarnation: int


class ChangeEdges(Struct, frozen=True, kw_only=True, gc=False):
    """Put the latest change of the federation into effect, even if no edge changes. (No answer: the order is enough.)

    The engine forgets the edges to the `dropped` peers, and creates empty ones to the `added` peers.
    """

    added: tuple[int, ...]
    dropped: tuple[int, ...]


class CommitRound(Struct, frozen=True, kw_only=True, gc=False):
    """Count a round as `version`; if `trained`, add `rho` times the change made by training. -> RoundCommitted

    `elapsed_s` is the training time used so far, for runs bounded by time. `least_samples` is the smallest n that the
    engine may adopt while requests frozen with a larger one are unanswered. `alone` counts the rounds trained without a
    neighbor, including this one. `best` is the best figure so far, if early stopping watches one. `at_once`: durable
    before the answer; else with the next exchange.
    """

    version: int
    trained: bool
    rho: float
    elapsed_s: float
    least_samples: float
    alone: int = 0
    best: Best | None = None
    at_once: bool = False


class Bootstrap(Struct, frozen=True, kw_only=True, gc=False):
    """Replace the model by the coordinate median of the replicas of `peers`. -> Bootstrapped

    Without `peers`, it is replaced by the result of the next round, which another algorithm has brought.
    `rounds` and `elapsed_s` are the counts from which the node goes on; None keeps the node's own.
    """

    peers: tuple[int, ...]
    rounds: int | None = None
    elapsed_s: float | None = None


class Mix(Struct, frozen=True, kw_only=True, gc=False):
    """Apply the robust rule to the model and the replicas of `peers`, with weights a_ij s_j, one each. -> Mixed"""

    peers: tuple[int, ...]
    weights: tuple[float, ...]


class NoteLifetime(Struct, frozen=True, kw_only=True, gc=False):
    """Remember that `member` (None for this node) is in that lifetime; one without a name is to be forgotten. (No
    answer: the order is enough.)
    """

    member: int | None
    lifetime: Lifetime


class StartRound(Struct, frozen=True, kw_only=True, gc=False):
    """Train one local round from the current model. -> RoundTrained or RoundRefused

    `accompanied`: a neighbor is connected; `away` holds those that are not while another one is. A correction that
    balances mixing with these would push this node away for good, because they would not balance it. `closing` is the
    number of the closing round that it is, from 1, or 0. `in_place`: nothing else moves the model until the round is
    committed, so that it is not copied.
    """

    index: int
    accompanied: bool
    closing: int = 0
    in_place: bool = False
    away: tuple[int, ...] = ()


class Alarm(Struct, frozen=True, kw_only=True, gc=False):
    """Tell the user something. `kind` is stable and countable; `text` is for reading.

    A `notice` follows from a person's action, such as a restart, and nothing is wrong.
    """

    kind: str
    peer: int | None
    text: str
    notice: bool = False


class Finish(Struct, frozen=True, kw_only=True, gc=False):
    """End this node: it has done all its work, was asked to stop, or must not go on (`resigned`, `retired`)."""

    resigned: bool = False
    retired: bool = False


Operation = Freeze | ApplyRequest | ApplyReply | ResetEdge | ChangeEdges | CommitRound | Bootstrap | Mix | NoteLifetime
Effect = Send | CloseSession | Operation | StartRound | Alarm | Finish
