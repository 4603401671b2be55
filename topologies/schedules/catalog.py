"""The families of schedules and of directed graphs. Imported by `families` alone, which must be imported first."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.family import Family, GraphKind, whole
from topologies.schedules import base, drawn, exponential

YING = "Ying et al. 2021, arXiv:2110.13363"
TAKEZAWA = "Takezawa et al. 2023, arXiv:2305.11420"
SONG = "Song et al. 2022, arXiv:2210.07881"

FAMILIES: Mapping[str, Family] = {
    "one-peer-exponential": Family(
        rule="round t: node i averages with node i + 2^t; the exact mean after log2 n rounds if n is a power of two",
        degree="1 in a round",
        schedule=exponential.one_peer_exponential,
        source=YING,
        kind=GraphKind.DIRECTED,
    ),
    "directed-exponential": Family(
        rule="node i hears nodes i + 1, i + 2, i + 4, ..., all with the same weight",
        degree="ceil(log2 n)",
        schedule=exponential.directed_exponential,
        source=YING,
        kind=GraphKind.DIRECTED,
    ),
    "one-peer-hypercube": Family(
        rule="round t: nodes whose numbers differ in bit t average; n a power of two: exact after log2 n rounds",
        degree="1 in a round",
        schedule=exponential.one_peer_hypercube,
        source="Shi et al. 2016, Finite-time convergent gossiping, doi:10.1109/TNET.2015.2484345",
        kind=GraphKind.SCHEDULE,
    ),
    "base": Family(
        rule="any n, the exact mean after about 2 log n rounds to the base k + 1",
        degree="at most k in a round",
        schedule=base.base,
        parameters={"k": whole(1, 1)},
        source=TAKEZAWA,
        kind=GraphKind.SCHEDULE,
    ),
    "simple-base": Family(
        rule="as base, without splitting n into factors first: often longer",
        degree="at most k in a round",
        schedule=base.simple_base,
        parameters={"k": whole(1, 1)},
        source=TAKEZAWA,
        kind=GraphKind.SCHEDULE,
    ),
    "hyper-hypercube": Family(
        rule="n a product of numbers up to k + 1: exact after as many rounds as there are factors",
        degree="at most k in a round",
        schedule=base.hyper_hypercube,
        parameters={"k": whole(1, 1)},
        source=TAKEZAWA,
        kind=GraphKind.SCHEDULE,
    ),
    "d-equi-static": Family(
        rule="node i hears nodes i + u for m drawn shifts u, by default ceil(log2 n) of them",
        degree="at most m",
        schedule=drawn.d_equi_static,
        parameters={"m": whole(None, 1, "ceil(log2 n)")},
        source=SONG,
        kind=GraphKind.DIRECTED,
        random=True,
    ),
    "od-equi-dyn": Family(
        rule="so many drawn rounds, repeated: node i hears node i + u for one shift u",
        degree="1 in a round",
        schedule=drawn.od_equi_dyn,
        parameters={"eta": drawn.eta_parameter(), "rounds": whole(16, 1)},
        source=SONG,
        kind=GraphKind.DIRECTED,
        random=True,
    ),
    "ou-equi-dyn": Family(
        rule="so many drawn rounds, repeated: nodes i and i + u meet where both are free, for one shift u",
        degree="at most 1 in a round",
        schedule=drawn.ou_equi_dyn,
        parameters={"eta": drawn.eta_parameter(), "rounds": whole(16, 1)},
        source=SONG,
        kind=GraphKind.SCHEDULE,
        random=True,
    ),
    "random-matchings": Family(
        rule="so many drawn rounds, repeated: all nodes in random pairs, each pair averages",
        degree="1 in a round, one node of an odd number rests",
        schedule=drawn.random_matchings,
        parameters={"rounds": whole(8, 1)},
        source="Boyd et al. 2006, Randomized gossip algorithms, doi:10.1109/TIT.2006.874516",
        kind=GraphKind.SCHEDULE,
        random=True,
    ),
    "round-robin": Family(
        rule="every pair meets once in n - 1 rounds, n where it is odd, in a mixed order",
        degree="1 in a round, one node of an odd number rests",
        schedule=drawn.round_robin,
        source="Kirkman 1847, On a problem in combinations",
        kind=GraphKind.SCHEDULE,
    ),
    "de-bruijn": Family(
        rule="n = k^D, node i sends to k i, ..., k i + k - 1: the exact mean after D rounds of one and the same graph",
        degree="k, k - 1 where a word repeats one letter",
        schedule=exponential.de_bruijn,
        parameters={"k": whole(2, 2)},
        source="Imase and Itoh 1983, doi:10.1109/TC.1983.1676323",
        kind=GraphKind.DIRECTED,
    ),
    "kautz": Family(
        rule="n = k^D + k^(D-1), node i sends to -(k i + j) for j = 1, ..., k: no node further than D hops",
        degree="k",
        schedule=exponential.kautz,
        parameters={"k": whole(2, 2)},
        source="Imase and Itoh 1983, doi:10.1109/TC.1983.1676323",
        kind=GraphKind.DIRECTED,
    ),
}
