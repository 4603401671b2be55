"""What each change does to the state: the one place where model, variate and replicas move.

Live operations and recovery from the log run the same floating-point operations on the same values, so a restarted
node holds the very bits that it held before. `x_i -= D/n_i` is the Laplacian step of Xiao and Boyd (2004) on one edge;
`C_i -= beta (mixing move)/(eta H)` the control variate that follows the flow.
"""

from __future__ import annotations

from typing import assert_never

from p2pfl.core.messages import Reply
from p2pfl.engine.changes import (
    Change,
    EdgeWasReset,
    ModelWasReplaced,
    ReplyWasApplied,
    RequestWasApplied,
    RequestWasFrozen,
    RoundWasCommitted,
)
from p2pfl.engine.codecs import Codecs
from p2pfl.engine.state import NodeState
from p2pfl.learn.interface import Vector


def redo(state: NodeState, change: Change, *, codecs: Codecs, beta: float) -> None:
    """Apply `change` to `state` in place."""
    match change:
        case RequestWasFrozen(peer=peer, request=request):
            state.edges[peer].record.freeze(request)
        case RequestWasApplied():
            _apply_request(state, change, codecs, beta)
        case ReplyWasApplied():
            _apply_reply(state, change, codecs, beta)
        case EdgeWasReset(peer=peer, incarnation=incarnation):
            edge = state.edges[peer]
            edge.record.reset(incarnation)
            edge.own[:] = 0.0
            edge.peer[:] = 0.0
        case RoundWasCommitted():
            _commit(state, change)
        case ModelWasReplaced(model=model):
            state.model[:] = model
            state.variate[:] = 0.0
        case _:
            assert_never(change)


def _apply_request(state: NodeState, change: RequestWasApplied, codecs: Codecs, beta: float) -> None:
    edge, compressor = state.edges[change.peer], codecs.of(change.peer)
    edge.peer += compressor.decode(change.request.body, state.model.size)
    edge.own += compressor.decode(change.reply.body, state.model.size)
    edge.record.settle_request(change.request, change.reply, change.chain)
    _flow(state, edge.peer - edge.own, change.reply, beta)


def _apply_reply(state: NodeState, change: ReplyWasApplied, codecs: Codecs, beta: float) -> None:
    edge = state.edges[change.peer]
    pending = edge.record.pending
    if pending is None:
        raise ValueError("a reply was applied without a pending request")
    compressor = codecs.of(change.peer)
    edge.own += compressor.decode(pending.body, state.model.size)
    edge.peer += compressor.decode(change.reply.body, state.model.size)
    edge.record.settle_reply(change.reply, change.chain)
    _flow(state, edge.peer - edge.own, change.reply, beta)


def _flow(state: NodeState, difference: Vector, reply: Reply, beta: float) -> None:
    """D = k (h_i - h_j), the same bits at both ends up to its sign; x += D/n. `difference` (d,) is used up."""
    if reply.factor == 0.0:
        return
    scalar = state.model.dtype.type
    move = difference
    move *= scalar(reply.factor)
    move /= scalar(state.samples)
    state.model += move
    if beta and reply.drift:
        move *= scalar(beta / reply.drift)
        state.variate -= move


def _commit(state: NodeState, change: RoundWasCommitted) -> None:
    state.version, state.rounds = change.version, change.rounds
    state.elapsed_s = change.elapsed_s
    state.drift = change.drift
    if change.samples != state.samples:
        state.variate *= state.variate.dtype.type(state.samples / change.samples)
        state.samples = change.samples
    if change.delta is not None:
        state.model += change.delta
    if change.local is not None:
        state.local = change.local
