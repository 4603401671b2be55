"""What each link of a world is like: drawn once from the run's seed, counted in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from p2pfl.chance import stream
from sim.draws import draw, quantized
from sim.framing import Framing
from sim.kernel import NS
from sim.worlds.model import LinkSpec, SlowNodes

Edge = tuple[int, int]


class Traffic(NamedTuple):
    bytes_sent: int
    messages_sent: int


class Bandwidth:
    """Bytes per second as a fraction of whole numbers, so that a transfer ends at one nanosecond on every machine."""

    def __init__(self, bytes_per_s: float) -> None:
        numerator, denominator = float(bytes_per_s).as_integer_ratio()
        self._numerator, self._scale = numerator, denominator * NS

    def transfer_ns(self, size_bytes: int) -> int:
        """Rounded up."""
        return -(-size_bytes * self._scale // self._numerator)


@dataclass(slots=True, eq=False)
class Way:
    """One direction of a link. Until `free_ns` an earlier message is still leaving."""

    link: Link
    source: int
    target: int
    free_ns: int = 0
    bytes_sent: int = 0
    messages_sent: int = 0


@dataclass(slots=True, eq=False)
class Link:
    """`session` is 0 while the link is down; `latency_ns` includes what slow ends add."""

    edge: Edge
    latency_ns: int
    bandwidth: Bandwidth | None
    rng: Random
    framing: Framing
    session: int = 0
    ways: tuple[Way, Way] = field(init=False)
    """The way from the lower end, and the way from the upper end."""

    def __post_init__(self) -> None:
        a, b = self.edge
        self.ways = (Way(self, a, b), Way(self, b, a))

    @property
    def bytes_sent(self) -> int:
        return sum(way.bytes_sent for way in self.ways)

    @property
    def messages_sent(self) -> int:
        return sum(way.messages_sent for way in self.ways)


def lay(
    body_bytes: Mapping[Edge, int], spec: LinkSpec, slow: Sequence[SlowNodes], seed: int, *, tokens: bool
) -> dict[Edge, Link]:
    """The links of these edges, each with a stream of its own. A node in several groups bears the sum of the delays.

    `body_bytes` is the largest body that goes over each; `tokens`: bodies stand for payloads of just that size.
    """
    far_s: dict[int, float] = {}
    caps: dict[int, float] = {}
    for group in slow:
        for node in group.nodes:
            far_s[node] = far_s.get(node, 0.0) + group.far_s
            if group.bandwidth is not None:
                caps[node] = min(group.bandwidth, caps.get(node, group.bandwidth))
    needs_chance = spec.jitter_s > 0 or spec.loss > 0 or spec.duplication > 0 or spec.latency_s.kind != "constant"
    shared = stream(seed, "links")  # nothing is ever drawn from it
    framings = {size: Framing(size, size if tokens else None) for size in set(body_bytes.values())}
    links = {}
    for edge, size in body_bytes.items():
        rng = stream(seed, "link", *edge) if needs_chance else shared
        latency_s = draw(rng, spec.latency_s) + sum(far_s.get(end, 0.0) for end in edge)
        limits = [limit for limit in (spec.bandwidth, *(caps.get(end) for end in edge)) if limit is not None]
        links[edge] = Link(
            edge=edge,
            latency_ns=whole_ns(latency_s),
            bandwidth=Bandwidth(min(limits)) if limits else None,
            rng=rng,
            framing=framings[size],
        )
    return links


def whole_ns(seconds: float) -> int:
    return round(quantized(seconds) * NS)
