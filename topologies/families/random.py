"""Random graphs, drawn from the seed, by networkx where it has them; rings whose order is a hash of the members' names;
and devices at random places, joined where they are near each other, as by radio.

A seed may give a graph that is not connected. The list of members determines every edge of the rings; adding or
removing a member changes only the places next to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from random import Random

import numpy as np
from numpy.typing import NDArray

from topologies.chance import StableDraws
from topologies.family import Family, GraphRequest, choice, fraction, positive, sizes_near, unfit, whole
from topologies.graph import Ends, Ints, cycle, even, pairs, together


def keyed_order(names: Sequence[str], ring: int, seed: int) -> Ints:
    """Order the members around this ring, (nodes,), by BLAKE2b (16 bytes) of their names; key: seed, salt: ring."""
    key, salt = blake2b(str(seed).encode()).digest(), ring.to_bytes(8, "big")
    digests = b"".join(blake2b(name.encode(), digest_size=16, key=key, salt=salt).digest() for name in names)
    places = np.frombuffer(digests, dtype=">u8").reshape(-1, 2)
    return np.lexsort((places[:, 1], places[:, 0]))


def keyed_rings(request: GraphRequest) -> Ends:
    names = request.called()
    return together(*(cycle(keyed_order(names, ring, request.seed)) for ring in range(request["r"])))


Pairs = Iterable[Sequence[int]]
RAREST = 1e-15
"""A probability too small to change 1 when subtracted from it."""


def regular(family: str, n: int, degree: int, seed: int) -> Pairs:
    """Draw among all graphs of n nodes with this degree. Raises TopologyError if there is none."""
    if degree >= n or degree * n % 2:
        sizes = sizes_near(n, lambda m: degree < m and degree * m % 2 == 0) or f"at least {degree + 1}"
        allowed = f"less than the nodes, and nodes times degree even; {sizes} nodes have this degree"
        raise unfit(f"{family}:degree", degree, n, allowed)
    import networkx as nx  # noqa: PLC0415 - slow to import

    if degree <= n // 2:
        graph: Pairs = nx.random_regular_graph(degree, n, seed=seed).edges
        return graph
    # pairing stubs would almost never succeed with nearly all edges; the missing ones are few
    complement: Pairs = nx.complement(nx.random_regular_graph(n - 1 - degree, n, seed=seed)).edges
    return complement


def watts_strogatz(request: GraphRequest) -> Pairs:
    k = request["k"]
    if k % 2 or k >= request.nodes:
        enough = f"; for this k at least {k + 1} nodes" if k % 2 == 0 else ""
        raise unfit("watts-strogatz:k", k, request.nodes, f"even, less than the nodes{enough}")
    import networkx as nx  # noqa: PLC0415 - slow to import

    graph: Pairs = nx.watts_strogatz_graph(request.nodes, k, request["p"], seed=request.seed).edges
    return graph


def barabasi_albert(request: GraphRequest) -> Pairs:
    m = request["m"]
    if m >= request.nodes:
        raise unfit("barabasi-albert:m", m, request.nodes, f"less than the nodes; for this m at least {m + 1} nodes")
    import networkx as nx  # noqa: PLC0415 - slow to import

    graph: Pairs = nx.barabasi_albert_graph(request.nodes, m, seed=request.seed).edges
    return graph


def stochastic_block(request: GraphRequest) -> Ends:
    """Build blocks of consecutive nodes, as even as possible."""
    n, blocks = request.nodes, request["blocks"]
    if blocks > n:
        raise unfit("stochastic-block:blocks", blocks, n, f"from 1 to {n}")
    # networkx's own model looks at every pair of nodes; this takes time proportional to the edges
    rng, starts = Random(request.seed), even(n, blocks)
    everywhere = _ends(_drawn_pairs(n, request["between"], rng))
    block = np.searchsorted(starts, everywhere, side="right")
    inside = [
        start + _ends(_drawn_pairs(size, request["inside"], rng))
        for start, size in zip(starts.tolist(), np.diff(starts).tolist(), strict=False)
    ]
    return together(everywhere[block[:, 0] != block[:, 1]], *inside)


def _drawn_pairs(nodes: int, p: float, seed: int | Random) -> Pairs:
    """Draw each pair with probability p."""
    import networkx as nx  # noqa: PLC0415 - slow to import

    # networkx divides by log(1 - p), which is 0 below; at so few nodes no pair would be drawn
    drawn: Pairs = nx.fast_gnp_random_graph(nodes, p if p > RAREST else 0.0, seed=seed).edges
    return drawn


def _ends(drawn: Pairs) -> Ends:
    return np.array(list(drawn), dtype=np.int64).reshape(-1, 2)


def _expected_blocks(request: GraphRequest) -> float:
    n, near, far = request.nodes, float(request["inside"]), float(request["between"])
    inside = n * (n / int(request["blocks"]) - 1) / 2
    # pairs between blocks are drawn among all pairs, and pairs within a block dropped; with a single block, that is all
    # of them
    return max(inside * near + (math.comb(n, 2) - inside) * far, math.comb(n, 2) * far / 2)


Points = NDArray[np.float64]
SHORTEST, LONGEST = 1e-100, 2.0
"""Bounds on the radius, beyond which the edges do not change: all places lie in a unit square."""


def radius(request: GraphRequest) -> float:
    """Return the radius, by default sqrt(3 ln n / (pi n)).

    At a third of this area large graphs become connected; small ones need more, because many of their nodes are near
    the border: of graphs on 10 nodes seven in ten are connected, on 1000 nearly all.
    """
    n = request.nodes
    if request["radius"] is not None:
        # beyond these only the floating-point numbers change, and they overflow
        return min(max(float(request["radius"]), SHORTEST), LONGEST)
    return math.sqrt(3 * math.log(n) / (math.pi * n)) if n > 2 else math.sqrt(2)


def places(request: GraphRequest) -> Points:
    """Draw the nodes' places in the unit square. Shape (nodes, 2)."""
    return StableDraws("geometric", request.seed).uniform(request.nodes, 2)


