"""The parts of a report that do not depend on where the run took place, and how a federation mixes: the expected
contraction per round, the malicious neighbors that each node tolerates under its rule and against which it has proof,
and the traffic on the edges, with mistakes in the compressors.

`topologies.metrics.byzantine` computes the effect of the graph, `aggregate` has the rules, and the core defines the
faults that count. Bytes of a round are those of messages: the compressed models, with header and seal, and the short
messages by which neighbors ask for them. Vitals, new sessions, TCP and WebSocket are not counted.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import liars_of
from p2pfl.compress import Compressor, Fragments, make_compressor, require_fit, require_library, require_replicas
from p2pfl.config.graph import rule_of
from p2pfl.config.model import Edges, FederationConfig
from p2pfl.engine.rounds import FRAGMENTS, PAYLOADS, suits_fragments
from p2pfl.errors import UserError
from p2pfl.limits import CHUNK_BYTES
from p2pfl.reporting.alarms import ALARMS
from p2pfl.reporting.report import Contraction, HeldAgainst, NodeReport
from p2pfl.reporting.status import ClosedRound, MeanAndMax, consensus_distance
from topologies import Topology
from topologies import contraction as of_laplacian
from topologies.graph import component_count
from topologies.schedule import ROUNDING

AGREED = "0: but for compression and rounding, all would be equal"
FLOOR = 1e-3
"""Closing rounds count towards the measured contraction until the distance has fallen to this share of the first."""

MOST_NODES = 1000
"""The most nodes of a schedule, or of a graph with unequal steps, for which a contraction is predicted."""


class ClosingPoint(NamedTuple):
    """A round without training: the distance between the nodes, and the exchanges so far, per end of an edge."""

    distance: float
    exchanges: float


def about_mixing(nodes: Iterable[NodeReport]) -> list[str]:
    """Warn of the honest nodes that mixed with nobody in most of their rounds, by the reason."""
    alone = [node for node in nodes if not node.byzantine and 2 * (node.rounds_unmixed or 0) > (node.rounds or 0)]
    by_reason: dict[str, list[str]] = {}
    for node in alone:
        reason = "too-few-neighbors" if (node.alarms or {}).get("too-few-neighbors") else "hardly-mixes"
        by_reason.setdefault(reason, []).append(node.name)
    return [
        f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if names[5:] else ''} mixed with nobody in most rounds. "
        f"{ALARMS[reason].means} {ALARMS[reason].advice}"
        for reason, names in sorted(by_reason.items())
    ]


def overall_staleness(nodes: Iterable[MeanAndMax | None]) -> MeanAndMax | None:
    """Combine the mean and maximum staleness of all nodes."""
    known = [pair for pair in nodes if pair]
    if not known:
        return None
    return MeanAndMax(mean=float(np.mean([pair.mean for pair in known])), max=max(pair.max for pair in known))


def contraction(
    federation: FederationConfig,
    samples: Sequence[float | None],
    closing: Sequence[Mapping[int, ClosedRound]],
    *,
    ends: float | None = None,
    size: int | None = None,
) -> Contraction:
    """Predict the contraction of one synchronous exchange on every edge, and measure it in the closing rounds, per
    exchange on an edge.

    For a schedule, "every edge" means the edges of one of its rounds. `closing` has each node's line after each of its
    closing rounds, by number, with `sketch` and `exchanges`. `ends` is the number of edge ends that one round uses at
    these nodes; None means all. `size` is the number of parameters, None if unknown. If a node died before it reported
    its number of samples, the prediction gives all nodes equal weight, and `samples_known` is False. Under a robust
    rule, mixing is not a Laplacian step, so nothing is predicted; where closing rounds train, nothing is measured; if
    rounds are sums, nothing is mixed.
    """
    known = [n for n in samples if n]
    if federation.in_step_by or not known:
        return Contraction()
    complete = len(known) == len(samples)
    robust, ends = liars_of(federation.gossip.rule) > 0, 2 * federation.edges_at_once if ends is None else ends
    return Contraction(
        predicted=None if robust else predicted(federation, known if complete else None, size),
        samples_known=complete,
        measured=_measured_contraction(closing, ends) if federation.training.closing == "mix" else None,
    )


def configuration(federation: FederationConfig) -> dict[str, Any]:
    """Return the contents of a federation file without keys and addresses. `edge_compressors` has rows [i, j,
    compressor], and `edge_weights`, if the graph has weights, rows [i, j, weight].
    """
    privacy = federation.privacy or federation.hides
    return {
        "federation": federation.name,
        "task": {"name": federation.task.name, "options": federation.task.options},
        "training": dataclasses.asdict(federation.training),
        "gossip": dataclasses.asdict(federation.gossip),
        **({} if privacy is None else {"privacy": dataclasses.asdict(privacy)}),
        "edges": [list(edge) for edge in federation.edges],
        "schedule": [[list(edge) for edge in edges] for edges in federation.schedule],
        "edge_compressors": [[*edge, spec] for edge, spec in federation.edge_compressors.items()],
        **(
            {"edge_weights": [[*edge, weight] for edge, weight in federation.edge_weights.items()]}
            if federation.edge_weights
            else {}
        ),
        "names": [member.name for member in federation.members],
    }


def predicted(federation: FederationConfig, samples: Sequence[float] | None, size: int | None = None) -> float | None:
    """Compute the factor by which one exchange on every edge in use shrinks the n-weighted distance to consensus.

    With `size`, the number of parameters, each edge takes the step size that its compressor allows; without it, all
    take a full step. Messages are treated as exact: what a compressor leaves out arrives in later exchanges, by error
    feedback. So with a sparse compressor the distance at first falls more slowly than predicted.

    For a schedule of period p, it is the p-th root of the factor for a whole period from the worst starting round; 0 if
    the period ends with the mean at every node. The weights are those that nodes use, c_ij = min(n_i/(deg_i+1),
    n_j/(deg_j+1)), where deg is the largest number of edges that a node has in one round, not the weights in the
    schedule's own matrices; or min(n_i, n_j) w_ij with the weights w of a graph's file. Without `samples`, every n is
    1.
    """
    own = federation.edge_weights
    weights = [own[edge] for edge in federation.edges] if own else None
    topology = Topology(
        federation.topology, len(federation.members), federation.edges, federation.seed, weights=weights
    )
    gammas = _gammas(federation, size)
    if not federation.schedule and len(set(gammas.values())) <= 1:
        return of_laplacian(topology, samples, next(iter(gammas.values()), federation.gossip.gamma))
    if component_count(topology) > 1:
        return 1.0
    if topology.nodes > MOST_NODES:
        return None
    n = np.ones(topology.nodes) if samples is None else np.asarray(samples, dtype=np.float64)
    norm = _norm(federation, np.sqrt(n), gammas)
    return 0.0 if norm < ROUNDING else norm ** (1.0 / max(1, len(federation.schedule)))


def _norm(federation: FederationConfig, root: NDArray[np.float64], gammas: Mapping[tuple[int, int], float]) -> float:
    """Return the norm of one period, or of a static graph, as an operator on z = N^1/2 x, without the mean; `root` is
    N^1/2, one value for each node.
    """
    share, own = root**2 / (np.array(federation.degrees) + 1.0), federation.edge_weights
    mean = root / np.linalg.norm(root)
    z, scale = np.eye(len(root)) - np.outer(mean, mean), root[:, None]
    for edges in federation.schedule or (federation.edges,):
        i, j = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        least = np.minimum(share[i], share[j])
        if own:
            least = np.minimum(root[i], root[j]) ** 2 * np.array([own[edge] for edge in edges])
        weight = np.array([gammas[edge] for edge in edges]) * least
        flow = weight[:, None] * (z[i] / scale[i] - z[j] / scale[j])
        np.subtract.at(z, i, flow / scale[i])
        np.add.at(z, j, flow / scale[j])
    return float(np.linalg.norm(z, 2))


def _measured_contraction(closing: Sequence[Mapping[int, ClosedRound]], ends: float) -> float | None:
    """Measure the contraction in the closing rounds from sketches: how much closer the nodes came per exchange at
    `ends` edge ends.
    """
    ticks = sorted(set.intersection(*(set(lines) for lines in closing))) if closing and ends else []
    points = []
    for tick in ticks:
        at = [lines[tick] for lines in closing]
        distance = consensus_distance(np.array([line.sketch for line in at]))
        points.append(ClosingPoint(distance, sum(line.exchanges for line in at) / ends))
    return contraction_between(points)


def contraction_between(points: Sequence[ClosingPoint]) -> float | None:
    """Return the factor per exchange from the first of these points to the last one that is above `FLOOR`."""
    points = [point for point in points if point.distance > FLOOR * points[0].distance]
    if len(points) < 2 or points[-1].exchanges <= points[0].exchanges:
        return None
    first, last = points[0], points[-1]
    return float((last.distance / first.distance) ** (1 / (last.exchanges - first.exchanges)))


def _gammas(federation: FederationConfig, size: int | None) -> Mapping[tuple[int, int], float]:
    """Return the step size on each edge."""
    gamma = federation.gossip.gamma
    if size is None:
        return dict.fromkeys(federation.edges, gamma)
    specs = {federation.gossip.compressor, *federation.edge_compressors.values()}
    steps = {spec: gamma * make_compressor(spec).gamma(size) for spec in specs}
    return {edge: steps[federation.compressor_of(*edge)] for edge in federation.edges}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearing:
    """The number of malicious neighbors that one node tolerates. `liars` is the rule's b, 0 if it gives no protection.

    `needed` is the fewest neighbors with which it mixes: at least 2 b + 1, because b liars could be half of 2 b.
    """

    rule: str
    neighbors: int
    liars: int
    needed: int

    @property
    def mixes(self) -> bool:
        return self.neighbors >= self.needed

    @property
    def borne(self) -> int:
        """Return the number of its neighbors that may lie; 0 for a node that never mixes, because no neighbor can harm
        or help it.
        """
        return self.liars if self.mixes else 0

    def __str__(self) -> str:
        """Describe the tolerance in one sentence."""
        if self.liars and not self.mixes:
            return f"mixes with nobody: {self.rule} needs {self.needed} neighbors and has {self.neighbors}"
        borne = f"tolerates {count(self.liars, 'malicious neighbor')} of {self.neighbors}"
        if not self.liars:
            return f'{borne}: rule = "{self.rule}" trusts all of them'
        return f"{borne} under {self.rule}, and mixes while {self.needed} of them are connected"


def bearings(federation: FederationConfig) -> list[Bearing]:
    """Return the tolerance of each member, in order. Raises UserError: the user's own rule cannot be imported."""
    rule, degrees = rule_of(federation), Counter(node for edge in federation.edges for node in edge)
    liars, needed = (0, 1) if rule is None else (rule.liars, rule.least)
    return [
        Bearing(rule=federation.gossip.rule, neighbors=degrees[node], liars=liars, needed=needed)
        for node in range(len(federation.members))
    ]


