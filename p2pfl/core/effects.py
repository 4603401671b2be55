"""Effects: the only output of the core. Each is an order to the outside world: imperative, frozen, no behavior.

Operations (`Freeze` to `Mix`) go to the engine, which runs them one at a time in the order given and answers each with
the event named after the arrow, if there is one. Everything else goes to the network and the driver.
"""

from __future__ import annotations

from msgspec import Struct

from p2pfl.core.early_stopping import Best
from p2pfl.core.lives import Life
from p2pfl.core.messages import Message, Reply, Request


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
    """Check a neighbor's request and apply it with mixing factor `factor`. -> RequestApplied or RequestRefused

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
    """Check the answer to the edge's pending request and apply it. -> ReplyApplied or ReplyRefused

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
    """Count a tick as `version`; if `trained`, add `rho` times the change made by training. -> RoundCommitted

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

    Without `peers`, it is replaced by the result of the next round, which a course has brought from elsewhere.
    `rounds` and `elapsed_s` are the counts from which the node goes on; None keeps the node's own.
    """

    peers: tuple[int, ...]
    rounds: int | None = None
    elapsed_s: float | None = None


class Mix(Struct, frozen=True, kw_only=True, gc=False):
    """Apply the robust rule to the model and the replicas of `peers`, with weights a_ij s_j, one each. -> Mixed"""

    peers: tuple[int, ...]
    weights: tuple[float, ...]


class NoteLife(Struct, frozen=True, kw_only=True, gc=False):
    """Remember that `member` (None for this node) is in that life. (No answer: the order is enough.)"""

    member: int | None
    life: Life


class StartRound(Struct, frozen=True, kw_only=True, gc=False):
    """Train one local round from the current model. -> RoundTrained or RoundRefused

    `accompanied` says that a neighbor is connected. `away` holds the neighbors that are not connected while another one
    is. A correction that balances mixing with them would push this node away for good, because they would not balance
    it.
    """

    index: int
    accompanied: bool
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


Operation = Freeze | ApplyRequest | ApplyReply | ResetEdge | ChangeEdges | CommitRound | Bootstrap | Mix | NoteLife
Effect = Send | CloseSession | Operation | StartRound | Alarm | Finish