def geometric(request: GraphRequest) -> Ends:
    return near(places(request), radius(request), around=request["metric"] == "torus")


def near(points: Points, reach: float, *, around: bool) -> Ends:
    """Return all pairs at most `reach` apart. `around`: opposite sides of the square touch.

    Points are sorted into square cells no smaller than `reach`; only neighboring cells are compared.
    """
    # cells far smaller than the mean distance would only cost memory
    across = max(1, min(math.floor(1 / reach) if reach < 1 else 1, math.isqrt(len(points))))
    if across < 3:
        across = 1
    cell = np.minimum((points * across).astype(np.int64), across - 1)
    order = np.argsort(cell[:, 0] * across + cell[:, 1], kind="stable")
    points, cell = points[order], cell[order]
    starts = np.searchsorted(cell[:, 0] * across + cell[:, 1], np.arange(across * across + 1))
    reached = [
        _within_reach(points, _candidates(cell, starts, across, step, around=around), reach, around=around)
        for step in _STEPS
    ]
    edges: Ends = order[together(*(reached if across > 1 else reached[:1]))]
    return edges


_STEPS = ((0, 0), (0, 1), (1, -1), (1, 0), (1, 1))
"""Half of the nine cells around a cell; the other half has it among its own neighbors."""


def _candidates(cell: Points, starts: Ints, across: int, step: tuple[int, int], *, around: bool) -> Ends:
    """Pair each point with all points of the cell one `step` from its own."""
    there = cell + np.array(step)
    inside = np.ones(len(cell), dtype=bool) if around else ((there >= 0) & (there < across)).all(axis=1)
    node = np.flatnonzero(inside)
    there = there[node] % across
    number = there[:, 0] * across + there[:, 1]
    counts = starts[number + 1] - starts[number]
    firsts = np.cumsum(counts) - counts
    other = np.arange(counts.sum()) + np.repeat(starts[number] - firsts, counts)
    return pairs(np.repeat(node, counts), other)


def _within_reach(points: Points, candidates: Ends, reach: float, *, around: bool) -> Ends:
    apart = np.abs(points[candidates[:, 0]] - points[candidates[:, 1]])
    if around:
        apart = np.minimum(apart, 1.0 - apart)
    close: Ends = candidates[(apart * apart).sum(axis=1) <= reach * reach]
    return close


