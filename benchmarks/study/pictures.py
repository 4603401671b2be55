"""The pictures of docs/explanation/study.md, each from the parts that were run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from results import (
    DIGITS,
    MNIST,
    MNIST_GRAPHS,
    PARTITIONS,
    SERVER,
    SQUEEZED,
    Contender,
    Curve,
    Over,
    Results,
    Setting,
    contenders,
    final,
)

from topologies.plots import new_figure, save

COLORS = {
    SERVER: "#000000",
    SQUEEZED: "#7f3c8d",
    "complete": "#999999",
    "exponential": "#0072b2",
    "6-regular": "#009e73",
    "torus": "#56b4e9",
    "ring": "#d55e00",
    "Base-2": "#cc79a7",
}
AXES = {"rounds": "rounds of a node, mean", "bytes": "sent, kB a node", "time": "virtual seconds"}
SCALE = {"rounds": 1.0, "bytes": 1e-3, "time": 1.0}
GRID = 60
CLOSE = 0.1
"""Values farther than this from the best accuracy share one color; contenders that learn alone would use up all
others.
"""
SLOW_NAMES = {"one-slow": "peers, nobody waits", "all-slow": "peers in synchronous rounds"}
SLOW_COLORS = {"one-slow": "#0072b2", "all-slow": "#d55e00"}


def draw_all(results: Results, folder: Path) -> None:
    for name, figure in (
        ("study-who-wins.png", who_wins(results, DIGITS)),
        ("study-digits.png", over_everything(results, DIGITS)),
        ("study-methods.png", methods(results)),
        ("study-slow.png", slow(results)),
        ("study-mnist.png", over_everything(results, MNIST)),
        ("study-mnist-graphs.png", over_everything(results, MNIST_GRAPHS)),
    ):
        if figure is not None:
            save(figure, folder / name)


def who_wins(results: Results, setting: Setting) -> Any:
    """Draw three fields with a row per contender and a column per split: the greener, the better within its column."""
    splits = setting.partitions(results)
    every = {split: contenders(results, setting, split) for split in splits}
    names = list(dict.fromkeys(rival.name for rivals in every.values() for rival in rivals))
    if not names:
        return None
    figure = new_figure(3.2 + 2.9 * len(splits), 1.3 + 0.36 * len(names))
    panels = figure.subplots(1, 3, sharey=True)
    target = f"{setting.target:g}".lstrip("0")
    fields = (
        ("accuracy in the end, mean of the nodes", lambda rival: rival.mean, 1.0, ".3f", True),
        (f"kB a node until {target}", lambda rival: rival.until(setting.target, "bytes"), 1e-3, ".0f", False),
        (f"virtual seconds until {target}", lambda rival: rival.until(setting.target, "time"), 1.0, ".1f", False),
    )
    for axes, (title, measure, scale, shape, higher) in zip(panels, fields, strict=True):
        values = np.array(
            [[_mean(every[split], name, measure) * scale for split in splits] for name in names], dtype=float
        )
        _field(axes, values, shape, higher=higher)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(splits)), [PARTITIONS[split] for split in splits], fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
    figure.suptitle(
        f"{setting.title}, speeds up to tenfold apart: bold is best of its column, – never or none", fontsize=10
    )
    return figure


def over_everything(results: Results, setting: Setting) -> Any:
    """Draw a row per split: accuracy over rounds, bytes and time. A band extends from the worst seed to the best."""
    splits = setting.partitions(results)
    if not splits:
        return None
    figure = new_figure(10.5, 0.9 + 2.1 * len(splits))
    rows = figure.subplots(len(splits), 3, squeeze=False)
    for axes, split in zip(rows, splits, strict=True):
        rivals = contenders(results, setting, split)
        for panel, over in zip(axes, AXES, strict=True):
            for rival in rivals:
                if rival.curve is not None:
                    curves = [rival.curve(run, over) for run in rival.runs]
                    moved = [Curve([x * SCALE[over] for x in curve.x], curve.y) for curve in curves]
                    _band(panel, moved, COLORS[rival.name], rival.name)
            pooled = rivals[0].mean
            if pooled is not None:
                panel.axhline(pooled.mean, color="#555555", linestyle=":", linewidth=1, label=rivals[0].name)
            if over != "rounds":
                _logarithmic(panel)
            panel.grid(visible=True, color="#dddddd", linewidth=0.5)
        axes[0].set_ylabel(f"{PARTITIONS[split]}\naccuracy", fontsize=9)
    for panel, over in zip(rows[-1], AXES, strict=True):
        panel.set_xlabel(AXES[over], fontsize=9)
    rows[0][0].legend(fontsize=6.5, loc="lower right")
    figure.suptitle(f"{setting.title}, speeds up to tenfold apart: mean of the nodes; band: seeds", fontsize=10)
    return figure


def methods(results: Results) -> Any:
    """Draw every method's final accuracy: a dot per seed, a panel per split."""
    splits = [split for split in PARTITIONS if split in results.values("methods", "partition")]
    names = results.values("methods", "method")
    if not splits:
        return None
    figure = new_figure(2.2 + 2.4 * len(splits), 1.2 + 0.3 * len(names))
    for panel, split in zip(figure.subplots(1, len(splits), sharey=True, squeeze=False)[0], splits, strict=True):
        for row, name in enumerate(names):
            runs = results.where("methods", partition=split, method=name)
            values = [value for value in map(final, runs) if value is not None]
            panel.plot(values, [row] * len(values), "o", color="#56b4e9", markersize=4)
            panel.plot([np.mean(values)] if values else [], [row] if values else [], "|", color="black", markersize=12)
        panel.set_title(PARTITIONS[split], fontsize=9)
        panel.set_xlabel("accuracy", fontsize=8)
        panel.grid(visible=True, axis="x", color="#dddddd", linewidth=0.5)
        panel.set_yticks(range(len(names)), [name.removesuffix(".0") for name in names], fontsize=8)
        panel.set_ylim(len(names) - 0.5, -0.5)
    figure.suptitle("16 nodes, 4-regular, speeds up to tenfold apart", fontsize=10)
    return figure


