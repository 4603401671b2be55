"""Changes to a node's durable state, as values; the one place where each is applied; their form in a store.

Live operations and recovery from the log run the same floating-point operations on the same values, so a restarted node
holds the same bits as before. A live operation has already computed and checked the result, and only `settle`s it. `x_i
-= D/n_i` is the Laplacian step of Xiao and Boyd (2004) on one edge.

A store gets plain headers, arrays and blobs. A node that keeps no log (`snapshot` durability) stores no replicas
either: it restarts without them, and its edges begin a new incarnation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, assert_never

import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from p2pfl.compress import Payload
from p2pfl.core.members import Lifetime
from p2pfl.core.messages import EdgeRecord, Reply, Request
from p2pfl.core.settings import Best
from p2pfl.engine.state import Bodies, Codecs, EdgeState, NodeState, as_bytes, lead, settle_vectors, zeros
from p2pfl.errors import StorageError
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.accounting import Ledger, Spend
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

    Training adds `delta` (c d,) to the channels; it is None for a mixing round or a failed one, and for one that was
    made in the memory of the channels: then these are `channels` (c d,), and the log has all of them. `alone` counts
    the rounds trained without a neighbor. From now on the learning method keeps `terms` and `kept` for the node, and
    `best` is the best figure of its rounds. `local` holds the arrays that the learner keeps outside the model from this
    round on; None if they have not changed.
    """

    version: int
    rounds: int
    samples: int
    terms: tuple[float, ...]
    elapsed_s: float
    alone: int
    delta: Vector | None
    channels: Vector | None = None
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


class LifetimeWasTold(Struct, frozen=True, kw_only=True, gc=False):
    """This node has learned that `member` (None for this node itself) is in `lifetime`."""

    member: int | None
    lifetime: Lifetime


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
    | LifetimeWasTold
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
        case LifetimeWasTold(member=member, lifetime=lifetime):
            state.note_lifetime(member, lifetime)
        case BudgetWasSpent(spend=spend):
            if state.ledger is None:
                raise ValueError("a round was paid for without a ledger")
            state.ledger = state.ledger.plus(spend)
        case _:
            assert_never(change)


def settle(state: NodeState, change: RequestWasApplied | ReplyWasApplied, method: Method, bodies: Bodies) -> None:
    """Finish an exchange that `lead` has computed: x += D/n, where D has the same bits at both ends but its sign."""
    edge, reply = state.edges[change.peer], change.reply
    if isinstance(change, RequestWasApplied):
        edge.record.settle_request(change.request, reply, change.chain)
    else:
        edge.record.settle_reply(reply, change.chain)
    settle_vectors(state, edge, reply.factor, reply.terms, method, bodies)
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
    lead(state, edge, change.reply.factor, bodies)
    settle(state, change, method, bodies)


def _commit(state: NodeState, change: RoundWasCommitted) -> None:
    state.version, state.rounds = change.version, change.rounds
    state.elapsed_s = change.elapsed_s
    state.unmixed = None
    state.terms, state.alone, state.samples = change.terms, change.alone, change.samples
    state.best = change.best
    if change.channels is not None and change.channels is not state.channels:
        state.channels[:] = change.channels
    if change.delta is not None:
        state.channels += change.delta
    if change.delta is not None or change.channels is not None:
        state.unpaid += state.ledger is None
    if change.local is not None:
        state.local = change.local
    if change.kept is not None:
        state.kept = change.kept


FORMAT = 3
EDGE_VECTOR, KEPT = re.compile(r"([A-Za-z_]\w*)\.(\d+)"), "kept."
"""Array names: `flow.3` belongs to the edge to member 3, `kept.momentum` to the node."""

