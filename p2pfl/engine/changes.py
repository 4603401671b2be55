"""Changes to a node's durable state, as values, and the one place where each is applied.

Live operations and recovery from the log run the same floating-point operations on the same values, so a restarted node
holds the same bits as before. A live operation has already computed and checked the result, and only `settle`s it. `x_i
-= D/n_i` is the Laplacian step of Xiao and Boyd (2004) on one edge.
"""

from __future__ import annotations

from typing import assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from p2pfl.core.early_stopping import Best
from p2pfl.core.lives import Life
from p2pfl.core.messages import Reply, Request
from p2pfl.engine import arithmetic
from p2pfl.engine.arithmetic import Codecs
from p2pfl.engine.state import Bodies, NodeState
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.accounting import Spend
from p2pfl.methods import Method


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


class EdgesWereChanged(Struct, frozen=True, kw_only=True, gc=False):
    """The graph has changed; the edges to the `dropped` peers are gone."""

    added: tuple[int, ...]
    dropped: tuple[int, ...]


class RoundWasCommitted(Struct, frozen=True, kw_only=True, gc=False):
    """A round was counted.

    Training adds `delta` (c d,) to the channels; it is None for a mixing round or a failed one. `alone` counts the
    rounds trained without a neighbor. From now on the learning method keeps `terms` and `kept` for the node, and `best`
    is the best figure of its rounds. `local` holds the arrays that the learner keeps outside the model from this round
    on; None if they have not changed.
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
    best: Best | None = None


class ModelWasReplaced(Struct, frozen=True, kw_only=True, gc=False):
    """The model was replaced: `model` holds all channels (c d,).

    `rounds` and `elapsed_s` are the new counts; None keeps the old ones.
    """

    model: Vector
    rounds: int | None = None
    elapsed_s: float | None = None


class LifeWasHeard(Struct, frozen=True, kw_only=True, gc=False):
    """This node has learned that `member` (None for this node itself) is in `life`."""

    member: int | None
    life: Life


class BudgetWasSpent(Struct, frozen=True, kw_only=True, gc=False):
    """A local round was paid for; it may begin once this is on disk."""

    spend: Spend


Change = (
    RequestWasFrozen
    | RequestWasApplied
    | ReplyWasApplied
    | EdgeWasReset
    | EdgesWereChanged
    | RoundWasCommitted
    | ModelWasReplaced
    | LifeWasHeard
    | BudgetWasSpent
)


def redo(state: NodeState, change: Change, *, codecs: Codecs, method: Method) -> None:
    """Apply `change` to `state` in place."""
    match change:
        case RequestWasFrozen(peer=peer, request=request):
            state.edges[peer].record.freeze(request)
        case RequestWasApplied() | ReplyWasApplied():
            _exchange(state, change, codecs, method)
        case EdgeWasReset(peer=peer, incarnation=incarnation):
            record = state.edges[peer].record
            record.reset(incarnation)
            state.edges[peer].begin_anew(record)
        case EdgesWereChanged(added=added, dropped=dropped):
            state.change_edges(added, dropped)
            state.fit_replicas(codecs.need_replicas)
        case RoundWasCommitted():
            _commit(state, change)
        case ModelWasReplaced(model=model, rounds=rounds, elapsed_s=elapsed_s):
            state.channels[:] = model
            state.rounds = state.rounds if rounds is None else rounds
            state.elapsed_s = state.elapsed_s if elapsed_s is None else elapsed_s
            state.unmixed = state.best = None
        case LifeWasHeard(member=member, life=life):
            state.hear_life(member, life)
        case BudgetWasSpent(spend=spend):
            if state.ledger is None:
                raise ValueError("a round was paid for without a ledger")
            state.ledger = state.ledger.plus(spend)
        case _:
            assert_never(change)


def settle(state: NodeState, change: RequestWasApplied | ReplyWasApplied, method: Method, bodies: Bodies) -> None:
    """Finish an exchange that `lead` has computed: x += D/n, where D has the same bits at both ends except for its
    sign.
    """
    edge, reply = state.edges[change.peer], change.reply
    if isinstance(change, RequestWasApplied):
        edge.record.settle_request(change.request, reply, change.chain)
    else:
        edge.record.settle_reply(reply, change.chain)
    arithmetic.settle(state, edge, reply.factor, reply.terms, method, bodies)
    state.terms = method.heard(state.terms, reply.terms)


def _exchange(state: NodeState, change: RequestWasApplied | ReplyWasApplied, codecs: Codecs, method: Method) -> None:
    edge = state.edges[change.peer]
    if isinstance(change, RequestWasApplied):
        incoming, outgoing = change.request.body, change.reply.body
    elif edge.record.pending is not None:
        incoming, outgoing = change.reply.body, edge.record.pending.body
    else:
        raise ValueError("a reply was applied without a pending request")
    bodies = codecs.bodies(state, change.peer, incoming, outgoing)
    arithmetic.lead(state, edge, change.reply.factor, bodies)
    settle(state, change, method, bodies)


def _commit(state: NodeState, change: RoundWasCommitted) -> None:
    state.version, state.rounds = change.version, change.rounds
    state.elapsed_s = change.elapsed_s
    state.unmixed = None
    state.terms, state.alone, state.samples = change.terms, change.alone, change.samples
    state.best = change.best
    if change.delta is not None:
        state.channels += change.delta
        state.unpaid += state.ledger is None
    if change.local is not None:
        state.local = change.local
    if change.kept is not None:
        state.kept = change.kept
