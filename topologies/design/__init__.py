"""The best graph for a purpose: known families, then our own search, ranked and judged, in rows and in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from topologies.chance import generator
from topologies.design.candidates import (
    DIGITS,
    LAMBDA_2,
    SEARCH_LIMIT,
    SEARCHED,
    SEEDS,
    SMALL,
    Goal,
    GraphCandidate,
    adjacency_of,
    candidate,
    checked,
    known_graphs,
    weighted_laplacian,
)
from topologies.design.search import evaluations_for, search
from topologies.eigen import Tell, silent
from topologies.eigen.iterations import Over, never
from topologies.errors import TopologyError
from topologies.families import build
from topologies.graph import Edge, Ends, Topology, component_count
from topologies.metrics import degree_range, diameter

ATLAS_NODES = 7
"""Up to this many nodes every connected graph is tried (Read and Wilson, An Atlas of Graphs, 1998)."""
STARTS = 4
FEW = 2
"""As many of the graphs with the fewest rounds, and of the families, the search for the least time begins with."""
FAR_EVALUATIONS = 6_000
"""The most graphs to try for the least time: about two seconds on 30 nodes."""
FOUND = 12
"""The number of the search's graphs that are judged: the best, each with a different number of edges."""
JUDGED = 30
"""The number of graphs judged in detail, best first, at a third of a second each. Above `SMALL` nodes only
`JUDGED_LARGE`, at several seconds each.
"""
JUDGED_LARGE = 10
LISTED = 10
"""The number of graphs listed."""
DRAWS = 400
"""The number of random graphs drawn if nothing else is robust enough, until `ENOUGH` of them are."""
ENOUGH = 3
SAME = 1e-9
"""The relative difference below which eigenvalues count as equal."""
ADVISED = 40
"""Up to this many nodes, an error names a degree that would be enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The ranking. `qualified` graphs meet all requirements, best first; graphs of unknown robustness, which may meet
    them, come last.

    `failed` has the others, in order of the criterion. `proven` says that no graph at all is better than the winner.
    """

    goal: Goal
    qualified: tuple[GraphCandidate, ...]
    failed: tuple[GraphCandidate, ...]
    proven: bool
    evaluations: int
    stopped: bool = False
    """True if the time was over before everything was tried."""

    @property
    def winner(self) -> GraphCandidate:
        return self.qualified[0]


def design(
    goal: Goal,
    *,
    evaluations: int | None = None,
    top: int = LISTED,
    tell: Tell = silent,
    over: Over = never,
) -> Design:
    """Find the best graph: all edges of `goal.given` and `goal.add` more, if there is one. Otherwise up to 7 nodes, or
    where the complete graph is allowed and best, this is the true optimum; up to 500 it is the best of the families and
    of a search that tries `evaluations` graphs; above that, up to `goal.DESIGN_LIMIT` nodes, only families are tried.

    The same arguments give the same result, unless `over` becomes true: then it is the best graph so far. `tell`
    receives progress messages. Raises TopologyError if nothing can meet the requirements, or if no graph that was tried
    does.
    """
    checked(goal)
    effort = evaluations_for(goal.nodes) if evaluations is None else evaluations
    if goal.given is not None:
        start = with_more(goal, goal.given)
        searched = search(goal, [start], effort, tell, over).ranked() if effort else [((), 0.0, start)]
        qualified, failed = _judge([_own_candidate(goal, ends) for _, _, ends in searched], top, tell, over)
        if not qualified:
            text = f"no graph that was found qualifies: {failed[0].fragile or '; '.join(failed[0].failures)}"
            raise TopologyError(text, key="add", value=goal.add, allowed="more edges, or less to require of them")
        return Design(
            goal=goal, qualified=qualified, failed=failed, proven=False, evaluations=effort, stopped=bool(over())
        )
    settled = goal.nodes <= SEARCH_LIMIT and _unbeatable(candidate(goal, build("complete", goal.nodes)))
    known = sorted(known_graphs(goal, tell, over, 1 if settled else SEEDS), key=lambda graph: graph.key)
    # where some nodes are far, it matters which is where, and the atlas has each graph once
    everything = goal.nodes <= ATLAS_NODES and not goal.by_time
    own: list[GraphCandidate] = []
    if everything:
        own = list(_atlas(goal))
    elif goal.nodes <= SEARCH_LIMIT and effort > 0 and not settled:
        own = list(_search_results(goal, known, effort, tell, over))
    entries = [*known, *own]
    ranked = sorted(entries, key=lambda graph: (graph.key, not graph.named))
    stopped = over() and not everything
    qualified, failed = _judge(ranked, top, tell, over)
    if goal.byzantine and not any(graph.proven for graph in qualified):
        drawn = sorted(_draw_robust(goal, tell, over), key=lambda graph: graph.key)
        qualified = (*drawn, *qualified)
    if not qualified:
        raise _no_design(goal, failed, tell, over)
    proven = everything or (settled and _unbeatable(qualified[0]))
    return Design(goal=goal, qualified=qualified, failed=failed, proven=proven, evaluations=effort, stopped=stopped)


