"""The arithmetic of rounds: what training adds to vectors, the robust rule, a newcomer's mean of what it is shown.

Here, too, are distances between models, and the plan of an engine's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from p2pfl.aggregate import Likeness, Neighborhood, Rule, liars_of
from p2pfl.core.events import Mix
from p2pfl.engine.state import TILE, Bodies, Codecs, EdgeState, NodeState, square_of, tiles, works_in_tiles, zeros
from p2pfl.learn.interface import Vector
from p2pfl.limits import MOST_SHARED
from p2pfl.methods import MODEL, Method, New, Round, overrides

PAYLOADS = 2
"""Payloads on each edge: the one that is kept until it is answered, and one that comes or goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The bytes of an engine's vectors, by what they are for; `round` has those of a round but not the learner's."""

    model: int
    replicas: int
    flows: int
    scratch: int
    messages: int
    round: int

    @property
    def total(self) -> int:
        return self.model + self.replicas + self.flows + self.scratch + self.messages + self.round


def memory_plan(state: NodeState, codecs: Codecs, method: Method) -> MemoryPlan:
    """Return the plan for a state whose edges have the replicas that they need."""
    model, channels, peers = state.model.nbytes, state.channels.nbytes, tuple(state.edges)
    size, item = state.channels.size, state.channels.itemsize
    whole = any(codecs.need_replicas(peer) and not works_in_tiles(codecs.of(peer), size) for peer in peers)
    whole_item = 2 * 4 + (0 if item == 4 else item)  # two decoded payloads, and what is encoded if it is no float32
    more, bare = len(method.channels) > 1, any(not codecs.need_replicas(peer) for peer in peers)
    replicas = sum(edge.own.nbytes + edge.peer.nbytes for edge in state.edges.values())
    of_edges = channels * len(method.kept_edges) * len(peers)
    return MemoryPlan(
        model=channels,
        replicas=replicas,
        flows=of_edges + model * len(method.kept),
        scratch=whole * size * whole_item,
        messages=PAYLOADS * sum(codecs.of(peer).size_bytes(size) for peer in peers),
        round=model * (1 + bare + len(method.given) * overrides(method, "gradient") + len(method.kept))
        + (2 * channels - model) * more,
    )


FRAGMENTS, LEAST_DEGREE, LARGE_BYTES = "fragment:2", 4, 10_000_000


def suits_fragments(rule: str, degree: int, size: int) -> bool:
    """Return True if most of a node's memory would be replicas, of models of `size` values, that no rule mixes."""
    return not liars_of(rule) and degree >= LEAST_DEGREE and 4 * size > LARGE_BYTES


LEAST_MOVE = 0.1
SAMPLED = 4096
"""The minimum number of coordinates that `has_moved` compares, if there are that many."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A learning method's view of its node: see `NodeVectors`."""

    samples: int
    channels: dict[str, Vector]
    kept: dict[str, Vector]
    edges: dict[int, EdgeState]
    places: dict[str, slice]
    given: dict[str, Vector] = field(default_factory=dict)
    where: slice = field(default_factory=lambda: slice(None))

    @classmethod
    def of(
        cls, state: NodeState, method: Method, given: Mapping[str, Vector] | None = None, away: Collection[int] = ()
    ) -> NodeSeen:
        """Return the view of a state.

        A vector that the method has not stored yet equals its `first`; one that was not `given` is zero. Edges to
        members that are `away` are left out.
        """
        size = state.model.size
        places = {name: slice(number * size, (number + 1) * size) for number, name in enumerate(method.channels)}
        channels = {name: state.channels[place] for name, place in places.items()}
        kept = {
            name: state.kept[name] if name in state.kept else method.first(name, state.model) for name in method.kept
        }
        nothing = np.broadcast_to(np.zeros((), state.model.dtype), state.model.shape)
        got = {name: (given or {}).get(name, nothing) for name in method.given}
        edges = {peer: edge for peer, edge in state.edges.items() if peer not in away}
        return cls(state.samples, channels, kept, edges, places, got)

    def part(self, part: slice) -> NodeSeen:
        """Return a view of this part of each vector."""
        channels = {name: vector[part] for name, vector in self.channels.items()}
        kept = {name: vector[part] for name, vector in self.kept.items()}
        given = {name: vector[part] for name, vector in self.given.items()}
        return replace(self, channels=channels, kept=kept, given=given, where=part)

    def sum_of_edges(self, name: str, channel: str = MODEL) -> Vector:
        """Return the sum of a stored vector over the edges, added in neighbor order, in its own memory."""
        place, total = self.places[channel], np.zeros_like(self.channels[channel])
        for peer in sorted(self.edges):
            kept = self.edges[peer].kept.get(name)
            if kept is not None:
                total += kept[place][self.where]
        return total