def slow(results: Results) -> Any:
    """Draw accuracy over time with one node ten times slower, compared with synchronous rounds."""
    splits = [split for split in PARTITIONS if split in results.values("slow", "partition")]
    if not splits:
        return None
    figure = new_figure(1.0 + 4.4 * len(splits), 3.2)
    for panel, split in zip(figure.subplots(1, len(splits), sharey=True, squeeze=False)[0], splits, strict=True):
        for world, name in SLOW_NAMES.items():
            runs = results.where("slow", partition=split, world=world)
            _band(panel, [run.curve("time") for run in runs], SLOW_COLORS[world], name)
        _band(panel, server_of_slow(results, split), COLORS[SERVER], SERVER)
        panel.set_title(PARTITIONS[split], fontsize=9)
        panel.set_xlabel("virtual seconds", fontsize=8)
        panel.grid(visible=True, color="#dddddd", linewidth=0.5)
        panel.legend(fontsize=7, loc="lower right")
    figure.suptitle("one of 16 nodes ten times slower: mean accuracy", fontsize=10)
    return figure


def server_of_slow(results: Results, partition: str) -> list[Curve]:
    """Return a server's curves over the time that its rounds would take with that slow node."""
    slowest = [run.slowest_s for run in results.where("slow", partition=partition)]
    references = results.where("references", partition=partition)
    return [run.server("time", max(slowest)) for run in references] if slowest else []


def _mean(rivals: Sequence[Contender], name: str, measure: Callable[[Contender], Over | None]) -> float:
    known = [over for rival in rivals if rival.name == name and (over := measure(rival)) is not None]
    return known[0].mean if known else np.nan


def _field(axes: Any, values: Any, shape: str, *, higher: bool) -> None:
    """Draw a color for each value by its position between the worst and the best in its column, with the value as
    text.
    """
    known = np.isfinite(values)
    low = np.where(known, values, np.inf).min(axis=0)
    high = np.where(known, values, -np.inf).max(axis=0)
    if higher:
        low = np.maximum(low, high - CLOSE)
    share = np.clip((values - low) / np.where(high > low, high - low, 1.0), 0, 1)
    axes.imshow(share if higher else 1 - share, cmap="YlGn", aspect="auto", vmin=-0.1, vmax=1.6)
    best = high if higher else low
    for (row, column), value in np.ndenumerate(values):
        text = format(value, shape) if known[row, column] else "–"
        weight = "bold" if text == format(best[column], shape) else "normal"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, fontweight=weight)
    axes.tick_params(length=0)


def _logarithmic(panel: Any) -> None:
    """Label the scale with plain numbers, few enough not to overlap."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415 - only to draw

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.tick_params(axis="x", labelsize=7.5)


def _band(panel: Any, curves: Sequence[Curve], color: str, name: str) -> None:
    """Draw the mean over seeds, from where all have begun to where the first ends.

    The start is left out, which a logarithmic scale cannot show.
    """
    points = [[(x, y) for x, y in zip(curve.x, curve.y, strict=True) if x > 0] for curve in curves]
    known = [Curve(*zip(*moved, strict=True)) for moved in points if moved]
    if not known:
        return
    low, high = max(curve.x[0] for curve in known), min(curve.x[-1] for curve in known)
    grid = np.geomspace(low, max(high, low), GRID)
    every = np.array([np.interp(grid, curve.x, curve.y) for curve in known])
    panel.plot(grid, every.mean(axis=0), color=color, linewidth=1.3, label=name)
    panel.fill_between(grid, every.min(axis=0), every.max(axis=0), color=color, alpha=0.18, linewidth=0)
