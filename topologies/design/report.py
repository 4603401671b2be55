"""A design in rows and in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topologies.design.candidates import GraphCandidate
from topologies.design.designing import Design
from topologies.design.wanted import DIGITS
from topologies.metrics.distance import diameter
from topologies.metrics.known import degree_range

FAILED = 5
"""graphs that would be better but do not qualify: as many are shown."""

PHRASES = {
    "rounds": "needs the fewest rounds",
    "bytes": "sends the least until consensus",
    "edges": "has the fewest edges",
}


def rows(design: Design, top: int) -> list[dict[str, Any]]:
    """The best `top` that qualify, then some that do not though they would be better. Each with the reason why."""
    best = design.qualified[:top]
    better = [entry for entry in design.failed if entry.key < design.winner.key][:FAILED]
    listed = [_row(design, rank, entry) for rank, entry in enumerate(best, start=1)]
    return listed + [_row(design, None, entry) for entry in better]


def _row(design: Design, rank: int | None, entry: GraphCandidate) -> dict[str, Any]:
    topology = entry.topology
    return {
        "rank": rank,
        "topology": topology.spec,
        "seed": topology.seed,
        "rounds": entry.rounds,
        "mixing_rate": None if entry.schedule else entry.rate,
        "bytes": entry.sent,
        "edges": topology.edge_count,
        "degree_max": degree_range(topology)[1],
        "diameter": diameter(topology),
        "robust": _robust(entry),
        "qualifies": None if rank and not entry.proven else bool(rank),
        "why": reason(design, entry) if rank else _failure(entry),
    }


def _robust(entry: GraphCandidate) -> str | None:
    """Only where liars were asked about: finding it takes time."""
    if not entry.wanted.byzantine or entry.robust is None or entry.failures:
        return None
    found = entry.robust
    return str(found.lower) if found.exact else f"{found.lower}..{found.upper}"


def _failure(entry: GraphCandidate) -> str:
    return "does not qualify: " + "; ".join((*entry.failures, *([entry.fragile] if entry.fragile else [])))


def reason(design: Design, entry: GraphCandidate) -> str:
    """Why a graph that qualifies stands where it stands."""
    best = design.winner
    said = _praise(design) if entry is best else "; ".join(_differences(entry, best))
    if not entry.proven:
        said += "; whether it is robust enough is unknown: too large to search"
    if entry.schedule:
        said += "; only while rounds are in step and nothing is lost"
    return said


def _praise(design: Design) -> str:
    how = "of all connected graphs" if design.proven else "of all that were tried"
    rivals = [entry for entry in design.qualified[1:] if entry.proven and entry.topology is not design.winner.topology]
    said = f"{PHRASES[design.wanted.minimize]} {how}"
    if rivals:
        said += f"; the next: {', '.join(_differences(rivals[0], design.winner))}"
    return said


def _differences(entry: GraphCandidate, best: GraphCandidate) -> Sequence[str]:
    """What `entry` costs more or less than `best`, in the order of what an engineer asks."""
    found = [_more(entry.rounds or 0, best.rounds or 0, "round"), _more(*_edges(entry, best), "edge")]
    if entry.sent and best.sent and entry.sent != best.sent:
        found.append(_share(entry.sent / best.sent))
    said = [part for part in found if part]
    slower = round(entry.rate - best.rate, DIGITS)
    if not entry.schedule and entry.rounds == best.rounds and (slower or not said):
        said.append("mixes a little slower" if slower > 0 else "mixes a little faster" if slower else "mixes as fast")
    return said


def _share(times: float) -> str:
    if times >= 2.0:
        return f"sends {times:.3g} times as much"
    return f"sends {abs(times - 1.0) * 100.0:.2g} % {'more' if times > 1.0 else 'less'}"


def _edges(entry: GraphCandidate, best: GraphCandidate) -> tuple[int, int]:
    return entry.topology.edge_count, best.topology.edge_count


def _more(mine: int, other: int, word: str) -> str:
    if mine == other:
        return ""
    count = abs(mine - other)
    return f"{count} {'more' if mine > other else 'fewer'} {word}{'s' if count > 1 else ''}"


def line(entry: GraphCandidate, file: Path | None) -> str | None:
    """What a federation file says to use this graph; None where only a file can hold it, and there is none."""
    if file is not None and not entry.schedule:
        return f'topology = "{file.as_posix()}"'
    if not entry.named:
        return None
    text = f'topology = "{entry.spec}"'
    return f"{text}\nseed = {entry.topology.seed}" if entry.random else text
