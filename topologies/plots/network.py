"""The panel that shows the graph itself: nodes colored by the Fiedler vector, and the edges of the thinnest cut."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.graph import Ends, Topology
from topologies.laplacian import Array
from topologies.plots.canvas import DARK, RED, shown
from topologies.plots.layout import Layout, layout

COLORS = "PRGn"
"""Purple to green, which nobody confuses, and neither with the color of the cut."""
WIDTH_POINTS = 350.0
NUMBER_POINTS = 14.0
"""A node at least so wide has room for its number."""
NAMED_LIMIT = 24
RASTER_EDGES = 5_000
"""More edges are pixels in a vector picture too, or no program could open it."""


def draw_network(axes: Any, topology: Topology, vector: Array, side: NDArray[np.bool_]) -> None:
    """`vector`: Fiedler's, by which nodes are colored; `side`: the nodes on one side of the cut. Shapes (nodes,)."""
    found = layout(topology)
    crossing = side[topology.ends[:, 0]] != side[topology.ends[:, 1]]
    faint = float(np.clip(60 / np.sqrt(topology.edge_count + 1), 0.12, 0.9))
    thin = float(np.clip(14 / np.sqrt(topology.nodes), 0.4, 1.6))
    _lines(axes, found, topology.ends[~crossing], color="#888888", linewidths=thin, alpha=faint)
    _lines(axes, found, topology.ends[crossing], color=RED, linewidths=1.6 * thin, alpha=max(faint, 0.35))
    _nodes(axes, topology, found.points, vector, side)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)
    axes.axis("off")


def _lines(axes: Any, found: Layout, ends: Ends, **style: Any) -> None:
    from matplotlib.collections import LineCollection  # noqa: PLC0415 - an extra

    segments = list(_segments(found, ends))
    axes.add_collection(LineCollection(segments, rasterized=len(ends) > RASTER_EDGES, zorder=1, **style))


def _segments(found: Layout, ends: Ends) -> NDArray[np.float64]:
    """Shape (segments, 2, 2). An edge that wraps around becomes two stubs that leave the picture on opposite sides."""
    a, b = found.points[ends[:, 0]], found.points[ends[:, 1]]
    if found.period is None:
        return np.stack([a, b], axis=1)
    period = np.array(found.period)
    shift = np.where(np.abs(b - a) > period / 2, np.sign(b - a) * period, 0.0)
    around = shift.any(axis=1)
    far_b, far_a = b[around] - shift[around], a[around] + shift[around]
    stubs = [
        np.stack([a[around], (a[around] + far_b) / 2], axis=1),
        np.stack([b[around], (b[around] + far_a) / 2], axis=1),
    ]
    return np.concatenate([np.stack([a[~around], b[~around]], axis=1), *stubs])


def _nodes(axes: Any, topology: Topology, points: NDArray[np.float64], vector: Array, side: NDArray[np.bool_]) -> None:
    """The two sides of the cut differ by shape too, not by color alone."""
    width = _marker_width(points)
    most = float(np.abs(vector).max()) or 1.0
    for marker, chosen, scale in (("o", ~side, 1.0), ("s", side, 0.9)):
        axes.scatter(
            *points[chosen].T,
            s=(width * scale) ** 2,
            c=vector[chosen],
            cmap=COLORS,
            vmin=-most,
            vmax=most,
            marker=marker,
            edgecolors=DARK,
            linewidths=0.8 if topology.nodes <= 200 else 0.2 if topology.nodes <= 600 else 0.1,
            zorder=2,
        )
    if topology.names and topology.nodes <= NAMED_LIMIT:
        for point, name in zip(points, topology.names, strict=True):
            above = {"xytext": (0, width / 2 + 2), "textcoords": "offset points", "va": "bottom"}
            axes.annotate(shown(name, 12), point, ha="center", fontsize=8, color=DARK, zorder=3, **above)
    elif not topology.names and width >= NUMBER_POINTS:
        dark = np.abs(vector) > 0.6 * most
        for node, (x, y) in enumerate(points):
            color = "white" if dark[node] else "black"
            axes.text(x, y, str(node), ha="center", va="center_baseline", fontsize=8, color=color, zorder=3)


def _marker_width(points: NDArray[np.float64]) -> float:
    """In points of 1/72 inch: so large that most nodes do not touch."""
    steps = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(steps, np.inf)
    near = float(np.quantile(steps.min(axis=1), 0.2))
    extent = float(np.ptp(points, axis=0).max()) or 1.0
    return float(np.clip(0.85 * near / extent * WIDTH_POINTS, 3.0, 20.0))
