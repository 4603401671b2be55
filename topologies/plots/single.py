"""One graph in one picture: the graph and its thinnest cut, its spectrum, and how fast it agrees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.graph import Topology, components
from topologies.laplacian import Array, Laplacian
from topologies.metrics.cuts import sweep_cut
from topologies.plots import BLUE, DARK, RED, check_target, counted, new_figure, plain, save, shown
from topologies.plots.layout import draw_network
from topologies.spectral import EPSILON, check_weights, mixing_matrix, rate_text, rounds_to_consensus

NODES_LIMIT = 2_000
EDGES_LIMIT = 200_000
POINTS = 120
"""Rounds that are looked at; between them the matrix is raised to a power."""
FLOOR = 1e-15
"""Below this of the first distance there is only rounding."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """`values`: the Laplacian's, ascending. `side`: one side of the thinnest cut that was found, or of a graph in parts
    all but the largest part. `rate`: the second largest modulus of the mixing `matrix`.
    """

    topology: Topology
    parts: int
    values: Array
    fiedler: Array
    side: NDArray[np.bool_]
    matrix: Array
    rate: float
    rounds: int | None


def check_size(nodes: int) -> None:
    if not 2 <= nodes <= NODES_LIMIT:
        raise TopologyError("no such picture", key="nodes", value=nodes, allowed=f"from 2 to {NODES_LIMIT} nodes")


def draw_single(topology: Topology, path: Path, weights: str = "metropolis", epsilon: float = EPSILON) -> None:
    """Write the picture. Raises TopologyError: too many nodes or edges to draw, or the file cannot be written."""
    check_target(path)
    check_size(topology.nodes)
    if topology.edge_count > EDGES_LIMIT:
        allowed = f"up to {EDGES_LIMIT} edges in a picture"
        raise TopologyError("too dense to draw", key="edges", value=topology.edge_count, allowed=allowed)
    drawn = _analyzed(topology, weights, epsilon)
    figure = new_figure(9.6, 5.2)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.35, 1.0))
    network = figure.add_subplot(grid[:, 0])
    draw_network(network, topology, drawn.fiedler, drawn.side)
    network.set_title(_cut_text(drawn), fontsize=10, color=DARK)
    _draw_spectrum(figure.add_subplot(grid[0, 1]), drawn)
    _draw_decay(figure.add_subplot(grid[1, 1]), drawn, weights, epsilon)
    figure.suptitle(_title(drawn), fontsize=12)
    save(figure, path)


def _analyzed(topology: Topology, weights: str, epsilon: float) -> Drawn:
    check_weights(weights)
    values, vectors = np.linalg.eigh(Laplacian.plain(topology).dense())
    matrix = mixing_matrix(topology, weights)
    parts = components(topology)
    side = _side(topology, parts)
    # the matrix is symmetric: with one sample each, `sample-weighted` is metropolis
    rate = float(np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2]) if len(parts) == 1 else 1.0
    return Drawn(
        topology=topology,
        parts=len(parts),
        values=np.maximum(values, 0.0),
        fiedler=_signed(vectors[:, 1]) if len(parts) == 1 else np.where(side, 1.0, -1.0),
        side=side,
        matrix=matrix,
        rate=rate,
        rounds=rounds_to_consensus(rate, epsilon),
    )


def _side(topology: Topology, parts: list[list[int]]) -> NDArray[np.bool_]:
    """Shape (nodes,)."""
    cut = sweep_cut(topology) if len(parts) == 1 else None
    side = np.full(topology.nodes, cut is None)
    side[max(parts, key=len) if cut is None else list(cut.side)] = cut is not None
    return side


def _signed(vector: Array) -> Array:
    return vector if vector[np.argmax(np.abs(vector))] > 0 else -vector


def _title(drawn: Drawn) -> str:
    rounds = "never agrees" if drawn.rounds is None else f"{counted(drawn.rounds, 'round')} to consensus"
    edges = counted(drawn.topology.edge_count, "edge")
    return f"{shown(drawn.topology.spec)}: {drawn.topology.nodes} nodes, {edges}, {rounds}"


def _cut_text(drawn: Drawn) -> str:
    if drawn.parts > 1:
        return f"{drawn.parts} parts, circles: the largest"
    ends = drawn.topology.ends
    crossing = int(np.count_nonzero(drawn.side[ends[:, 0]] != drawn.side[ends[:, 1]]))
    small = int(np.count_nonzero(drawn.side))
    cut = f"thinnest cut found: {counted(crossing, 'edge')} between {small} and {drawn.topology.nodes - small} nodes"
    return f"{cut}\ncolor: Fiedler vector"


def _draw_spectrum(axes: Any, drawn: Drawn) -> None:
    plain(axes)
    values = drawn.values
    low = float(values[1]) if drawn.parts == 1 else 0.0
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


def _draw_decay(axes: Any, drawn: Drawn, weights: str, epsilon: float) -> None:
    plain(axes)
    last = max(4, math.ceil(1.25 * drawn.rounds)) if drawn.rounds is not None else 50
    rounds, distances = decay(drawn.matrix, last)
    axes.plot(rounds, np.log10(distances), color=BLUE, linewidth=2.2, label="measured, random start")
    if drawn.rate > FLOOR:
        axes.plot(
            [0, last],
            [0, last * math.log10(drawn.rate)],
            "--",
            color=RED,
            linewidth=1.4,
            label=f"predicted slope: {rate_text(drawn.rate, 4)} per round",
        )
    axes.axhline(math.log10(epsilon), color="#777777", linewidth=0.9, linestyle=":")
    axes.set_ylim(1.45 * math.log10(epsilon), -0.6 * math.log10(epsilon))
    axes.set_xlim(0, last)
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel("log10 disagreement", fontsize=9)
    axes.set_xlabel(f"synchronous rounds, {weights} weights", fontsize=9)
    axes.legend(loc="upper right", frameon=False, fontsize=8)
    axes.set_title("distance to consensus", fontsize=10, color=DARK)


def decay(matrix: Array, last: int) -> tuple[Array, Array]:
    """Rounds from 0 to `last`, and the distance to consensus after each over that at the start, when all mix at once.

    The matrix is applied as it is, or its powers where there are many rounds; nothing is taken from its eigenvalues.
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