def _unbeatable(entry: GraphCandidate) -> bool:
    """True for the complete graph where it is allowed: no other has as low a rate, or as large a lambda_2."""
    goal, nodes = entry.goal, entry.topology.nodes
    complete = entry.topology.edge_count == nodes * (nodes - 1) // 2
    return complete and not entry.failures and (goal.maximize is not None or goal.minimize == "rounds")


def _atlas(goal: Goal) -> Iterator[GraphCandidate]:
    """Yield the best connected graphs within the degree bounds."""
    import networkx as nx  # noqa: PLC0415 - slow to import

    for graph in nx.graph_atlas_g():
        degrees = [degree for _, degree in graph.degree]
        right = len(degrees) == goal.nodes and min(degrees) >= goal.lowest and max(degrees) <= goal.highest
        if right and nx.is_connected(graph):
            yield _own_candidate(goal, np.array(graph.edges))


def _search_results(
    goal: Goal, candidates: Sequence[GraphCandidate], evaluations: int, tell: Tell, over: Over
) -> Iterator[GraphCandidate]:
    starts: dict[int, Ends] = {}
    for graph in candidates:
        least, most = degree_range(graph.topology)
        if len(starts) < STARTS and least >= goal.lowest and most <= goal.highest:
            starts.setdefault(graph.topology.edge_count, graph.topology.ends)
    if starts:
        full = _fill_up(goal, next(iter(starts.values())))
        starts.setdefault(len(full), full)
    if goal.by_time:
        blind = replace(goal, minimize="rounds")
        fast = search(blind, list(starts.values()), evaluations, tell, over).ranked()[:FEW]
        starts = dict(enumerate([*(ends for _, _, ends in fast), *list(starts.values())[:FEW]]))
        evaluations = min(evaluations, FAR_EVALUATIONS)
    for _, _, ends in search(goal, list(starts.values()), evaluations, tell, over).ranked()[:FOUND]:
        yield _own_candidate(goal, ends)


def _fill_up(goal: Goal, ends: Ends) -> Ends:
    """Add random edges while two nodes have room: where no regular graph is possible, or a sparse one was best."""
    adjacency = adjacency_of(goal.nodes, ends)
    pairs = np.argwhere(np.triu(adjacency == 0.0, 1))
    degrees = adjacency.sum(axis=0)
    for i, j in generator(goal.seed).permutation(pairs).tolist():
        if max(degrees[i], degrees[j]) < goal.highest:
            adjacency[i, j] = 1.0
            degrees[[i, j]] += 1.0
    return np.argwhere(np.triu(adjacency))


def _draw_robust(goal: Goal, tell: Tell, over: Over) -> Iterator[GraphCandidate]:
    """Yield random graphs of maximum degree that are robust enough; on few nodes it may be one in a hundred."""
    if goal.nodes > ADVISED:
        return
    degree = goal.highest - goal.highest * goal.nodes % 2
    drawn = 0
    for draw in range(DRAWS):
        if over():
            return
        tell(f"drew {draw} of at most {DRAWS} random graphs")
        topology = build(f"random-regular:degree={degree}", goal.nodes, goal.seed + draw)
        entry = (
            candidate(goal, topology) if degree == goal.highest else _own_candidate(goal, _fill_up(goal, topology.ends))
        )
        if not entry.failures and entry.proven:
            yield entry
            drawn += 1
        if drawn == ENOUGH:
            return


def _own_candidate(goal: Goal, ends: Ends) -> GraphCandidate:
    if goal.given is None:
        return candidate(goal, Topology(f"{SEARCHED}:edges={len(ends)}", goal.nodes, ends, goal.seed))
    spec = f"{goal.given.spec} and {goal.add} more"
    return candidate(goal, Topology(spec, goal.nodes, ends, goal.given.seed, names=goal.given.names))


