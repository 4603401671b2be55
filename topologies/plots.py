"""Pictures: what all share, and one of a graph with its thinnest cut, its spectrum, and how fast it agrees.

Drawing needs no screen, and one picture always gives the same bytes.

The panel that shows the graph itself has nodes colored by the Fiedler vector, and the edges of the thinnest cut. Nodes
are placed as the family places them, or else around a circle, or else by springs between them.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.eigen.laplacian import Array, Laplacian
from topologies.errors import TopologyError, not_written
from topologies.families import build, parse
from topologies.families.classic import sides
from topologies.families.random import places
from topologies.family import GraphRequest
from topologies.files import replace
from topologies.files.content import is_file
from topologies.graph import Ends, Topology, hops, ordered, require_connected
from topologies.metrics.cuts import sweep_cut
from topologies.spectral import EPSILON, check_weights, default_weights, mixing_matrix, rate_text, rounds_to_consensus

SUFFIXES = (".png", ".svg", ".pdf")
DPI = 110

GRID = "#dddddd"
DARK = "#333333"
BLUE = "#0072b2"
RED = "#d55e00"
"""The vermilion of Okabe and Ito; everybody can distinguish it from their blue."""


def check_target(path: Path) -> None:
    """Check that a picture can be written. Raises TopologyError for a format that cannot be drawn or a missing folder,
    ModuleNotFoundError without matplotlib.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise TopologyError("no such picture format", key="output", value=str(path), allowed=", ".join(SUFFIXES))
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise TopologyError(
            "cannot be written", key="output", value=str(path), allowed="a file in a folder that exists"
        )
    import matplotlib as _  # noqa: F401, ICN001, PLC0415 - an extra: if it is missing, that must show at once


