"""Random graphs, drawn by networkx from the seed. A seed may give a graph that is not connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from topologies.errors import TopologyError
from topologies.families.family import Family, Request
from topologies.specs import fraction, whole

Pairs = Iterable[Sequence[int]]


def random_regular(wanted: Request) -> Pairs:
    degree = wanted["degree"]
    if degree >= wanted.nodes or degree * wanted.nodes % 2:
        raise TopologyError(
            f"no such graph on {wanted.nodes} nodes",
            key="random-regular:degree",
            value=degree,
            allowed="less than the nodes, and nodes times degree even",
        )
    import networkx as nx  # noqa: PLC0415 - slow to import

    graph: Pairs = nx.random_regular_graph(degree, wanted.nodes, seed=wanted.seed).edges
    return graph


def erdos_renyi(wanted: Request) -> Pairs:
    import networkx as nx  # noqa: PLC0415 - slow to import

    graph: Pairs = nx.fast_gnp_random_graph(wanted.nodes, wanted["p"], seed=wanted.seed).edges
    return graph


def watts_strogatz(wanted: Request) -> Pairs:
    k = wanted["k"]
    if k % 2 or k >= wanted.nodes:
        raise TopologyError(
            f"no such graph on {wanted.nodes} nodes",
            key="watts-strogatz:k",
            value=k,
            allowed="even, less than the nodes",
        )
    import networkx as nx  # noqa: PLC0415 - slow to import

    graph: Pairs = nx.watts_strogatz_graph(wanted.nodes, k, wanted["p"], seed=wanted.seed).edges
    return graph


FAMILIES: Mapping[str, Family] = {
    "random-regular": Family(
        rule="drawn among all graphs in which every node has this degree",
        degree="degree",
        build=random_regular,
        parameters={"degree": whole(4, 1)},
        connectivity="about degree - 2 sqrt(degree - 1)",
        source="Friedman 2008, arXiv:cs/0405020",
        random=True,
    ),
    "erdos-renyi": Family(
        rule="each pair joined with probability p",
        degree="about (n - 1) p",
        build=erdos_renyi,
        parameters={"p": fraction(0.1)},
        source="Gilbert 1959, Random Graphs",
        random=True,
    ),
    "watts-strogatz": Family(
        rule="a ring of degree k, each edge rewired with probability p",
        degree="about k",
        build=watts_strogatz,
        parameters={"k": whole(4, 2), "p": fraction(0.1)},
        source="Watts and Strogatz 1998, doi:10.1038/30918",
        random=True,
    ),
}
