"""Circulant graphs: node i is joined to i + s for each offset s, modulo n. Their spectrum is a sum of cosines. And
expanders made by arithmetic modulo n, which keep a constant degree and stay well connected at any size, without chance.
Loops and repeated edges of their original definitions are left out.

Source: Gray, Toeplitz and Circulant Matrices: A Review (2006), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from topologies.chance import StableDraws
from topologies.family import ClosedForm, Family, GraphRequest, impossible, offsets, unfit, whole
from topologies.graph import Ends, Ints, cycle, pairs, together

SUM_LIMIT = 400_000_000
"""Nodes times offsets: summing that many cosines takes some seconds."""
REVIEW = "Gray, Toeplitz and Circulant Matrices, 3"


def circulant_edges(nodes: int, steps: Iterable[int]) -> Ends:
    node = np.arange(nodes)
    # half of the hops of n/2 are the others read backwards
    hops = [node[: nodes // 2] if 2 * step == nodes else node for step in steps]
    return together(*(pairs(here, (here + step) % nodes) for here, step in zip(hops, steps, strict=True)))


def cosine_gap(k: int, nodes: int, *, doubled: bool = True) -> float:
    """Compute 2 - 2 cos(2 pi k / n), as 4 sin^2(pi k / n): no cancellation where it is tiny. Half of it if not
    `doubled`.
    """
    return (4.0 if doubled else 2.0) * math.sin(math.pi * k / nodes) ** 2


def circulant_form(nodes: int, steps: Iterable[int]) -> ClosedForm:
    """Compute lambda_k = sum over offsets s of 2 - 2 cos(2 pi k s / n); an offset of n/2 counts once.

    `steps` are different numbers from 1 to n/2.
    """
    k = np.arange(1, nodes // 2 + 1, dtype=np.int64)
    values = np.zeros(len(k))
    degree = 0
    for step in steps:
        half = 2 * step == nodes
        turn = k * step % nodes
        turn = np.minimum(turn, nodes - turn)  # sin near pi would lose the digits that sin near 0 keeps
        values += (2.0 if half else 4.0) * np.sin(np.pi * turn / nodes) ** 2
        degree += 1 if half else 2
    # where all offsets share a divisor with n, some k has only turns of 0, and lambda_2 is 0 without rounding
    low, high = float(values.min()), float(values.max())
    return ClosedForm(low=low, high=high, edges=nodes * degree // 2, degrees=(degree, degree))


def offsets_of(request: GraphRequest) -> tuple[int, ...]:
    """Return the requested offsets. Raises TopologyError: one is more than half way round."""
    steps: tuple[int, ...] = request["offsets"]
    if request.nodes < 2:
        raise impossible("circulant graph", request.nodes, "at least 2")
    if steps[-1] > request.nodes // 2:
        text = "-".join(map(str, steps))
        raise unfit("circulant:offsets", text, request.nodes, f"from 1 to {request.nodes // 2}")
    return steps


def powers(request: GraphRequest) -> tuple[int, ...]:
    """Return the distinct hops of the undirected exponential graph: 1, 2, 4, ..., the shorter way round."""
    n = request.nodes
    return tuple(sorted({min(1 << bit, n - (1 << bit)) for bit in range((n - 1).bit_length())}))


def equi_shifts(nodes: int, count: int | None, seed: int) -> Ints:
    """Draw M shifts from 1 .. n-1, with replacement. Shape (m,), m = ceil(log2 n) if `count` is None."""
    if nodes < 2:
        return np.empty(0, np.int64)
    count = (nodes - 1).bit_length() if count is None else count
    return 1 + StableDraws("u-equi-static", seed).below(nodes - 1, count)


def shifts(request: GraphRequest) -> tuple[int, ...]:
    """Return the distinct hops, the shorter way round. Raises TopologyError: as many would take too long."""
    m, most = request["m"], SUM_LIMIT // request.nodes
    if m is not None and min(m, request.nodes // 2) > most:
        raise unfit("u-equi-static:m", m, request.nodes, f"from 1 to {most}")
    drawn = equi_shifts(request.nodes, request["m"], request.seed)
    return tuple(np.unique(np.minimum(drawn, request.nodes - drawn)).tolist())


def residues(request: GraphRequest) -> tuple[int, ...]:
    """Return the squares modulo n up to n/2; -1 is one too. Raises TopologyError: n is no prime 1 modulo 4."""
    n = check_paley(request.nodes)
    node = np.arange(1, n // 2 + 1)
    square = node * node % n
    return tuple(np.unique(np.minimum(square, n - square)).tolist())


def check_paley(n: int) -> int:
    if not _fits_paley(n):
        lower = next((m for m in range(n, 4, -1) if _fits_paley(m)), None)
        upper = next(m for m in range(n, 2 * n + 8) if _fits_paley(m))
        nearby = f"{lower} or {upper}" if lower else str(upper)
        raise impossible("Paley graph", n, f"a prime that leaves 1 when divided by 4, such as {nearby}")
    return n


def _fits_paley(n: int) -> bool:
    return n % 4 == 1 and is_prime(n)


def is_prime(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, math.isqrt(n) + 1))


def paley_form(request: GraphRequest) -> ClosedForm:
    n = check_paley(request.nodes)
    root, degree = math.sqrt(n), (n - 1) // 2
    return ClosedForm(
        low=(n - root) / 2.0, high=(n + root) / 2.0, edges=n * degree // 2, degrees=(degree, degree), diameter=2
    )


def margulis(request: GraphRequest) -> Ends:
    """Join node x * m + y to (x + 2y, y), (x + 2y + 1, y), (x, y + 2x), (x, y + 2x + 1), and so back, mod m."""
    m = math.isqrt(request.nodes)
    if m * m != request.nodes:
        raise impossible("Margulis expander", request.nodes, f"a square, such as {m * m} or {(m + 1) ** 2}")
    node = np.arange(request.nodes)
    x, y = np.divmod(node, m)
    along = [((x + 2 * y + step) % m * m + y) for step in (0, 1)]
    across = [(x * m + (y + 2 * x + step) % m) for step in (0, 1)]
    return together(*(pairs(node, there) for there in (*along, *across)))


def chordal_cycle(request: GraphRequest) -> Ends:
    """Build a ring, with each node x joined to 1 / x modulo n."""
    n = request.nodes
    if not is_prime(n):
        lower = next((m for m in range(n, 1, -1) if is_prime(m)), None)
        upper = next(m for m in range(n, 2 * n + 3) if is_prime(m))
        raise impossible("chordal cycle", n, f"a prime, such as {lower} or {upper}" if lower else "a prime")
    node = np.arange(n)
    return together(cycle(node), pairs(node, _power(node, n - 2, n)))


def _power(base: Ints, exponent: int, modulus: int) -> Ints:
    """Compute the power modulo `modulus`, which is below 2^31. By Fermat 1 / x is x^(p - 2), and 0 stays 0."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent >>= 1
    return result % modulus