def _expected(request: GraphRequest) -> float:
    n = request.nodes
    return n * (n - 1) / 2 * min(1.0, math.pi * radius(request) ** 2)


RANDOM: Mapping[str, Family] = {
    "keyed-rings": Family(
        rule="the union of r rings, each in the order of a hash of seed, ring and name: stable when members change",
        degree="2 r, less where rings share an edge",
        build=keyed_rings,
        parameters={"r": whole(2, 1, "how many rings", maximum=1000)},
        expected=lambda request: float(request.nodes * request["r"]),
        connectivity="about 2 r - 2 sqrt(2 r - 1)",
        source="Law and Siu 2003, doi:10.1109/INFCOM.2003.1209234; Hua et al. 2024, arXiv:2409.05331",
        random=True,
        edges_limit=10_000_000,
        by_name=True,
    ),
    "random-regular": Family(
        rule="drawn among all graphs in which every node has this degree",
        degree="degree",
        build=lambda request: regular("random-regular", request.nodes, request["degree"], request.seed),
        parameters={"degree": whole(4, 1, "of every node")},
        expected=lambda request: request.nodes * float(request["degree"]) / 2,
        connectivity="about degree - 2 sqrt(degree - 1)",
        source="Friedman 2008, arXiv:cs/0405020",
        random=True,
        edges_limit=3_000_000,
    ),
    "erdos-renyi": Family(
        rule="each pair joined with probability p",
        degree="about (n - 1) p",
        build=lambda request: _drawn_pairs(request.nodes, request["p"], request.seed),
        parameters={"p": fraction(0.1, "of each pair; connected from about ln n / n on")},
        expected=lambda request: math.comb(request.nodes, 2) * float(request["p"]),
        source="Gilbert 1959, doi:10.1214/aoms/1177706098",
        random=True,
        edges_limit=5_000_000,
    ),
    "watts-strogatz": Family(
        rule="a ring of degree k, each edge rewired with probability p",
        degree="about k",
        build=watts_strogatz,
        parameters={"k": whole(4, 2, "even"), "p": fraction(0.1, "of each edge, to be rewired")},
        expected=lambda request: request.nodes * float(request["k"]) / 2,
        source="Watts and Strogatz 1998, doi:10.1038/30918",
        random=True,
        edges_limit=3_000_000,
    ),
    "barabasi-albert": Family(
        rule="each new node joined to m earlier ones, the likelier the more edges they have: hubs",
        degree="about 2 m, from m to about m sqrt n",
        build=barabasi_albert,
        parameters={"m": whole(2, 1, "edges that a new node brings")},
        expected=lambda request: float(request.nodes * request["m"]),
        source="Barabasi and Albert 1999, arXiv:cond-mat/9910332",
        random=True,
        edges_limit=5_000_000,
    ),
    "stochastic-block": Family(
        rule="blocks of nodes; a pair joined with one probability inside a block, with another between",
        degree="about inside n / blocks + between n (1 - 1 / blocks)",
        build=stochastic_block,
        parameters={
            "blocks": whole(2, 1, "how many, as even as can be"),
            "inside": fraction(0.5, "of each pair within a block"),
            "between": fraction(0.05, "of each pair in different blocks"),
        },
        expected=_expected_blocks,
        source="Holland, Laskey and Leinhardt 1983, doi:10.1016/0378-8733(83)90021-7",
        random=True,
        edges_limit=4_000_000,
    ),
    "geometric": Family(
        rule="nodes at random places in the unit square, joined within a radius",
        degree="about n pi radius^2; 3 ln n by default",
        build=geometric,
        parameters={
            "radius": positive(None, "sqrt(3 ln n / (pi n)) by default, which connects most graphs"),
            "metric": choice("flat", "torus", meaning="torus: opposite sides of the square touch"),
        },
        expected=_expected,
        source="Penrose 2003, Random Geometric Graphs; Gupta and Kumar 1998",
        random=True,
    ),
}