def new_figure(width: float, height: float) -> Any:
    """Make a `matplotlib.figure.Figure` of this size in inches, which a notebook shows as a picture."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=DPI)
            return content.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def plain(axes: Any) -> None:
    """Give axes the common look."""
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def legend_rows(texts: Sequence[str], width: float) -> int:
    """Return how many rows a legend with these texts needs, if it may be so many inches wide."""
    return math.ceil(len(texts) / _columns(texts, width))


def _columns(texts: Sequence[str], width: float) -> int:
    longest = max(len(line) for text in texts for line in text.split("\n"))
    return max(1, int(width / (0.6 + 0.075 * longest)))


def legend_above(axes: Any, marks: Sequence[tuple[Any, str]], width: float, title: str | None = None) -> None:
    """Put a legend between the title of the picture and its first axes, where it takes no width from them. `marks` are
    what is drawn and what it is, `width` how many inches it may be wide.
    """
    handles, texts = zip(*marks, strict=True)
    look = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3, "frameon": False, "fontsize": 8.5}
    axes.legend(handles, texts, ncols=_columns(texts, width), title=title, alignment="left", **look)


def shown(text: str, longest: int = 60) -> str:
    """Prepare `text` for drawing: one line, not too long, and no mathematics in it."""
    line = "".join(sign if sign.isprintable() else "?" for sign in text).replace("$", r"\$")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def save(figure: Any, path: Path) -> None:
    """Replace the picture once all of it is written. Raises TopologyError if the file cannot be written."""
    import matplotlib as mpl  # noqa: PLC0415 - as above

    form = path.suffix.lower().removeprefix(".")
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {"Software": None})
    fonts = logging.getLogger("matplotlib.font_manager")
    level = fonts.level
    try:
        # a machine whose fonts were never listed has a line for each mathematical font that it lacks, and uses another
        fonts.setLevel(logging.ERROR)
        with mpl.rc_context({"svg.hashsalt": "p2pfl"}), warnings.catch_warnings():
            # a name may have characters that the font lacks: they become boxes, which is no reason to fail
            warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
            replace(path, lambda file: figure.savefig(file, format=form, dpi=DPI, metadata=metadata))
    except OSError as error:
        raise not_written("cannot be written", error, key="output", path=path) from None
    finally:
        fonts.setLevel(level)


NODES_LIMIT = 2_000
EDGES_LIMIT = 200_000
POINTS = 120
"""The number of rounds on the curve; between them the matrix is raised to a power."""
FLOOR = 1e-15
"""Below this fraction of the first distance there is only rounding."""

Points = NDArray[np.float64]

STRESS_LIMIT = 120
"""The most nodes whose distances are fitted (Kamada and Kawai, 1989): good for long thin graphs, but slow."""


@dataclass(frozen=True, slots=True)
class SingleFigures:
    """The figures in a picture. `values` are the Laplacian's, ascending.

    `side` is one side of the thinnest known cut. `rate` is the second largest modulus of the mixing `matrix`.
    """

    topology: Topology
    values: Array
    fiedler: Array
    side: NDArray[np.bool_]
    matrix: Array
    rate: float
    rounds: int | None


def check_size(nodes: int) -> None:
    if not 2 <= nodes <= NODES_LIMIT:
        raise TopologyError("no such picture", key="nodes", value=nodes, allowed=f"from 2 to {NODES_LIMIT} nodes")


def draw_single(topology: Topology, path: Path, weights: str | None = None) -> None:
    """Write the picture. Raises TopologyError if there are too many nodes or edges to draw, or if it cannot be
    written; DisconnectedError for a graph that is not connected.
    """
    check_target(path)
    check_size(topology.nodes)
    require_connected(topology)
    if topology.edge_count > EDGES_LIMIT:
        allowed = f"up to {EDGES_LIMIT} edges in a picture"
        raise TopologyError("too dense to draw", key="edges", value=topology.edge_count, allowed=allowed)
    weights = check_weights(default_weights(topology) if weights is None else weights)
    drawn = _analyzed(topology, weights)
    figure = new_figure(9.6, 5.2)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.35, 1.0))
    network = figure.add_subplot(grid[:, 0])
    draw_network(network, topology, drawn.fiedler, drawn.side)
    network.set_title(_cut_text(drawn), fontsize=10, color=DARK)
    _draw_spectrum(figure.add_subplot(grid[0, 1]), drawn)
    _draw_decay(figure.add_subplot(grid[1, 1]), drawn, weights)
    figure.suptitle(_title(drawn), fontsize=12)
    save(figure, path)


def decay(matrix: Array, last: int) -> tuple[Array, Array]:
    """Return the rounds from 0 to `last`, and the distance to consensus after each relative to the start, when all mix
    at once.

    The matrix is applied directly, or its powers if there are many rounds; its eigenvalues are not used.
    """
    step = max(1, math.ceil(last / POINTS))
    stride = np.linalg.matrix_power(matrix, step)
    x: Array = np.random.default_rng(0).normal(size=len(matrix))
    x -= x.mean()
    first = float(np.linalg.norm(x))
    distances = [1.0]
    for _ in range(math.ceil(last / step)):
        x = stride @ x
        # rounding brings back a trace of the mean, which a matrix power never removes again
        x -= x.mean()
        distances.append(max(float(np.linalg.norm(x)) / first, FLOOR))
    return np.arange(len(distances), dtype=np.float64) * step, np.array(distances, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class PointLayout:
    """Positions of nodes. `points` has shape (nodes, 2). `period` is the width and height after which the picture
    repeats, if it wraps around.
    """

    points: Points
    period: tuple[float, float] | None = None


def layout(topology: Topology) -> PointLayout:
    """Return positions for a connected graph of at most a few thousand nodes; deterministic."""
    known = _of_family(topology)
    if known is not None:
        return known
    if is_circulant_in_order(topology):
        return PointLayout(_circle(topology.nodes))
    if topology.edge_count == topology.nodes - 1 and topology.degrees.max() == 2:
        return PointLayout(_open_circle(topology))
    return PointLayout(_by_springs(topology))


def is_circulant_in_order(topology: Topology) -> bool:
    """True if the graph is circulant in the order of its numbers."""
    turned = ordered((topology.ends + 1) % topology.nodes)
    return topology.edge_count > 0 and np.array_equal(turned, topology.ends)


COLORS = "PRGn"
"""Purple to green, which nobody confuses with each other or with the color of the cut."""
WIDTH_POINTS = 350.0
NUMBER_POINTS = 14.0
"""The minimum width of a node that has room for its number."""
NAMED_LIMIT = 24
RASTER_EDGES = 5_000
"""Above this many edges, they are drawn as pixels even in a vector picture, or no program could open it."""


def draw_network(axes: Any, topology: Topology, vector: Array, side: NDArray[np.bool_]) -> None:
    """Draw the graph. `vector` is the Fiedler vector, which colors the nodes; `side` marks the nodes on one side of the
    cut. Shapes (nodes,).
    """
    placed = layout(topology)
    crossing = side[topology.ends[:, 0]] != side[topology.ends[:, 1]]
    faint = float(np.clip(60 / np.sqrt(topology.edge_count + 1), 0.12, 0.9))
    thin = float(np.clip(14 / np.sqrt(topology.nodes), 0.4, 1.6))
    _lines(axes, placed, topology.ends[~crossing], color="#888888", linewidths=thin, alpha=faint)
    _lines(axes, placed, topology.ends[crossing], color=RED, linewidths=1.6 * thin, alpha=max(faint, 0.35))
    _nodes(axes, topology, placed.points, vector, side)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)
    axes.axis("off")


def _analyzed(topology: Topology, weights: str) -> SingleFigures:
    values, vectors = np.linalg.eigh(Laplacian.plain(topology).dense())
    matrix = mixing_matrix(topology, weights)
    cut = sweep_cut(topology)
    side = np.full(topology.nodes, cut is None)
    side[[] if cut is None else list(cut.side)] = True
    # the matrix is symmetric: with one sample each, `sample-weighted` is metropolis
    rate = float(np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2])
    return SingleFigures(
        topology=topology,
        values=np.maximum(values, 0.0),
        fiedler=_signed(vectors[:, 1]),
        side=side,
        matrix=matrix,
        rate=rate,
        rounds=rounds_to_consensus(rate),
    )


def _signed(vector: Array) -> Array:
    return vector if vector[np.argmax(np.abs(vector))] > 0 else -vector


def _title(figures: SingleFigures) -> str:
    rounds = "never agrees" if figures.rounds is None else f"{counted(figures.rounds, 'round')} to consensus"
    edges = counted(figures.topology.edge_count, "edge")
    return f"{shown(figures.topology.spec)}: {figures.topology.nodes} nodes, {edges}, {rounds}"


def _cut_text(figures: SingleFigures) -> str:
    ends = figures.topology.ends
    crossing = int(np.count_nonzero(figures.side[ends[:, 0]] != figures.side[ends[:, 1]]))
    small = int(np.count_nonzero(figures.side))
    cut = f"thinnest cut found: {counted(crossing, 'edge')} between {small} and {figures.topology.nodes - small} nodes"
    return f"{cut}\ncolor: Fiedler vector"


def _draw_spectrum(axes: Any, figures: SingleFigures) -> None:
    plain(axes)
    values = figures.values
    low = float(values[1])
    axes.plot(np.arange(1, len(values) + 1), values, "o", markersize=3.2 if len(values) < 200 else 1.6, color=BLUE)
    axes.plot([2], [low], "D", markersize=7, color=RED)
    top = float(values[-1]) or 1.0
    axes.set_ylim(-0.06 * top, 1.25 * top)
    alike = int(np.count_nonzero(np.abs(values[1:] - low) <= 1e-9 * top))
    times = f", {alike} times" if alike > 1 and low > 0 else ""
    text = rf"$\lambda_2$ = {low:.4g}{times}"
    axes.text(0.03, 0.97, text, transform=axes.transAxes, ha="left", va="top", color=RED)
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel("eigenvalue", fontsize=9)
    axes.set_xlabel("rank", fontsize=9)
    axes.set_title("Laplacian spectrum", fontsize=10, color=DARK)


def _draw_decay(axes: Any, figures: SingleFigures, weights: str) -> None:
    plain(axes)
    last = max(4, math.ceil(1.25 * figures.rounds)) if figures.rounds is not None else 50
    rounds, distances = decay(figures.matrix, last)
    axes.plot(rounds, np.log10(distances), color=BLUE, linewidth=2.2, label="measured, random start")
    if figures.rate > FLOOR:
        axes.plot(
            [0, last],
            [0, last * math.log10(figures.rate)],
            "--",
            color=RED,
            linewidth=1.4,
            label=f"predicted slope: {rate_text(figures.rate, 4)} per round",
        )
    axes.axhline(math.log10(EPSILON), color="#777777", linewidth=0.9, linestyle=":")
    axes.set_ylim(1.45 * math.log10(EPSILON), -0.6 * math.log10(EPSILON))
    axes.set_xlim(0, last)
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel("log10 disagreement", fontsize=9)
    axes.set_xlabel(f"synchronous rounds, {weights} weights", fontsize=9)
    axes.legend(loc="upper right", frameon=False, fontsize=8)
    axes.set_title("distance to consensus", fontsize=10, color=DARK)


def _of_family(topology: Topology) -> PointLayout | None:
    """Return the family's layout, but only if the graph certainly matches its spec, which a file may merely claim."""
    request = _request(topology)
    if request is None:
        return None
    name = request.spec.partition(":")[0].strip()
    match name:
        case "torus" | "grid" if len(shape := sides(name, request)) == 2:
            node = np.arange(topology.nodes)
            points = np.stack([node % shape[1], -(node // shape[1])], axis=1).astype(np.float64)
            return PointLayout(points, (float(shape[1]), float(shape[0])) if name == "torus" else None)
        case "geometric":
            return PointLayout(places(request), (1.0, 1.0) if request["metric"] == "torus" else None)
        case "watts-strogatz":
            return PointLayout(_circle(topology.nodes))
        case _:
            return None


def _request(topology: Topology) -> GraphRequest | None:
    if is_file(topology.spec):
        return None
    try:
        if build(topology.spec, topology.nodes, topology.seed) != topology:
            return None
        parameters = parse(topology.spec).parameters
    except TopologyError:
        return None
    return GraphRequest(spec=topology.spec, nodes=topology.nodes, parameters=parameters, seed=topology.seed)


def _circle(nodes: int) -> Points:
    angle = np.pi / 2 - 2 * np.pi * np.arange(nodes) / nodes
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _open_circle(topology: Topology) -> Points:
    """Place a path on an open circle, since there is no room for its nodes on a line."""
    along = hops(topology, int(np.argmin(topology.degrees)))
    return _circle(topology.nodes + 1)[along]


def _by_springs(topology: Topology) -> Points:
    """Place nodes by springs, the longer side across, from a start without folds: the eigenvectors of the two smallest
    positive eigenvalues (Hall, 1970).
    """
    import networkx as nx  # noqa: PLC0415 - a quarter of a second that only pictures need

    nodes = topology.nodes
    vectors = np.linalg.eigh(Laplacian.plain(topology).dense())[1]
    start = np.stack([vectors[:, 1], vectors[:, min(2, nodes - 1)]], axis=1)
    # nodes that look alike would share one spot and never separate
    start += np.random.default_rng(0).normal(scale=0.02 / np.sqrt(nodes), size=start.shape)
    graph, places = topology.to_networkx(), dict(enumerate(start))
    if nodes <= STRESS_LIMIT and find_spec("scipy") is not None:  # it is in another extra than matplotlib
        settled = nx.kamada_kawai_layout(graph, pos=places)
    else:
        turns = int(np.clip(20_000 // nodes, 10, 100))  # the time per step grows with the square of the nodes
        settled = nx.spring_layout(graph, pos=places, iterations=turns, seed=0, method="force")
    points = np.array([settled[node] for node in range(nodes)])
    points -= points.mean(axis=0)
    return np.asarray(points @ np.linalg.svd(points, full_matrices=False)[2].T)


def _lines(axes: Any, placed: PointLayout, ends: Ends, **style: Any) -> None:
    from matplotlib.collections import LineCollection  # noqa: PLC0415 - an extra

    segments = list(_segments(placed, ends))
    axes.add_collection(LineCollection(segments, rasterized=len(ends) > RASTER_EDGES, zorder=1, **style))


def _segments(placed: PointLayout, ends: Ends) -> NDArray[np.float64]:
    """Return segments, shape (segments, 2, 2). An edge that wraps around becomes two stubs that leave the picture on
    opposite sides.
    """
    a, b = placed.points[ends[:, 0]], placed.points[ends[:, 1]]
    if placed.period is None:
        return np.stack([a, b], axis=1)
    period = np.array(placed.period)
    shift = np.where(np.abs(b - a) > period / 2, np.sign(b - a) * period, 0.0)
    around = shift.any(axis=1)
    far_b, far_a = b[around] - shift[around], a[around] + shift[around]
    stubs = [
        np.stack([a[around], (a[around] + far_b) / 2], axis=1),
        np.stack([b[around], (b[around] + far_a) / 2], axis=1),
    ]
    return np.concatenate([np.stack([a[~around], b[~around]], axis=1), *stubs])


def _nodes(axes: Any, topology: Topology, points: NDArray[np.float64], vector: Array, side: NDArray[np.bool_]) -> None:
    """Draw nodes; the two sides of the cut differ by shape too, not by color alone."""
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
    """Return the marker width, in points of 1/72 inch, at which most nodes do not touch."""
    steps = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(steps, np.inf)
    near = float(np.quantile(steps.min(axis=1), 0.2))
    extent = float(np.ptp(points, axis=0).max()) or 1.0
    return float(np.clip(0.85 * near / extent * WIDTH_POINTS, 3.0, 20.0))
