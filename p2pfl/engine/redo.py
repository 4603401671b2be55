"""What each change does to the state: the one place where model, variate and replicas move.

Live operations and recovery from the log run the same floating-point operations on the same values, so a restarted
node holds the very bits that it held before; a live operation has checked before what they lead to, and only `settle`s
it. `x_i -= D/n_i` is the Laplacian step of Xiao and Boyd (2004) on one edge;
`C_i -= beta (mixing move)/(eta H)` the control variate that follows the flow.
"""

from __future__ import annotations

from typing import assert_never

from p2pfl.engine import scratch
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


def redo(state: NodeState, change: Change, *, codecs: Codecs, beta: float) -> None:
    """Apply `change` to `state` in place."""
    match change:
        case RequestWasFrozen(peer=peer, request=request):
            state.edges[peer].record.freeze(request)
        case RequestWasApplied() | ReplyWasApplied():
            _exchange(state, change, codecs, beta)
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
            state.unmixed = None
        case _:
            assert_never(change)


def settle(state: NodeState, change: RequestWasApplied | ReplyWasApplied, *, beta: float) -> None:
    """The rest of an exchange whose outcome stands in the scratch memory: D = k (h_i - h_j), the same bits at both ends
    up to its sign; x += D/n.
    """
    edge, reply = state.edges[change.peer], change.reply
    if isinstance(change, RequestWasApplied):
        edge.record.settle_request(change.request, reply, change.chain)
    else:
        edge.record.settle_reply(reply, change.chain)
    scratch.settle(state, edge, reply.factor, beta / reply.drift if reply.drift else 0.0)


def _exchange(state: NodeState, change: RequestWasApplied | ReplyWasApplied, codecs: Codecs, beta: float) -> None:
    edge, codec, size = state.edges[change.peer], codecs.of(change.peer), state.model.size
    if isinstance(change, RequestWasApplied):
        incoming, outgoing = change.request.body, change.reply.body
    elif edge.record.pending is not None:
        incoming, outgoing = change.reply.body, edge.record.pending.body
    else:
        raise ValueError("a reply was applied without a pending request")
    state.scratch.fit(state.model)
    codec.decode(incoming, size, state.scratch.decoded_peer)
    codec.decode(outgoing, size, state.scratch.decoded_own)
    scratch.lead(state, edge, change.reply.factor)
    settle(state, change, beta=beta)


def _commit(state: NodeState, change: RoundWasCommitted) -> None:
    state.version, state.rounds = change.version, change.rounds
    state.elapsed_s = change.elapsed_s
    state.unmixed = None
    state.drift = change.drift
    if change.samples != state.samples:
        state.variate *= state.variate.dtype.type(state.samples / change.samples)
        state.samples = change.samples
    if change.delta is not None:
        state.model += change.delta
    if change.local is not None:
        state.local = change.local
