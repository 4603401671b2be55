"""Ring, path, star, complete graphs, hypercube, torus, grid, the usual graphs to compare with; and circulant graphs.

In a circulant graph node i is joined to i + s for each offset s, modulo n. Its spectrum is a sum of cosines: Gray,
Toeplitz and Circulant Matrices: A Review (2006), section 3.

Tori and grids are products of rings, or of paths. An eigenvalue of a product is a sum of one from each factor, so
lambda_2 is the longest side's and lambda_max is the sum over all sides.

Eigenvalues: Brouwer and Haemers, Spectra of Graphs (2012), section 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from topologies.errors import TopologyError
from topologies.family import ClosedForm, Family, GraphRequest, impossible, lengths, offsets, sizes_near, unfit, whole
from topologies.graph import Ends, all_pairs, box, line, pairs, together

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
    """Return lambda_k = sum over offsets s of 2 - 2 cos(2 pi k s / n); an offset of n/2 counts once.

    `steps` are distinct numbers from 1 to n/2.
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
    # if all offsets share a divisor with n, some k has only turns of 0, and lambda_2 is exactly 0
    low, high = float(values.min()), float(values.max())
    return ClosedForm(low=low, high=high, edges=nodes * degree // 2, degrees=(degree, degree))


def offsets_of(request: GraphRequest) -> tuple[int, ...]:
    """Return the requested offsets. Raises TopologyError if one is more than half way around."""
    steps: tuple[int, ...] = request["offsets"]
    if request.nodes < 2:
        raise impossible("circulant graph", request.nodes, "at least 2")
    if steps[-1] > request.nodes // 2:
        text = "-".join(map(str, steps))
        raise unfit("circulant:offsets", text, request.nodes, f"from 1 to {request.nodes // 2}")
    return steps


def powers(request: GraphRequest) -> tuple[int, ...]:
    """Return the distinct hops of the undirected exponential graph: 1, 2, 4, ..., the shorter way around."""
    n = request.nodes
    return tuple(sorted({min(1 << bit, n - (1 << bit)) for bit in range((n - 1).bit_length())}))


CIRCULANTS: Mapping[str, Family] = {
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
}

BOOK = "Brouwer and Haemers, Spectra of Graphs, 1.4"


def ring(request: GraphRequest) -> Ends:
    """Build a ring, or a path if there are fewer than three nodes."""
    return circulant_edges(request.nodes, (1,) if request.nodes > 1 else ())


def ring_values(nodes: int) -> tuple[float, float]:
    """Return lambda_2 and lambda_max."""
    return cosine_gap(1, nodes, doubled=nodes > 2), cosine_gap(nodes // 2, nodes, doubled=nodes > 2)


def ring_form(request: GraphRequest) -> ClosedForm:
    n = request.nodes
    low, high = ring_values(n)
    degree = min(2, n - 1)
    return ClosedForm(low=low, high=high, edges=n * degree // 2, degrees=(degree, degree), diameter=n // 2)


def path_values(nodes: int) -> tuple[float, float]:
    """Return lambda_2 and lambda_max."""
    low, high = math.sin(math.pi / (2 * nodes)), math.cos(math.pi / (2 * nodes))
    return 4.0 * low * low, 4.0 * high * high


def path_form(nodes: int) -> ClosedForm:
    low, high = path_values(nodes)
    return ClosedForm(low=low, high=high, edges=nodes - 1, degrees=(1, min(2, nodes - 1)), diameter=nodes - 1)


def star_form(request: GraphRequest) -> ClosedForm:
    n = request.nodes
    low = 1.0 if n > 2 else 2.0
    return ClosedForm(low=low, high=float(n), edges=n - 1, degrees=(1, n - 1), diameter=min(2, n - 1))


def complete_form(request: GraphRequest) -> ClosedForm:
    n = request.nodes
    return ClosedForm(low=float(n), high=float(n), edges=n * (n - 1) // 2, degrees=(n - 1, n - 1), diameter=1)


def dimension(name: str, nodes: int) -> int:
    """Return log2 of the number of nodes. Raises TopologyError if it is not a power of two."""
    if nodes & (nodes - 1):
        below = 1 << (nodes.bit_length() - 1)
        raise impossible(name, nodes, f"a power of two, such as {below} or {2 * below}")
    return nodes.bit_length() - 1


def hypercube(request: GraphRequest) -> Ends:
    node = np.arange(request.nodes)
    without = [(node[node >> bit & 1 == 0], 1 << bit) for bit in range(dimension("hypercube", request.nodes))]
    return together(*(pairs(here, here + step) for here, step in without))


def hypercube_form(request: GraphRequest) -> ClosedForm:
    d = dimension("hypercube", request.nodes)
    return ClosedForm(low=2.0, high=2.0 * d, edges=request.nodes * d // 2, degrees=(d, d), diameter=d)


def sides(name: str, request: GraphRequest) -> tuple[int, ...]:
    """Return the given sides, or the two that are closest to a square: rows, then columns."""
    if request["dims"] is None:
        return _rows_and_cols(name, request.nodes, request["rows"], request["cols"])
    dims: tuple[int, ...] = request["dims"]
    shape = "x".join(map(str, dims))
    if request["rows"] or request["cols"]:
        raise TopologyError("given twice", key=f"{name}:dims", value=shape, allowed="either dims, or rows and cols")
    if math.prod(dims) != request.nodes:
        raise impossible(name, request.nodes, f"{math.prod(dims)}, the product of dims ({shape})")
    return dims


def _rows_and_cols(name: str, nodes: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    if rows and cols:
        if rows * cols != nodes or min(rows, cols) < 2:
            raise impossible(name, nodes, f"{max(2, rows) * max(2, cols)}, rows times cols with both at least 2")
        return rows, cols
    given = rows or cols
    if given is None:
        given = next((side for side in range(math.isqrt(nodes), 1, -1) if nodes % side == 0), None)
        if given is None:
            sizes = sizes_near(nodes, lambda n: any(n % side == 0 for side in range(2, math.isqrt(n) + 1)))
            raise impossible(name, nodes, f"rows times cols with both at least 2 (not a prime), such as {sizes}")
        return given, nodes // given
    if given < 2 or nodes % given or nodes // given < 2:
        key = "rows" if rows else "cols"
        sizes = sizes_near(nodes, lambda n: n % max(2, given) == 0 and n >= 2 * given)
        raise impossible(name, nodes, f"{key} ({given}) times another side, both at least 2, such as {sizes}")
    return (given, nodes // given) if rows else (nodes // given, given)


def torus_form(request: GraphRequest) -> ClosedForm:
    shape = sides("torus", request)
    values = [ring_values(side) for side in shape]
    degree = sum(min(2, side - 1) for side in shape)
    return ClosedForm(
        low=min(low for low, _ in values),  # not always the longest side's: rings of 2 and 3 have 2 and 3
        high=math.fsum(high for _, high in values),
        edges=request.nodes * degree // 2,
        degrees=(degree, degree),
        diameter=sum(side // 2 for side in shape),
    )


def grid_form(request: GraphRequest) -> ClosedForm:
    shape = sides("grid", request)
    values = [path_values(side) for side in shape]
    return ClosedForm(
        low=path_values(max(shape))[0],
        high=math.fsum(high for _, high in values),
        edges=sum(request.nodes // side * (side - 1) for side in shape),
        degrees=(len(shape), sum(min(2, side - 1) for side in shape)),
        diameter=sum(shape) - len(shape),
    )


_SIDES = {
    "rows": whole(None, 2, "with cols the most nearly square ones by default"),
    "cols": whole(None, 2, "n / rows by default"),
    "dims": lengths("the sides of a box of any dimension, instead of rows and cols"),
}


_book = partial(Family, source=BOOK)

CLASSIC: Mapping[str, Family] = {
    "ring": _book(
        rule="a cycle", degree="2", build=ring, closed=ring_form, connectivity="2 - 2 cos(2 pi / n)", transitive=True
    ),
    "path": _book(
        rule="a line",
        degree="1 or 2",
        build=lambda request: line(np.arange(request.nodes)),
        closed=lambda request: path_form(request.nodes),
        connectivity="2 - 2 cos(pi / n)",
    ),
    "star": _book(
        rule="node 0 joined to all others",
        degree="1, n - 1 at the center",
        build=lambda request: pairs(np.arange(1, request.nodes), 0),
        closed=star_form,
        connectivity="1",
    ),
    "complete": _book(
        rule="every pair joined",
        degree="n - 1",
        build=lambda request: all_pairs(request.nodes),
        closed=complete_form,
        connectivity="n",
        transitive=True,
    ),
    "hypercube": _book(
        rule="nodes whose numbers differ in one bit; n a power of two",
        degree="log2 n",
        build=hypercube,
        closed=hypercube_form,
        connectivity="2",
        transitive=True,
    ),
    "torus": _book(
        rule="a grid that wraps around, as square as n allows, or of the given sides",
        degree="2 for each side, 1 for a side of 2",
        build=lambda request: box(sides("torus", request), around=True),
        parameters=_SIDES,
        closed=torus_form,
        connectivity="2 - 2 cos(2 pi / the longest side)",
        transitive=True,
    ),
    "grid": _book(
        rule="rows and columns without wrapping, as square as n allows, or of the given sides",
        degree="1 or 2 for each side",
        build=lambda request: box(sides("grid", request), around=False),
        parameters=_SIDES,
        closed=grid_form,
        connectivity="2 - 2 cos(pi / the longest side)",
    ),
}