Array = NDArray[np.generic]
Entry = tuple[str, dict[str, Any], list[Payload]]
Message = TypeVar("Message", Request, Reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A node's state, ready for a store; `header` is JSON-serializable."""

    header: dict[str, Any]
    arrays: dict[str, Array]
    blobs: dict[str, Payload]


def image(state: NodeState, *, with_replicas: bool, copied: bool = True) -> Image:
    """Return the image of everything that must survive.

    If vectors are not `copied`, they are the state's own memory.
    """
    vectors = {"model": state.channels} | {KEPT + name: vector for name, vector in state.kept.items()}
    blobs: dict[str, Payload] = {}
    edges: dict[str, Any] = {}
    for peer, edge in state.edges.items():
        record = edge.record
        if not with_replicas:
            record = record.without_replicas()
        else:
            vectors |= {f"own.{peer}": edge.own, f"peer.{peer}": edge.peer} if edge.has_replicas else {}
            vectors |= {f"{name}.{peer}": vector for name, vector in edge.kept.items()}
        edges[str(peer)] = _without_bodies(record, peer, blobs)
    header = {
        "format": FORMAT,
        "samples": state.samples,
        "version": state.version,
        "rounds": state.rounds,
        "size": state.size,
        "terms": list(state.terms),
        "elapsed_s": state.elapsed_s,
        "alone": state.alone,
        "best": state.best,
        "ended": state.ended,
        "unpaid": state.unpaid,
        "whole": with_replicas,
        "life": list(state.lifetime),
        "lives": {str(member): list(lifetime) for member, lifetime in state.lifetimes.items()},
        "edges": edges,
    }
    if state.ledger is not None:
        header["ledger"] = state.ledger.plain()
    arrays: dict[str, Array] = {name: v.copy() if copied else v for name, v in vectors.items()}
    arrays |= {f"local.{name}": value for name, value in state.local.items()}
    return Image(header=header, arrays=arrays, blobs=blobs)


def restore(header: Mapping[str, Any], arrays: Mapping[str, Array], blobs: Mapping[str, Payload]) -> NodeState:
    """Return the state from which `image` was made.

    Raises StorageError if it was written by another version of this software, or by other software.
    """
    check_format(header)
    state = NodeState(
        channels=_vector(arrays["model"]),
        size=header["size"],
        samples=header["samples"],
        version=header["version"],
        rounds=header["rounds"],
        terms=tuple(header["terms"]),
        elapsed_s=header["elapsed_s"],
        alone=header["alone"],
        best=header["best"] and Best(*header["best"]),
        ended=header["ended"],
        lifetime=Lifetime(*header["life"]),
        lifetimes={int(member): Lifetime(*lifetime) for member, lifetime in header["lives"].items()},
        ledger=(ledger := Ledger.of(header.get("ledger"))),
        unpaid=header.get("unpaid", 0 if ledger is not None and ledger.has_paid else header["rounds"]),
    )
    state.local = {name.removeprefix("local."): np.array(a) for name, a in arrays.items() if name.startswith("local.")}
    for key, plain in header["edges"].items():
        record = _with_bodies(plain, key, blobs)
        # Where something was exchanged without replicas, there are none; elsewhere they are zero.
        bare = record.has_replicas and not record.is_blank
        own, peer = (
            _vector(arrays[name]) if name in arrays else state.channels[:0].copy() if bare else zeros(state.channels)
            for name in (f"own.{key}", f"peer.{key}")
        )
        state.edges[int(key)] = EdgeState(record, own, peer)
    state.kept = {name.removeprefix(KEPT): _vector(a) for name, a in arrays.items() if name.startswith(KEPT)}
    for name, array in arrays.items():
        match = EDGE_VECTOR.fullmatch(name)
        if match and match[1] not in {"own", "peer"} and match[2] in header["edges"]:
            state.edges[int(match[2])].kept[match[1]] = _vector(array)
    return state


def check_format(header: Mapping[str, Any]) -> None:
    """Raise StorageError if the state with this header was written by a version with another format."""
    if header.get("format") != FORMAT:
        raise StorageError(f"state has format {header.get('format')!r}, this software reads {FORMAT}")


def entry(change: Change) -> Entry:
    """Return a change as a log entry: kind, header, blobs.

    The blobs are the change's own memory, or the state's: a store copies what it keeps.
    """
    match change:
        case RequestWasFrozen(peer=peer, request=request):
            return "frozen", {"peer": peer, "request": _plain(request)}, [request.body]
        case RequestWasApplied(peer=peer, request=request, reply=reply, chain=chain):
            header = {"peer": peer, "request": _plain(request), "reply": _plain(reply), "chain": chain}
            return "request", header, [request.body, reply.body]
        case ReplyWasApplied(peer=peer, reply=reply, chain=chain):
            return "reply", {"peer": peer, "reply": _plain(reply), "chain": chain}, [reply.body]
        case EdgeWasReset(peer=peer, incarnation=incarnation):
            return "reset", {"peer": peer, "incarnation": incarnation}, []
        case EdgesWereChanged(added=added, dropped=dropped):
            return "edges", {"added": list(added), "dropped": list(dropped)}, []
        case RoundWasCommitted():
            return _round_entry(change)
        case ModelWasReplaced(model=model, rounds=rounds, elapsed_s=elapsed_s):
            return "model", {"rounds": rounds, "elapsed_s": elapsed_s}, [as_bytes(model)]
        case LifetimeWasTold(member=member, lifetime=lifetime):
            return "life", {"member": member, "life": list(lifetime)}, []
        case BudgetWasSpent(spend=spend):
            return "budget", spend._asdict(), []


def _round_entry(change: RoundWasCommitted) -> Entry:
    names = ("version", "rounds", "samples", "terms", "elapsed_s", "alone", "best")
    header = {name: getattr(change, name) for name in names}
    vector = change.delta if change.channels is None else change.channels
    blobs: list[Payload] = [] if vector is None else [as_bytes(vector)]
    if change.kept:
        header["kept"] = list(change.kept)
        blobs += [as_bytes(vector) for vector in change.kept.values()]
    if change.local is not None:
        header["local"] = [(name, array.dtype.str, array.shape) for name, array in change.local.items()]
        blobs += [as_bytes(array) for array in change.local.values()]
    return "round" if change.channels is None else "whole", header, blobs


def change(kind: str, header: Mapping[str, Any], blobs: Sequence[Payload], dtype: np.dtype[Any]) -> Change:
    """Return the change from which a log entry was made. Arrays that will stay in the state are copied, so that they do
    not hold the blobs' memory.

    Raises StorageError if the kind is unknown.
    """
    match kind:
        case "frozen":
            return RequestWasFrozen(peer=header["peer"], request=_message(Request, header["request"], blobs[0]))
        case "request":
            return RequestWasApplied(
                peer=header["peer"],
                request=_message(Request, header["request"], blobs[0]),
                reply=_message(Reply, header["reply"], blobs[1]),
                chain=header["chain"],
            )
        case "reply":
            reply = _message(Reply, header["reply"], blobs[0])
            return ReplyWasApplied(peer=header["peer"], reply=reply, chain=header["chain"])
        case "reset":
            return EdgeWasReset(peer=header["peer"], incarnation=header["incarnation"])
        case "edges":
            return EdgesWereChanged(added=tuple(header["added"]), dropped=tuple(header["dropped"]))
        case "round" | "whole":
            return _round(header, blobs, dtype, name="channels" if kind == "whole" else "delta")
        case "model":
            return ModelWasReplaced(model=np.frombuffer(blobs[0], dtype=dtype), **header)
        case "life":
            return LifetimeWasTold(member=header["member"], lifetime=Lifetime(*header["life"]))
        case "budget":
            return BudgetWasSpent(spend=Spend(**header))
    raise StorageError(f"unknown log entry {kind!r}")


def _round(
    header: Mapping[str, Any], blobs: Sequence[Payload], dtype: np.dtype[Any], *, name: str
) -> RoundWasCommitted:
    """Return the committed round of an entry.

    Blobs: the delta or the channels (`name`), if there is one; then the vectors `kept`, then `local`.
    """
    apart = {"local", "kept", "terms", "best"}
    plain: dict[str, Any] = {"terms": tuple(header["terms"]), "best": header["best"] and Best(*header["best"])}
    plain |= {key: value for key, value in header.items() if key not in apart}
    named, kept = header.get("local"), header.get("kept", ())
    rest = list(blobs)[len(blobs) - len(named or ()) :]
    own = list(blobs)[len(blobs) - len(rest) - len(kept) : len(blobs) - len(rest)]
    local = {
        each: np.frombuffer(blob, np.dtype(kind)).reshape(shape).copy()
        for (each, kind, shape), blob in zip(named or (), rest, strict=True)
    }
    vector = np.frombuffer(blobs[0], dtype) if len(blobs) > len(rest) + len(own) else None
    plain |= {"delta": None} | {name: vector}
    vectors = {each: np.frombuffer(blob, dtype).copy() for each, blob in zip(kept, own, strict=True)}
    return RoundWasCommitted(**plain, local=None if named is None else local, kept=vectors or None)


def _plain(message: Request | Reply) -> dict[str, Any]:
    plain = structs.asdict(message)
    plain["body"] = b""
    return plain


def _message(form: type[Message], plain: Mapping[str, Any], body: Payload) -> Message:
    return structs.replace(msgspec.convert(plain, form, builtin_types=(bytes,)), body=bytes(body))


def _without_bodies(record: EdgeRecord, peer: int, blobs: dict[str, Payload]) -> dict[str, Any]:
    """Return the record as JSON-serializable values (bytes in base64); message bodies go to `blobs`."""
    if record.pending is not None:
        blobs[f"pending.{peer}"] = record.pending.body
        record = replace(record, pending=structs.replace(record.pending, body=b""))
    if record.reply is not None:
        blobs[f"reply.{peer}"] = record.reply.body
        record = replace(record, reply=structs.replace(record.reply, body=b""))
    plain: dict[str, Any] = msgspec.to_builtins(record)
    return plain


def _with_bodies(plain: Mapping[str, Any], key: str, blobs: Mapping[str, Payload]) -> EdgeRecord:
    record = msgspec.convert(plain, EdgeRecord)
    if record.pending is not None:
        record.pending = structs.replace(record.pending, body=blobs[f"pending.{key}"])
    if record.reply is not None:
        record.reply = structs.replace(record.reply, body=blobs[f"reply.{key}"])
    return record


def _vector(array: Array) -> Any:
    """Return a copy in writable memory, because an array from a store may be a view of a file."""
    return np.array(array)