FAMILIES: Mapping[str, Family] = {
    "circulant": Family(
        rule="each node joined to those at the given offsets",
        degree="2 for each offset, 1 for n/2",
        build=lambda request: circulant_edges(request.nodes, offsets_of(request)),
        parameters={"offsets": offsets((1, 2), "how far round the ring, from 1 to n/2")},
        closed=lambda request: circulant_form(request.nodes, offsets_of(request)),
        connectivity="min over k of the sum over offsets s of 2 - 2 cos(2 pi k s / n)",
        source=REVIEW,
        transitive=True,
    ),
    "exponential": Family(
        rule="offsets 1, 2, 4, ..., both ways: few edges, fast mixing",
        degree="about 2 log2 n",
        build=lambda request: circulant_edges(request.nodes, powers(request)),
        closed=lambda request: circulant_form(request.nodes, powers(request)),
        connectivity="as circulant",
        source="Ying et al. 2021, arXiv:2110.13363, made undirected",
        transitive=True,
    ),
    "u-equi-static": Family(
        rule="a circulant graph of m random offsets, drawn from the seed; one may come twice",
        degree="at most 2 m",
        build=lambda request: circulant_edges(request.nodes, shifts(request)),
        parameters={
            "m": whole(None, 1, "how many offsets are drawn; log2 n, rounded up, by default", maximum=1_000_000)
        },
        closed=lambda request: circulant_form(request.nodes, shifts(request)),
        connectivity="as circulant",
        source="Song et al. 2022, arXiv:2210.07881, algorithm U-EquiStatic",
        transitive=True,
        random=True,
    ),
    "paley": Family(
        rule="joined where the difference is a square modulo n; n prime, 1 modulo 4",
        degree="(n - 1) / 2",
        build=lambda request: circulant_edges(request.nodes, residues(request)),
        closed=paley_form,
        connectivity="(n - sqrt n) / 2",
        source="Brouwer and Haemers, Spectra of Graphs, 9.1.2",
        transitive=True,
    ),
    "margulis": Family(
        rule="pairs (x, y) mod m joined by shears, m^2 = n: an expander without chance",
        degree="at most 8",
        build=margulis,
        connectivity="at least 8 - 5 sqrt 2 = 0.93 if repeated edges counted again",
        source="Gabber and Galil 1981; Hoory, Linial and Wigderson 2006",
    ),
    "chordal-cycle": Family(
        rule="a ring, and x joined to 1 / x modulo n; n a prime: an expander of degree 3",
        degree="2 or 3",
        build=chordal_cycle,
        connectivity="above a constant for any n",
        source="Lubotzky 1994, Discrete Groups, Expanding Graphs and Invariant Measures, 4.4.2",
    ),
}