def round_change(  # noqa: PLR0917 - the state, the round's two models, then what was made of it
    state: NodeState,
    start: Vector,
    end: Vector,
    method: Method,
    about: Round,
    given: Mapping[str, Vector] | None = None,
) -> tuple[New, float]:
    """Compute what a local round from `start` to `end` (d,) adds to each channel, and what the method keeps.

    Returns both, and the norm of all results, which is not finite if any result is not. The memory of `start` is
    overwritten, that of `end` where `start` is the state's own. `given` holds the vectors (d,) that the method gave to
    the round.
    """
    if not start.shape == end.shape == state.model.shape:
        raise ValueError(f"a round from {start.shape} to {end.shape} where the model has {state.model.shape}")
    seen = NodeSeen.of(state, method, given)
    room = end if np.may_share_memory(start, state.channels) else start
    change = {name: room if name == MODEL else np.zeros_like(start) for name in method.channels}
    kept = {name: np.zeros_like(start) for name in method.kept}
    tile, square = np.empty(min(TILE, start.size), start.dtype), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in tiles(start.size):
            moved, here = np.subtract(end[part], start[part], out=tile[: end[part].size]), seen.part(part)
            new = method.trained(moved, here, about)
            if not (new.change.keys() <= change.keys() and new.kept.keys() <= kept.keys()):
                raise ValueError(f"it returns {[*new.change, *new.kept]}, and declares {[*change, *kept]}")
            for name, added in change.items():
                added[part] = new.change.get(name, 0.0)
            for name, vector in kept.items():
                vector[part] = new.kept.get(name, here.kept[name])
                square += square_of(vector[part])
            for name, added in change.items():
                square += square_of(np.add(here.channels[name], added[part], out=moved))
    return New(change, kept), float(np.sqrt(square))


def distance(vector: Vector, other: Vector) -> float:
    """Return the Euclidean distance between two vectors."""
    tile, square = np.empty(min(TILE, vector.size), vector.dtype), 0.0
    for part in tiles(vector.size):
        square += square_of(np.subtract(vector[part], other[part], out=tile[: other[part].size]))
    return float(np.sqrt(square))


def neighbor_distance(state: NodeState, peers: Iterable[int]) -> float | None:
    """Return the root mean square distance from this node's model to these neighbors' replicas, relative to its
    norm.

    Where an edge has no replicas, it is the distance of both models in each fragment when that was last exchanged,
    as the messages had it: older, and with the noise of rounding.
    """
    edges = (state.edges.get(peer) for peer in peers)
    known = [edge for edge in edges if edge is not None and edge.record.heard is not None]
    squares = [square for edge in known if (square := _squared_distance(state.model, edge)) is not None]
    if not squares:
        return None
    return float(np.sqrt(np.mean(squares))) / max(norm(state.model), 1e-12)


def _squared_distance(model: Vector, edge: EdgeState) -> float | None:
    """Return the square of the distance to the neighbor's model (d,); None if nothing of it has been seen."""
    if edge.has_replicas:
        return distance(model, edge.peer[: model.size]) ** 2
    gaps = list(edge.gaps.values())
    values = sum(size for _, size in gaps)
    return sum(square for square, _ in gaps) * model.size / values if values else None


def median(vectors: list[Vector]) -> Vector:
    """Return the coordinate median (d,), in the dtype of the first vector."""
    out = np.empty_like(vectors[0])
    for part in tiles(out.size):
        out[part] = np.median([vector[part] for vector in vectors], axis=0)
    return out


