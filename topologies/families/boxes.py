"""Tori and grids: products of rings, or of paths. An eigenvalue of a product is a sum of one of each factor, so
lambda_2 is that of the longest side and lambda_max the sum over all sides.

Source: Brouwer and Haemers, Spectra of Graphs (2012), section 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from topologies.errors import TopologyError
from topologies.families.classic import BOOK, path_values, ring_values
from topologies.families.parts import box
from topologies.family import ClosedForm, Family, Request, impossible
from topologies.parameters import lengths, whole


def sides(name: str, wanted: Request) -> tuple[int, ...]:
    """Those given, else the two most nearly square ones: rows, then columns."""
    if wanted["dims"] is None:
        return _rows_and_cols(name, wanted.nodes, wanted["rows"], wanted["cols"])
    dims: tuple[int, ...] = wanted["dims"]
    shape = "x".join(map(str, dims))
    if wanted["rows"] or wanted["cols"]:
        raise TopologyError("given twice", key=f"{name}:dims", value=shape, allowed="either dims, or rows and cols")
    if math.prod(dims) != wanted.nodes:
        raise impossible(name, wanted.nodes, f"{math.prod(dims)}, the product of dims ({shape})")
    return dims


def _rows_and_cols(name: str, nodes: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    given = " times ".join(f"{key} ({value})" for key, value in [("rows", rows), ("cols", cols)] if value)
    if not given:
        rows = next((side for side in range(math.isqrt(nodes), 1, -1) if nodes % side == 0), None)
        if rows is None:
            raise impossible(name, nodes, "rows times cols with both at least 2 (not a prime)")
    rows = rows or nodes // (cols or 1)
    cols = cols or nodes // rows if rows else 0
    if rows * cols != nodes or min(rows, cols) < 2:
        raise impossible(name, nodes, f"{given}, times at least 2 where only one is given")
    return rows, cols


def torus_form(wanted: Request) -> ClosedForm:
    shape = sides("torus", wanted)
    values = [ring_values(side) for side in shape]
    degree = sum(min(2, side - 1) for side in shape)
    return ClosedForm(
        low=min(low for low, _ in values),  # not always of the longest side: rings of 2 and 3 have 2 and 3
        high=math.fsum(high for _, high in values),
        edges=wanted.nodes * degree // 2,
        degrees=(degree, degree),
        diameter=sum(side // 2 for side in shape),
    )


def grid_form(wanted: Request) -> ClosedForm:
    shape = sides("grid", wanted)
    values = [path_values(side) for side in shape]
    return ClosedForm(
        low=path_values(max(shape))[0],
        high=math.fsum(high for _, high in values),
        edges=sum(wanted.nodes // side * (side - 1) for side in shape),
        degrees=(len(shape), sum(min(2, side - 1) for side in shape)),
        diameter=sum(shape) - len(shape),
    )


_SIDES = {
    "rows": whole(None, 2, "with cols the most nearly square ones by default"),
    "cols": whole(None, 2, "n / rows by default"),
    "dims": lengths("the sides of a box of any dimension, instead of rows and cols"),
}

FAMILIES: Mapping[str, Family] = {
    "torus": Family(
        rule="a grid that wraps around, as square as n allows, or of the given sides",
        degree="2 for each side, 1 for a side of 2",
        build=lambda wanted: box(sides("torus", wanted), around=True),
        parameters=_SIDES,
        closed=torus_form,
        connectivity="2 - 2 cos(2 pi / the longest side)",
        source=BOOK,
        transitive=True,
    ),
    "grid": Family(
        rule="rows and columns without wrapping, as square as n allows, or of the given sides",
        degree="1 or 2 for each side",
        build=lambda wanted: box(sides("grid", wanted), around=False),
        parameters=_SIDES,
        closed=grid_form,
        connectivity="2 - 2 cos(pi / the longest side)",
        source=BOOK,
    ),
}