def with_more(goal: Goal, given: Topology) -> Ends:
    """Add edges to a graph, each where it lifts the eigenvalues that equal lambda_2 most, to first order: the length of
    e_i - e_j in their eigenspace (Ghosh and Boyd, Growing Well-connected Graphs, 2006). So parts are joined first.

    Raises TopologyError if there is no place for them, or if they are too few to join all parts.
    """
    adjacency = adjacency_of(goal.nodes, given.ends)
    for done in range(goal.add):
        values, vectors = np.linalg.eigh(weighted_laplacian(adjacency, LAMBDA_2))
        basis = vectors[:, values <= values[1] + SAME * max(1.0, float(values[-1]))]
        free = (adjacency == 0.0) & np.logical_and.outer(*[adjacency.sum(axis=0) < goal.highest] * 2)
        pairs = np.argwhere(np.triu(free, 1))
        if not len(pairs):
            text = "no two nodes that are not joined have room for another neighbor"
            raise TopologyError(text, key="add", value=goal.add, allowed=f"up to {done}, or a larger --max-degree")
        gains = ((basis[pairs[:, 0]] - basis[pairs[:, 1]]) ** 2).sum(axis=1)
        i, j = pairs[int(np.argmax(np.round(gains, 9)))]
        adjacency[i, j] = adjacency[j, i] = 1.0
    ends = np.argwhere(np.triu(adjacency))
    if (parts := component_count(Topology("", goal.nodes, ends))) > 1:
        text = f"{goal.add} edges leave the graph in {parts} parts"
        raise TopologyError(text, key="add", value=goal.add, allowed="more, or a larger --max-degree")
    return ends


def _judge(
    entries: Sequence[GraphCandidate], top: int, tell: Tell, over: Over = never
) -> tuple[tuple[GraphCandidate, ...], tuple[GraphCandidate, ...]]:
    """Split entries into qualified and failed; entries left unjudged because enough were found are omitted.

    Among graphs with the same figures the first is kept: the one that has a name.
    """
    proven: list[GraphCandidate] = []
    unknown: list[GraphCandidate] = []
    failed: list[GraphCandidate] = []
    seen: set[tuple[str, float, int]] = set()
    looks, most = 0, _judged_count(entries)
    for entry in entries:
        if not entry.failures:
            if len(proven) >= top or looks >= most or (proven and over()):
                continue
            tell(f"judged {looks} of at most {most} graphs")
            looks += 1
        fails = bool(entry.failures or entry.fragile)
        group = failed if fails else proven if entry.proven else unknown
        figures = ("failed" if fails else "", round(entry.measure, DIGITS), entry.topology.edge_count)
        if figures not in seen:
            seen.add(figures)
            group.append(entry)
    return (*proven, *unknown), tuple(failed)


def _judged_count(entries: Sequence[GraphCandidate]) -> int:
    """Return how many graphs are judged in detail."""
    nodes = entries[0].topology.nodes if entries else 0
    if nodes <= ATLAS_NODES:
        return len(entries)
    return min(len(entries), JUDGED if nodes < SMALL else JUDGED_LARGE)


def _no_design(goal: Goal, failed: Sequence[GraphCandidate], tell: Tell, over: Over) -> TopologyError:
    """Make the error, which says how close the closest graph came."""
    most = max((graph.robust.upper for graph in failed if not graph.failures), default=0)
    text = f"no graph was found with at most {goal.highest} neighbors that is {goal.robustness}-robust"
    text += f", as byzantine = {goal.byzantine} asks for" + (f"; the best is {most}-robust" if most else "")
    return TopologyError(
        text, key="byzantine", value=goal.byzantine, allowed=_sufficient_change(goal, most, tell, over)
    )


def _sufficient_change(goal: Goal, most: int, tell: Tell, over: Over) -> str:
    """Suggest a change that would be enough: a larger degree, or fewer liars."""
    fewer = f"byzantine = {max(0, (most - 1) // 2)}"
    highest = goal.highest + 8 if goal.nodes <= ADVISED else goal.highest
    for degree in range(goal.highest + 1, min(goal.nodes, highest + 1)):
        relaxed = Goal(nodes=goal.nodes, max_degree=degree, byzantine=goal.byzantine, seed=goal.seed)
        graphs = (entry for entry in known_graphs(relaxed, tell, over) if not entry.failures)
        entries = chain(graphs, _draw_robust(relaxed, tell, over))
        if any(entry.proven for entry in entries):
            return f"max-degree = {degree}, or {fewer}"
    return f"a larger max-degree, or {fewer}"


FAILED = 5
"""The maximum number of better but unqualified graphs to show."""

PHRASES = {
    "rounds": "needs the fewest rounds",
    "bytes": "sends the least until consensus",
    "edges": "has the fewest edges",
    "time": "needs the least time",
    "lambda_2": "has the largest lambda_2",
}


def rows(design: Design) -> list[dict[str, Any]]:
    """Return rows for the best that qualify, then for some that would be better but do not qualify, with the reason."""
    best = design.qualified[:LISTED]
    better = [entry for entry in design.failed if entry.key < design.winner.key][:FAILED]
    listed = [_row(design, rank, entry) for rank, entry in enumerate(best, start=1)]
    listed += [_row(design, None, entry) for entry in better]
    if (given := design.goal.given) is not None:
        bare = Topology(given.spec, given.nodes, given.ends, given.seed)
        listed.append(_row(design, None, candidate(design.goal, bare)) | {"qualifies": None, "why": "as given"})
    return listed