def count(number: int, what: str) -> str:
    """Write a number with its noun: `1 liar`, `2 liars`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def names(federation: FederationConfig, nodes: Sequence[int], most: int = 5) -> str:
    """Write the first few names, and how many others there are."""
    listed = ", ".join(federation.members[node].name for node in nodes[:most])
    return f"{listed} and {len(nodes) - most} more" if len(nodes) > most else listed


def held_against(nodes: Iterable[NodeReport]) -> list[HeldAgainst]:
    """Return one entry for each neighbor against which a node has proven a fault."""
    return [
        HeldAgainst(
            node=node.name,
            neighbor=neighbor.name,
            standing=neighbor.standing,
            faults=neighbor.faults,
            quarantines=neighbor.quarantines,
        )
        for node in nodes
        for neighbor in node.neighbors or []
        if neighbor.faults
    ]


def in_words(held: Sequence[HeldAgainst]) -> str | None:
    """Describe the faults: `node3: payload 40, flood 2, told by 4 neighbors, quarantined by 3`; return None if there
    are none.
    """
    texts = []
    for name in sorted({row.neighbor for row in held}):
        against = [row for row in held if row.neighbor == name]
        kinds: Counter[str] = Counter()
        for row in against:
            kinds.update(row.faults)
        faults = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
        away = sum(row.quarantines > 0 for row in against)
        quarantined = f", quarantined by {away}" if away else ""
        texts.append(f"{name}: {faults}, told by {count(len(against), 'neighbor')}{quarantined}")
    return "; ".join(texts) or None


VALUE_BYTES = 4
MESSAGE_BYTES = 100
"""Bytes around one model: header and seal take 70 to 85, its share of the messages that ask for exchanges the rest."""
SEAL_BYTES = 17
"""Bytes around each further chunk of a long message."""
BITS = 8


def compressor_mistakes(federation: FederationConfig, size: int | None = None) -> list[UserError]:
    """Return the mistakes in the common compressor and in those for single edges, for models of `size` values if the
    size is known.
    """
    mistakes, named = [], {"gossip.compressor": federation.gossip.compressor}
    named |= {f"edge[{place}].compressor": spec for place, spec in enumerate(federation.edge_compressors.values())}
    for key, spec in named.items():
        try:
            compressor = make_compressor(spec)
            require_library(compressor)
            if liars_of(federation.gossip.rule):
                require_replicas(compressor, federation.gossip.rule)
            if size is not None:
                require_fit(compressor, size)
        except UserError as error:
            error.file, error.key = str(federation.path), key
            mistakes.append(error)
    return mistakes


def compressor_figures(compressor: Compressor, size: int) -> dict[str, Any]:
    """Return the cost of one message for a model of `size` values, and the figures that the theory needs."""
    payload = compressor.size_bytes(size)
    return {
        "compressor": compressor.spec,
        "message_bytes": payload,
        "exact": compressor.fixed,
        "bits_per_parameter": BITS * payload / size if size else 0.0,
        "times_smaller": VALUE_BYTES * size / payload if payload else 1.0,
        "delta": compressor.delta(size),
        "gamma": compressor.gamma(size),
        "random": compressor.random,
    }


def traffic(federation: FederationConfig, size: int) -> dict[str, Any]:
    """Return the traffic in a federation whose models have `size` values and whose compressors are all valid.

    A node sends a compressed model to each neighbor in its own round, and another when that neighbor asks in its round.
    So the figures for a round are bounds, for one and for two exchanges on every edge. For a schedule they cover the
    edges of one round, on average over all nodes. If a compressor is not `exact`, its bytes are an upper bound.
    """
    names = [member.name for member in federation.members]
    specs = dict.fromkeys((federation.gossip.compressor, *federation.edge_compressors.values()))
    rows = {spec: compressor_figures(make_compressor(spec), size) for spec in specs}
    sent = {edge: sealed_bytes(rows[federation.compressor_of(*edge)]["message_bytes"]) for edge in federation.edges}
    rounds = federation.schedule or (federation.edges,)
    busiest = max((_busiest(edges, sent) for edges in rounds), default=0)
    in_all = fmean(2 * sum(sent[edge] for edge in edges) for edges in rounds)
    usual = rows[federation.gossip.compressor]
    return {
        "parameters": size,
        "compressor": federation.gossip.compressor,
        "message_bytes": usual["message_bytes"],
        "exact": all(row["exact"] for row in rows.values()),
        "bytes_per_round_busiest_node": [busiest, 2 * busiest],
        "bytes_per_round_all_nodes": [round(in_all), round(2 * in_all)],
        "edges": [
            {"between": [names[i], names[j]]}
            | {key: rows[spec][key] for key in ("compressor", "message_bytes", "exact")}
            for (i, j), spec in federation.edge_compressors.items()
        ],
    }


def fragments_instead(federation: FederationConfig, size: int) -> str | None:
    """Say what fragments would save the node with the most neighbors, and what it would send; None if none suit."""
    node = max((member.index for member in federation.present), key=lambda index: len(federation.neighbors(index)))
    codecs = [make_compressor(federation.compressor_of(node, peer)) for peer in federation.neighbors(node)]
    has_none = federation.in_step_by or any(isinstance(codec, Fragments) for codec in codecs)
    if has_none or not suits_fragments(federation.gossip.rule, len(codecs), size):
        return None
    now = sum(codec.size_bytes(size) for codec in codecs)
    then = len(codecs) * make_compressor(FRAGMENTS).size_bytes(size)
    memory = 2 * VALUE_BYTES * size * len(codecs) + PAYLOADS * (now - then)
    saved, sends, sent = (f"{size_bytes / 1e6:,.0f} MB" for size_bytes in (memory, then, now))
    return (
        f'compressor = "{FRAGMENTS}" keeps no copies of {len(codecs)} neighbors\' models: {saved} less memory, and '
        f"{sends} sent to them in a round in place of {sent}: docs/how-to/fewer-bytes.md#large-models"
    )


def sealed_bytes(payload: int) -> int:
    """Return the bytes of a message whose body has `payload` bytes."""
    return payload + MESSAGE_BYTES + SEAL_BYTES * (payload // CHUNK_BYTES)


def _busiest(edges: Edges, sent: dict[tuple[int, int], int]) -> int:
    """Return the most that one node sends to its neighbors, once to each."""
    by_node: Counter[int] = Counter()
    for edge in edges:
        for end in edge:
            by_node[end] += sent[edge]
    return max(by_node.values(), default=0)
