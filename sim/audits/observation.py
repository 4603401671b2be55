"""What all neighbors of a node together can observe of its local rounds.

An exchange shows a neighbor the node's model, and the neighbor knows how far the exchange then moves it, because both
ends compute the same D. So neighbors that combine what they see know where a local round began and ended, as precisely
as the compressor allows. `Eye` watches, in the simulator and next to a real node's engine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

import numpy as np

from p2pfl.config.model import FederationConfig
from p2pfl.core.effects import ApplyReply, ApplyRequest, Operation
from p2pfl.engine.state import NodeState
from p2pfl.learn.interface import Vector
from p2pfl.methods import FLOW

ROUNDING = 1e-5
"""A change below this fraction of the model's norm is a float32 rounding error."""
MOST_MODELS = 32
"""How many models shown by a victim in one round are remembered; each exchange that it mixes makes another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One exchange with the victim, as its neighbor `peer` sees it afterwards.

    `replica` (d,) is what the victim has shown of its model at its `version`, `move` (d,) what the exchange then adds
    to that model. `flow` (d,) is what the learning method keeps for the edge at the victim's end; None if nothing yet.
    """

    peer: int
    version: int
    replica: Vector
    move: Vector
    flow: Vector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSeen:
    """A local round between two exchanges: the model (d,) it began from and its `change` (d,), as computed by
    neighbors.

    `flows` (d,) is the sum of what the method keeps for all edges at the victim's end; `versions` is the number of
    rounds between the two exchanges, training or not.
    """

    number: int
    start: Vector
    change: Vector
    flows: Vector | None
    versions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The sightings of a victim by all neighbors, in order.

    `initial` (d,) is the model that every node started from, which follows from the federation's seed; `models` (nodes,
    d) are the final ones, for the auditor.
    """

    victim: int
    initial: Vector
    sightings: Sequence[Sighting]
    models: Vector
    lossless: bool = False
    """True if nothing of a model is lost in transmission."""
    vitals: Sequence[object] = field(default=())
    """Rows of vitals sent by a real victim, in order."""

    def rounds(self) -> list[RoundSeen]:
        """Recover the rounds that changed the model, numbered from 0.

        A round begins when every neighbor has had its exchange; later exchanges move the model while it trains. If
        transmission is lossless, the vectors shown distinguish one round from the next. The versions in messages are
        less exact: the first exchange after a commit may still name the version before.
        """
        return _by_content(self) if self.lossless else _by_version(self)


def _by_content(observed: Observation) -> list[RoundSeen]:
    found, start, left = list[RoundSeen](), observed.initial, observed.initial
    known, before, served = [observed.initial], list[Vector](), set[int]()
    flows, now = dict[int, Vector](), dict[int, Vector]()
    everybody = {one.peer for one in observed.sightings}
    for one in observed.sightings:
        near = ROUNDING * float(np.linalg.norm(one.replica))
        if not any(np.linalg.norm(one.replica - model) <= near for model in known + before):
            change = one.replica - left
            found.append(RoundSeen(number=len(found), start=start, change=change, flows=_sum(flows), versions=1))
            start = left = one.replica
            known, before, served, flows = [one.replica], known, set(), dict(now)
        left = left + one.move
        known = (known + [model + one.move for model in known])[-MOST_MODELS:]
        if one.flow is not None:
            now[one.peer] = one.flow
        if served != everybody:
            served.add(one.peer)
            start, flows = start + one.move, dict(now)
    return found


def _by_version(observed: Observation) -> list[RoundSeen]:
    flows, found, most = dict[int, Vector](), list[RoundSeen](), np.linalg.norm(observed.initial)
    version, start, left, total = 0, observed.initial, observed.initial, None
    ordered, everybody = sorted(observed.sightings, key=attrgetter("version")), {s.peer for s in observed.sightings}
    for number, group in groupby(ordered, key=attrgetter("version")):
        first, later = _split(list(group), everybody)
        shown = first[0].replica
        change = shown - left
        if number > version and np.linalg.norm(change) > ROUNDING * most:
            place, apart = len(found), number - version
            found.append(RoundSeen(number=place, start=start, change=change, flows=total, versions=apart))
        flows |= {one.peer: one.flow for one in first if one.flow is not None}
        total = _sum(flows)
        flows |= {one.peer: one.flow for one in later if one.flow is not None}
        version, start = number, shown + sum((one.move for one in first), np.zeros_like(shown))
        left = start + sum((one.move for one in later), np.zeros_like(shown))
        most = np.linalg.norm(shown)
    return found


def _sum(vectors: Mapping[int, Vector]) -> Vector | None:
    """Sum all vectors, (d,); None if there are none."""
    return np.sum([vectors[peer] for peer in sorted(vectors)], axis=0) if vectors else None


def _split(seen: list[Sighting], everybody: set[int]) -> tuple[list[Sighting], list[Sighting]]:
    """Split the exchanges of one version into those up to the point at which every neighbor has had one, and the
    rest.
    """
    served = set[int]()
    for place, one in enumerate(seen):
        served.add(one.peer)
        if served == everybody:
            return seen[: place + 1], seen[place + 1 :]
    return seen, []


class Eye:
    """Records each exchange that one of the `spies` has with the `victim`, whose data have `samples` n rows."""

    def __init__(self, victim: int, spies: Iterable[int], samples: int) -> None:
        self.victim, self.spies, self.samples = victim, frozenset(spies), samples
        self.sightings: list[Sighting] = []
        self._lock = threading.Lock()

    def look(self, index: int, state: NodeState, operation: Operation) -> None:
        """Record what happened after node `index` carried out `operation`; `state` is that node's."""
        if index not in self.spies or not isinstance(operation, ApplyRequest | ApplyReply):
            return
        edge = state.edges.get(operation.peer)
        message = operation.request if isinstance(operation, ApplyRequest) else operation.reply
        if operation.peer != self.victim or edge is None or edge.record.seq != message.seq:
            return  # it belongs to another node, or was refused
        factor = operation.factor if isinstance(operation, ApplyRequest) else operation.reply.factor
        size = state.model.size
        flow = edge.kept.get(FLOW)
        sighting = Sighting(
            peer=index,
            version=message.version,
            replica=edge.peer[:size].copy(),
            move=(edge.own[:size] - edge.peer[:size]) * np.float32(factor) / np.float32(self.samples),
            flow=None if flow is None else -flow[:size],
        )
        with self._lock:
            self.sightings.append(sighting)


def is_lossless(federation: FederationConfig) -> bool:
    """Return True if neighbors get the model itself, up to rounding."""
    return {federation.gossip.compressor, *federation.edge_compressors.values()} == {"none"}
