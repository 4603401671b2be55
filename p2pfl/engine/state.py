"""The state of a node that must survive: its channels, the vectors of its method, and every edge's replicas.

Only one thread writes at a time (the engine's). `engine` changes the state; `durable` turns it into bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2pfl.core.early_stopping import Best
from p2pfl.core.lives import FIRST_LIFE, Life
from p2pfl.core.messages import DIGEST_BYTES
from p2pfl.core.records import EdgeRecord
from p2pfl.engine.ledger import Ledger
from p2pfl.learn.interface import Vector
from p2pfl.learn.methods import Method
from p2pfl.methods.plain import Plain

TILE = 1 << 16
"""The number of values in a tile: a handful of float32 tiles fit into a second-level cache of a megabyte."""


class Scratch:
    """Three vectors (d,) and one tile, allocated when first needed and kept; one instance serves all edges of a node.

    `peer` and `own` will be replicas: they change places with the edge's when an exchange is settled. `move` is first
    the vector to encode, then D, by which n times the model moves.
    """

    def __init__(self) -> None:
        self._sized: tuple[tuple[int, ...], object] | None = None

    def fit(self, model: Vector) -> None:
        """Take the shape and type of `model`; the contents are lost if these were others."""
        if self._sized == (model.shape, model.dtype):
            return
        self.peer, self.own, self.move = (np.empty_like(model) for _ in range(3))
        self.tile = np.empty(min(TILE, model.size), model.dtype)
        single = model.dtype == np.float32
        self._decoded = None if single else np.empty((2, model.size), np.float32)
        self._sized = (model.shape, model.dtype)

    @property
    def decoded_peer(self) -> NDArray[np.float32]:
        """The memory into which the neighbor's payload is decoded: in float32 the memory of `peer` itself."""
        return self.peer if self._decoded is None else self._decoded[0]

    @property
    def decoded_own(self) -> NDArray[np.float32]:
        return self.own if self._decoded is None else self._decoded[1]


@dataclass(slots=True)
class EdgeState:
    """An edge's vectors: `own` is the replica of our channels that the neighbor holds too, `peer` that of its channels.

    Both are (c d,). `kept` holds the vectors (c d,) that the learning method keeps of this edge; a missing one is zero.
    """

    record: EdgeRecord
    own: Vector
    peer: Vector
    kept: dict[str, Vector] = field(default_factory=dict)

    def begin_anew(self, record: EdgeRecord) -> None:
        """Zero both replicas and drop the kept vectors. The other end does the same when it adopts the incarnation."""
        self.record = record
        self.own[:] = 0.0
        self.peer[:] = 0.0
        self.kept = {}

    def digest(self, *, initiator: bool) -> bytes:
        """Return BLAKE2b-128 of both replicas, the initiator's first: equal at both ends between transactions."""
        first, second = (self.own, self.peer) if initiator else (self.peer, self.own)
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"p2pfl-replica")
        digest.update(as_bytes(first))
        digest.update(as_bytes(second))
        return digest.digest()


@dataclass(slots=True)
class NodeState:
    """A node's state.

    Neighbors exchange `channels` (c d,): the model x (d,), then the other channels of the learning method. `samples` is
    n; the core counts `version`, `rounds`, `alone` and `best`.

    `terms` are the method's numbers since the last local round, and `kept` its vectors (d,) of this node: replaced,
    never written to. So are the arrays of `local`, which the learner kept outside the model in the last round that
    counted.

    `ended` is the bound of training ("40 rounds", "60.0 s") when the federation ended for this node; None: it has not.

    `life` is the node's own; `lives` are the known lives of others, by member index.

    `ledger` is the spent part of the privacy budget; None: there is no budget, or its spending is unknown.

    `unmixed` (c d,) are the channels as they were before a robust rule mixed them; neighbors see these until the next
    round is committed. It does not survive a crash: afterwards neighbors see the mixed model once.
    """

    channels: Vector
    samples: int
    size: int = 0
    """The length d of the model; 0 where there is one channel."""
    edges: dict[int, EdgeState] = field(default_factory=dict)
    version: int = 0
    rounds: int = 0
    alone: int = 0
    best: Best | None = None
    terms: tuple[float, ...] = ()
    elapsed_s: float = 0.0
    ended: str | None = None
    life: Life = FIRST_LIFE
    lives: dict[int, Life] = field(default_factory=dict)
    local: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    kept: dict[str, Vector] = field(default_factory=dict)
    ledger: Ledger | None = None
    unmixed: Vector | None = field(default=None, compare=False)
    scratch: Scratch = field(default_factory=Scratch, repr=False, compare=False)

    @classmethod
    def new(
        cls,
        model: Vector,
        samples: int,
        peers: tuple[int, ...],
        local: dict[str, NDArray[np.generic]] | None = None,
        method: Method | None = None,
    ) -> NodeState:
        """Return the state before the first round, from `model` (d,); `method` is `plain` by default."""
        method = method or Plain()
        more = np.zeros((len(method.channels) - 1) * model.size, model.dtype)
        channels = np.concatenate([model, more])
        state = cls(channels, samples, model.size, terms=method.no_terms, local=local or {})
        for peer in peers:
            state._add_edge(peer, EdgeRecord())
        return state

    @property
    def model(self) -> Vector:
        """The model x (d,): the first channel, in the same memory."""
        return self.channels[: self.size] if self.size else self.channels

    def begin_life(self, name: int) -> None:
        """Begin all edges anew, without the neighbors' memory of them. `name` is a random number below 2**53."""
        self.life = Life(self.life.generation + bool(self.life.name), name)
        for edge in self.edges.values():
            edge.begin_anew(edge.record.without_replicas())

    def hear_life(self, member: int | None, life: Life) -> None:
        """Keep the life of a member; None: of this node itself."""
        if member is None:
            self.life = life
        else:
            self.lives[member] = life

    def change_edges(self, added: Iterable[int], dropped: Iterable[int]) -> None:
        """Change edges while the node runs: both ends know that a new edge is empty, and a removed one is forgotten."""
        for peer in dropped:
            self.edges.pop(peer, None)
        for peer in added:
            self._add_edge(peer, EdgeRecord())
        self.edges = {peer: self.edges[peer] for peer in sorted(self.edges)}

    def fit_edges(self, peers: Iterable[int]) -> None:
        """Fit the edges to the graph at a start: it may have changed while the node was off."""
        neighbors = sorted(peers)
        for peer in neighbors:
            if peer not in self.edges:
                self._add_edge(peer, EdgeRecord(has_replicas=False))
        self.edges = {peer: self.edges[peer] for peer in neighbors}

    def _add_edge(self, peer: int, record: EdgeRecord) -> None:
        self.edges[peer] = EdgeState(record, zeros(self.channels), zeros(self.channels))

    @property
    def shown(self) -> Vector:
        """The vector that neighbors may see: (c d,). In the conservative profile always the channels."""
        return self.channels if self.unmixed is None else self.unmixed


def zeros(model: Vector) -> Vector:
    """Return a zero vector as long as the model; unlike with `zeros_like`, memory is allocated only when written."""
    return np.zeros(model.shape, model.dtype)


def as_bytes(array: NDArray[np.generic]) -> memoryview:
    """Return the array's own memory if it is contiguous, in the order of its rows."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