def has_moved(own: Vector, others: Sequence[Vector], mixed: Vector) -> bool:
    """Return True if a mix moved a model (d,) by more than LEAST_MOVE of one neighbor's pull in an even mean.

    That neighbor is at the median distance, which fewer than half of the neighbors cannot choose. All vectors are (d,),
    compared on evenly spaced coordinates. The result is also True if that neighbor has the same model.
    """
    some = slice(None, None, max(1, own.size // SAMPLED))
    here = own[some].astype(np.float64)
    far = sorted(norm(other[some] - here) for other in others)[(len(others) - 1) // 2]
    return far == 0 or norm(mixed[some] - here) > LEAST_MOVE * far / (len(others) + 1)


def norm(vector: Vector) -> float:
    """Return the Euclidean norm.

    It is infinite or NaN only if the vector is not finite, even where squares would overflow float32.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(square_of(vector[part]) for part in tiles(vector.size))))


class FragmentMean:
    """The mean of what neighbors have shown of each value of the channels (c d,), each message with equal weight."""

    def __init__(self, channels: Vector) -> None:
        self.mean = zeros(channels)
        self.counts = np.zeros(channels.size, np.uint8)

    def take(self, bodies: Bodies) -> None:
        """Take in what the neighbor has shown in an exchange."""
        for part, here in bodies.tiles():
            counts, mean = self.counts[part], self.mean[part]
            counts += counts < MOST_SHARED
            step = bodies.shown_by_peer(here) - mean
            step /= counts.astype(mean.dtype)
            mean += step

    def result(self, other: Vector) -> Vector:
        """Return the mean (c d,), with the value in `other` (c d,) where nobody has shown one."""
        return np.where(self.counts > 0, self.mean, other)


def gathered(gathering: FragmentMean | None, state: NodeState, bodies: Bodies) -> FragmentMean:
    """Return the gathering, a new one if there is none, with the fragment of an exchange."""
    gathering = gathering or FragmentMean(state.channels)
    gathering.take(bodies)
    return gathering


log = logging.getLogger("p2pfl")

NEWEST = 0.1
"""The weight of the latest round in `RuleMixer.kept`."""


class RuleMixer:
    """Applies the rule and checks its result: a failing rule, or a norm above `longest`, yields no model."""

    def __init__(self, rule: Rule, longest: float) -> None:
        self.rule, self.longest = rule, longest
        self.kept: dict[int, float] = {}
        """The share of each neighbor's pull that the rule recently let through.

        The mapping is only ever replaced, because other threads read it.
        """
        self.likeness = Likeness()
        self._last_warning = ""

    def mix(self, own: Vector, replicas: Sequence[Vector], op: Mix) -> Vector | None:
        """Return the mixed model (c d,) in its own memory, or None. `replicas` (c d,) are in order of `op.peers`."""
        own, *others = map(_read_only, (own, *replicas))
        weights = np.array(op.weights)
        around = Neighborhood(own=own, others=others, weights=weights, peers=op.peers)
        self.likeness.look(own, others, op.peers)
        try:
            mixture = self.rule.mix(around)
            model = np.ascontiguousarray(mixture.model, dtype=own.dtype)
        except Exception as error:  # noqa: BLE001 - a neighbor must not stop the node, whatever the rule raises
            self._say(f"the rule raised {type(error).__name__}: {error}")
            return None
        if model.shape != own.shape or not norm(model) <= self.longest:
            return None
        if any(np.may_share_memory(model, given) for given in (own, *others)):
            model = model.copy()
        if mixture.kept is not None:
            known, kept = self.kept, zip(op.peers, mixture.kept.tolist(), strict=True)
            self.kept = known | {peer: (1 - NEWEST) * known.get(peer, part) + NEWEST * part for peer, part in kept}
        return model

    def forget(self, peers: Collection[int]) -> None:
        """Forget peers that are no longer neighbors."""
        self.kept = {peer: share for peer, share in self.kept.items() if peer not in peers}
        self.likeness.forget(peers)

    def _say(self, text: str) -> None:
        """Log once: a failing rule fails in every round, mostly for the same reason."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text)


def _read_only(vector: Vector) -> Vector:
    """Return a read-only view of the same memory: the rule must not change replicas, which the neighbors also hold."""
    view = vector.view()
    view.flags.writeable = False
    return view
