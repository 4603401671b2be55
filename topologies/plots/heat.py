"""Many graphs in one picture: rounds to consensus for each topology at each number of nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topologies.building import build, build_schedule, is_static, kind
from topologies.errors import TopologyError
from topologies.files.content import is_file
from topologies.metrics.describe import describe_schedule
from topologies.plots import DARK, check_target, new_figure, save, shown
from topologies.spectral import EPSILON, check_weights, rounds_to_consensus, spectrum

COLORS = "cividis_r"
CELLS_LIMIT = 600
NEVER = "∞"
NONE = "–"


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A cell. `rounds` is None if nodes never agree, as `text` says, or if there is no such graph, for a `reason`."""

    rounds: int | None
    text: str
    reason: TopologyError | None = None


def draw_heat(
    specs: Sequence[str],
    sizes: Sequence[int],
    path: Path,
    *,
    seed: int = 0,
    weights: str | None = None,
    epsilon: float = EPSILON,
) -> list[str]:
    """Write the picture. Returns the reason for each missing graph: a torus with a prime number of nodes, ...

    Raises TopologyError for an unknown family, a file, a family without a graph of any of these sizes, too many of
    them, or a picture that cannot be written.
    """
    check_target(path)
    if weights is not None:
        check_weights(weights)
    for spec in specs:
        if is_file(spec):
            raise TopologyError("a file has one size", key="source", value=spec, allowed="families, or one file alone")
        kind(spec)
    if len(specs) * len(sizes) > CELLS_LIMIT:
        raise TopologyError(
            "too many cells", key="nodes", value=len(specs) * len(sizes), allowed=f"up to {CELLS_LIMIT}"
        )
    rows = [[_cell(spec, nodes, seed, weights, epsilon) for nodes in sizes] for spec in specs]
    for row in rows:
        if all(cell.reason for cell in row):
            raise row[0].reason or TopologyError("no such graph")
    figure = _figure(specs, sizes, rows, epsilon)
    save(figure, path)
    return [
        f"{spec} on {nodes} nodes: {cell.reason}"
        for spec, row in zip(specs, rows, strict=True)
        for nodes, cell in zip(sizes, row, strict=True)
        if cell.reason
    ]


def _rounds(spec: str, nodes: int, seed: int, weights: str | None, epsilon: float) -> int | None:
    if not is_static(spec):
        found: int | None = describe_schedule(build_schedule(spec, nodes, seed), epsilon)["rounds_to_consensus"]
        return found
    topology = build(spec, nodes, seed)
    return rounds_to_consensus(spectrum(topology, weights).mixing_rate, epsilon) if nodes > 1 else 0


def _cell(spec: str, nodes: int, seed: int, weights: str | None, epsilon: float) -> HeatCell:
    try:
        rounds = _rounds(spec, nodes, seed, weights, epsilon)
    except TopologyError as error:
        return HeatCell(None, NONE, error)
    return HeatCell(rounds, NEVER if rounds is None else short(rounds))


def short(count: int) -> str:
    """Write a number with at most four digits: 9,999, 12k, 3.4M, 120M."""
    if count < 10_000:
        return f"{count:,}"
    thousands = round(count / 1e3)
    if thousands < 1_000:
        return f"{thousands}k"
    millions = count / 1e6
    return f"{millions:.1f}M" if millions < 9.95 else f"{millions:,.0f}M"


def _figure(specs: Sequence[str], sizes: Sequence[int], rows: list[list[HeatCell]], epsilon: float) -> Any:
    from matplotlib import colormaps  # noqa: PLC0415 - slow to import, and an extra
    from matplotlib.colors import LogNorm  # noqa: PLC0415 - as above

    rounds = [[cell.rounds or math.nan for cell in row] for row in rows]
    known = [cell.rounds for row in rows for cell in row if cell.rounds]
    norm = LogNorm(max(1, min(known, default=1)), max(10, *known, 10) if known else 10)
    names = [shown(spec, 44) for spec in specs]
    width = 1.6 + 0.078 * max(map(len, names)) + 0.72 * len(sizes)
    figure = new_figure(max(5.0, width), 1.5 + 0.36 * len(specs))
    axes = figure.add_subplot()
    colors = colormaps[COLORS].with_extremes(bad="#eeeeee")
    image = axes.imshow(np.ma.masked_invalid(rounds), cmap=colors, norm=norm, aspect="auto")
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            light = cell.rounds is None or norm(cell.rounds) < 0.38
            axes.text(column, row, cell.text, ha="center", va="center", fontsize=9, color=DARK if light else "white")
    axes.set_xticks(
        range(len(sizes)), [f"{nodes:,}" if nodes < 10_000 else short(nodes) for nodes in sizes], fontsize=9
    )
    axes.set_yticks(range(len(specs)), names, fontsize=9)
    axes.set_xlabel(f"nodes   ({NEVER} never, {NONE} none)", fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(0.5, len(sizes) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(specs) - 1), minor=True)
    axes.grid(visible=True, which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    axes.set_title(f"rounds until the distance to consensus is {epsilon:g} of what it was", fontsize=10, color=DARK)
    figure.colorbar(image, ax=axes, label="rounds", pad=0.02)
    return figure
