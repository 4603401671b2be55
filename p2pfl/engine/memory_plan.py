"""How much memory a node's vectors take at most, counted from the state itself and from what its method asks for."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.engine.codecs import Codecs
from p2pfl.engine.state import NodeState, works_in_tiles
from p2pfl.methods import Method, overrides

PAYLOADS = 2
"""Payloads on each edge: the one that is kept until it is answered, and one that comes or goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The bytes of an engine's vectors, by what they are for; `round` has those of a round but not the learner's.

    `mapped` are those in a mapped file, which need no memory: replicas, and the flows of edges.
    """

    model: int
    replicas: int
    flows: int
    scratch: int
    messages: int
    round: int
    mapped: int = 0

    @property
    def total(self) -> int:
        return self.model + self.replicas + self.flows + self.scratch + self.messages + self.round


def memory_plan(state: NodeState, codecs: Codecs, method: Method, *, mapped: bool = False) -> MemoryPlan:
    """Return the plan for a state whose edges have the replicas that they need, in memory or in a `mapped` file."""
    model, channels, peers = state.model.nbytes, state.channels.nbytes, tuple(state.edges)
    size, item = state.channels.size, state.channels.itemsize
    whole = any(codecs.need_replicas(peer) and not works_in_tiles(codecs.of(peer), size) for peer in peers)
    whole_item = 2 * 4 + (0 if item == 4 else item)  # two decoded payloads, and what is encoded if it is no float32
    more = len(method.channels) > 1
    replicas = sum(edge.own.nbytes + edge.peer.nbytes for edge in state.edges.values())
    of_edges = channels * len(method.kept_edges) * len(peers)
    return MemoryPlan(
        model=channels,
        replicas=0 if mapped else replicas,
        flows=(0 if mapped else of_edges) + model * len(method.kept),
        mapped=replicas + of_edges if mapped else 0,
        scratch=whole * size * whole_item,
        messages=PAYLOADS * sum(codecs.of(peer).size_bytes(size) for peer in peers),
        round=model * (1 + len(method.given) * overrides(method, "gradient") + len(method.kept))
        + (2 * channels - model) * more,
    )
