"""The part of `p2pfl check` that is about the graph: how fast it mixes, where it is thin, whom it bears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pfl.config.model import Federation

KEYS = (
    "nodes",
    "edges",
    "connected",
    "components",
    "degree",
    "diameter",
    "diameter_bounds",
    "algebraic_connectivity",
    "laplacian_max_eigenvalue",
    "method",
    "residual",
    "certified",
    "effective_resistance",
    "edge_connectivity",
    "vertex_connectivity",
    "bridges",
    "cut_nodes",
    "thinnest_cut",
    "robustness",
    "liars_per_node",
)


def graph_facts(
    federation: Federation, samples: Sequence[float] | None, liars: int | None, size: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Figures and warnings.

    `contraction` is that of one exchange on every edge; with `samples` where they are known, else as if all nodes had
    equally many; with the model's `size` where it is known, for the steps that compressors allow. Of a schedule it is
    that of one round, on average over a period, and the exchanges to consensus are those of whole periods; the other
    figures are those of the union of all rounds. Under a robust rule mixing is no Laplacian step, and no such figure
    holds: None. The graph is warned of for so many `liars`, or those of the rule.
    """
    from p2pfl.config.rule import liars_of  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.reporting.contraction import predicted  # noqa: PLC0415 - as above
    from topologies import Topology, TopologyError  # noqa: PLC0415 - as above
    from topologies.metrics.byzantine import warnings  # noqa: PLC0415 - as above
    from topologies.metrics.describe import survey  # noqa: PLC0415 - as above
    from topologies.spectral import EPSILON, rounds_to_consensus  # noqa: PLC0415 - as above

    names = [member.name for member in federation.members]
    topology = Topology(federation.topology, len(names), federation.edges, federation.seed, names=names)
    borne = liars_of(federation.gossip.rule)
    expected = borne if liars is None else liars
    facts: dict[str, Any] = {"topology": federation.topology}
    if federation.schedule:
        facts["period"] = len(federation.schedule)
    try:
        described = survey(topology, "sample-weighted")
        shrinks = None if borne else predicted(federation, samples, size)
        said = warnings(topology, expected, poor=expected > borne) if described["connected"] else []
    except TopologyError as error:
        facts |= {"nodes": len(names), "edges": len(federation.edges)}
        return facts, [f"the graph was not analyzed: {error}"]
    facts |= {key: described[key] for key in KEYS}
    facts |= {"contraction": shrinks, "samples_known": samples is not None, "epsilon": EPSILON}
    period = max(1, len(federation.schedule))
    periods = None if shrinks is None else rounds_to_consensus(shrinks**period)
    facts["exchanges_to_consensus"] = periods and period * periods
    return facts, [f"graph: {text}" for text in said]


def liars_at_most(federation: Federation) -> list[int]:
    """For each member, with how many lying neighbors it could still mix, whatever the rule's b."""
    from topologies import Topology  # noqa: PLC0415 - `--help` stays instant
    from topologies.metrics.byzantine import local_tolerance  # noqa: PLC0415 - as above

    topology = Topology(federation.topology, len(federation.members), federation.edges, federation.seed)
    found: list[int] = local_tolerance(topology).tolist()
    return found


def readable(graph: dict[str, Any]) -> dict[str, Any]:
    """For people: ranges in words, and what follows from the rest left out."""
    facts = {key: _said(value) for key, value in graph.items()}
    if "diameter_bounds" in facts:
        facts["diameter"] = facts.pop("diameter_bounds")
    if "period" in facts:
        said = "contraction and exchanges count single ones, the rest is about all their edges"
        facts["period"] = f"{facts['period']} rounds; {said}"
    facts.pop("liars_per_node", None)
    if liars := graph.get("liars_per_node"):
        (certain, perhaps), (_, possible) = liars["guaranteed"], liars["at_most"]
        words = f"every node mixes beside {liars['mixes']}; that all agree is certain with {certain}"
        words += f", perhaps with {perhaps}" if perhaps > certain else ""
        facts["liars, if values are trimmed"] = f"{words}, possible with {possible} at most"
    for key in ("connected", "components", "epsilon", "residual", "laplacian_max_eigenvalue"):
        facts.pop(key, None)
    return facts


def _said(value: Any) -> Any:
    match value:
        case {"min": low, "mean": mean, "max": high}:
            return str(low) if low == high else f"{low} to {high}, mean {mean:.3g}"
        case dict():
            return ", ".join(f"{key.replace('_', ' ')} {_said(part)}" for key, part in value.items())
        case [low, high]:
            return _said(low) if low == high else f"{_said(low)} to {_said(high)}"
        case float():
            return f"{value:.4g}"
        case _:
            return value