def _row(design: Design, rank: int | None, entry: GraphCandidate) -> dict[str, Any]:
    topology = entry.topology
    return {
        "rank": rank,
        "topology": topology.spec,
        "seed": topology.seed,
        **({} if entry.goal.distances is None else {"seconds": entry.seconds}),
        "rounds": entry.rounds,
        "mixing_rate": entry.rate,
        "lambda_2": entry.lambda_2,
        "bytes": entry.sent,
        "edges": topology.edge_count,
        "degree_max": degree_range(topology)[1],
        "diameter": diameter(topology),
        "robust": _robust(entry),
        "qualifies": None if rank and not entry.proven else bool(rank),
        "why": reason(design, entry) if rank else _failure(entry),
    }


def _robust(entry: GraphCandidate) -> str | None:
    """Write the robustness, but only if the goal has liars, since computing it takes time."""
    if not entry.goal.byzantine or entry.failures:
        return None
    bounds = entry.robust
    return str(bounds.lower) if bounds.exact else f"{bounds.lower}..{bounds.upper}"


def _failure(entry: GraphCandidate) -> str:
    return "does not qualify: " + "; ".join((*entry.failures, *([entry.fragile] if entry.fragile else [])))


def reason(design: Design, entry: GraphCandidate) -> str:
    """Say why a qualified graph has its rank."""
    best, given = design.winner, design.goal.given
    said = _praise(design) if entry is best else "; ".join(_differences(entry, best))
    if given is not None:
        fresh = sorted(set(entry.topology.edges) - set(given.edges))
        said = f"adds {', '.join(_edge_text(edge, given.names) for edge in fresh)}; {said}"
    if not entry.proven:
        said += "; whether it is robust enough is unknown: too large to search"
    return said


def _edge_text(edge: Edge, names: Sequence[str]) -> str:
    """Write the edge using the names of a file's nodes, which may contain a hyphen."""
    i, j = edge
    return f"{names[i]} - {names[j]}" if names else f"{i}-{j}"


def _praise(design: Design) -> str:
    how = "of all connected graphs" if design.proven else "of all that were tried"
    rivals = [entry for entry in design.qualified[1:] if entry.proven and entry.topology is not design.winner.topology]
    said = f"{PHRASES[design.goal.maximize or design.goal.minimize]} {how}"
    if rivals:
        said += f"; the next: {', '.join(_differences(rivals[0], design.winner))}"
    return said


def _differences(entry: GraphCandidate, best: GraphCandidate) -> Sequence[str]:
    """Describe the cost differences between `entry` and `best`, in the order in which an engineer would ask."""
    edges = entry.topology.edge_count
    texts = [_more(entry.rounds or 0, best.rounds or 0, "round"), _more(edges, best.topology.edge_count, "edge")]
    if entry.sent and best.sent and entry.sent != best.sent:
        texts.append(_share(entry.sent / best.sent))
    if entry.goal.by_time and entry.seconds and best.seconds and entry.seconds > best.seconds:
        texts.insert(0, f"{100.0 * (entry.seconds / best.seconds - 1.0):.2g} % more time")
    if entry.goal.maximize and entry.lambda_2 and best.lambda_2 and entry.measure > best.measure:
        texts.insert(0, f"a lambda_2 {100.0 * (1.0 - entry.lambda_2 / best.lambda_2):.2g} % lower")
    said = [part for part in texts if part]
    slower = round(entry.rate - best.rate, DIGITS)
    if entry.rounds == best.rounds and (slower or not said):
        said.append("mixes a little slower" if slower > 0 else "mixes a little faster" if slower else "mixes as fast")
    return said


def _share(times: float) -> str:
    if times >= 2.0:
        return f"sends {times:.3g} times as much"
    return f"sends {abs(times - 1.0) * 100.0:.2g} % {'more' if times > 1.0 else 'less'}"


def _more(mine: int, other: int, word: str) -> str:
    if mine == other:
        return ""
    count = abs(mine - other)
    return f"{count} {'more' if mine > other else 'fewer'} {word}{'s' if count > 1 else ''}"


def line(entry: GraphCandidate, file: Path | None) -> str | None:
    """Write the line of a federation file for this graph; None if it needs a graph file and there is none."""
    if file is not None:
        return f'topology = "{file.as_posix()}"'
    if not entry.named:
        return None
    text = f'topology = "{entry.spec}"'
    return f"{text}\nseed = {entry.topology.seed}" if entry.random else text
