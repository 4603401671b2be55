"""The part of a node's state that must survive: channels, the method's vectors, and the replicas of every edge.

Only one thread at a time writes to it (the engine's). `engine` changes the state; `durable` turns it into bytes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from p2pfl.core.early_stopping import Best
from p2pfl.core.lives import FIRST_LIFE, Life
from p2pfl.core.messages import DIGEST_BYTES
from p2pfl.core.records import EdgeRecord
from p2pfl.engine.mapped import MappedVectors
from p2pfl.engine.scratch import Scratch
from p2pfl.errors import StorageError
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.ledger import Ledger
from p2pfl.methods import Method

log = logging.getLogger("p2pfl")


@dataclass(slots=True)
class EdgeState:
    """An edge's vectors: `own` is the replica of our channels shared with the neighbor, `peer` the one of its channels.

    Both are (c d,), or empty where the edge's compressor needs none. `kept` holds the vectors (c d,) that the learning
    method keeps for this edge; a missing one is zero. `gaps` has, on an edge without replicas, the square of the
    distance between the two models in each fragment when it was last exchanged, and its number of values; it does not
    survive a restart.
    """

    record: EdgeRecord
    own: Vector
    peer: Vector
    kept: dict[str, Vector] = field(default_factory=dict)
    gaps: dict[int, tuple[float, int]] = field(default_factory=dict, compare=False)
    room: Callable[[str], Vector] | None = field(default=None, repr=False, compare=False)
    """Makes a zero vector (c d,) of that name for this edge; None: in memory."""

    def keep(self, names: Iterable[str], channels: Vector) -> None:
        """Begin to keep vectors of these names, which are zero, where there are none yet."""
        for name in names:
            if name not in self.kept:
                self.kept[name] = zeros(channels) if self.room is None else self.room(name)

    @property
    def has_replicas(self) -> bool:
        return self.own.size > 0

    def begin_anew(self, record: EdgeRecord) -> None:
        """Zero both replicas and drop the kept vectors. The other end does the same when it adopts the incarnation."""
        self.record = record
        self.own[:] = 0.0
        self.peer[:] = 0.0
        self.kept = {}
        self.gaps = {}

    def digest(self, *, initiator: bool) -> bytes:
        """Return BLAKE2b-128 of both replicas, the initiator's first; between transactions it is equal at both ends."""
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

    `terms` are the method's numbers since the last local round, and `kept` its vectors (d,) for this node, which are
    replaced but never written to. The same holds for the arrays in `local`, which the learner kept outside the model in
    the last round that counted.

    `ended` is the bound of training ("40 rounds", "60.0 s") when the federation ended for this node; None if it has not
    ended.

    `life` is the node's own incarnation (`core.lives`); `lives` are those known of others, by member index.

    `ledger` is the spent part of the privacy budget; None if there is no budget, or if its spending is unknown.
    `unpaid` counts the rounds trained without a ledger: no budget covers a model that has them.

    `unmixed` (c d,) are the channels as they were before a robust rule mixed them; neighbors see these until the next
    round is committed. It does not survive a crash: afterwards neighbors see the mixed model once.

    `mapped` holds the vectors of all edges, unless they are in memory.
    """

    channels: Vector
    samples: int
    size: int = 0
    """The length d of the model; 0 if there is only one channel."""
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
    unpaid: int = 0
    unmixed: Vector | None = field(default=None, compare=False)
    scratch: Scratch = field(default_factory=Scratch, repr=False, compare=False)
    mapped: MappedVectors | None = field(default=None, repr=False, compare=False)

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
        method = method or Method()
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
        """Restart all edges, which the neighbors no longer remember. `name` is a random number below 2**53."""
        self.life = Life(self.life.generation + bool(self.life.name), name)
        for edge in self.edges.values():
            edge.begin_anew(edge.record.without_replicas())

    def hear_life(self, member: int | None, life: Life) -> None:
        """Store the life of a member; None stands for this node itself."""
        if member is None:
            self.life = life
        else:
            self.lives[member] = life

    def change_edges(self, added: Iterable[int], dropped: Iterable[int]) -> None:
        """Change edges while the node runs: both ends know that a new edge is empty, and a removed one is forgotten."""
        for peer in dropped:
            self.edges.pop(peer, None)
            if self.mapped is not None:
                self.mapped.forget(peer)
        for peer in added:
            self._add_edge(peer, EdgeRecord())
        self.edges = {peer: self.edges[peer] for peer in sorted(self.edges)}

    def fit_edges(self, peers: Iterable[int]) -> None:
        """Match the edges to the graph at startup: it may have changed while the node was off."""
        neighbors = sorted(peers)
        for peer in neighbors:
            if peer not in self.edges:
                self._add_edge(peer, EdgeRecord(has_replicas=False))
        self.edges = {peer: self.edges[peer] for peer in neighbors}

    def fit_replicas(self, needs: Callable[[int], bool]) -> None:
        """Drop the replicas of edges that need none, and create those that edges need by now.

        An edge that has exchanged something without them restarts: its replicas would be wrong.
        """
        for peer, edge in self.edges.items():
            if not needs(peer):
                edge.own = edge.peer = self.channels[:0].copy()
            elif not edge.has_replicas:
                edge.own, edge.peer, edge.gaps = self._zeros(peer, "own"), self._zeros(peer, "peer"), {}
                if not edge.record.is_blank:
                    edge.record = edge.record.without_replicas()

    def _add_edge(self, peer: int, record: EdgeRecord) -> None:
        room = None if self.mapped is None else partial(self._zeros, peer)
        self.edges[peer] = EdgeState(record, self._zeros(peer, "own"), self._zeros(peer, "peer"), room=room)

    def _zeros(self, peer: int, name: str) -> Vector:
        """Return a new vector of an edge; in memory, if a mapped file would have to grow and cannot. An exchange may be
        half done.
        """
        if self.mapped is not None:
            try:
                return self.mapped.zeros(peer, name)
            except StorageError as error:
                log.warning("%s; a vector of an edge is in memory instead", error)
        return zeros(self.channels)

    def move_to(self, mapped: MappedVectors) -> None:
        """Move the vectors of all edges into a mapped file, and make those there that follow. Raises StorageError."""
        self.mapped = mapped
        for peer, edge in self.edges.items():
            edge.room = partial(self._zeros, peer)
            if edge.has_replicas:
                edge.own, edge.peer = mapped.moved(peer, "own", edge.own), mapped.moved(peer, "peer", edge.peer)
            for name, vector in edge.kept.items():
                edge.kept[name] = mapped.moved(peer, name, vector)

    @property
    def shown(self) -> Vector:
        """The vector (c d,) that neighbors may see. In the conservative profile it is always the channels."""
        return self.channels if self.unmixed is None else self.unmixed


def zeros(model: Vector) -> Vector:
    """Return a zero vector as long as the model; unlike with `zeros_like`, memory is allocated only on the first
    write.
    """
    return np.zeros(model.shape, model.dtype)


def as_bytes(array: NDArray[np.generic]) -> memoryview:
    """Return the array's own memory in row order if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
