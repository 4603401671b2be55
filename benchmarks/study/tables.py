"""The tables of docs/explanation/study.md in Markdown, and the page that contains them.

Each table is between two comments with its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from pictures import SLOW_NAMES, server_of_slow
from results import (
    DIGITS,
    PARTITIONS,
    POOLED,
    POOLED_LONG,
    SETTINGS,
    Contender,
    Curve,
    Over,
    Results,
    Run,
    Setting,
    contenders,
    final,
    worst,
)

TARGETS = (0.8, 0.9, 0.95)
SIXTEEN = "dirichlet:0.1"
NEVER, UNKNOWN = "never", ""


def write_tables(results: Results, folder: Path, page: Path | None) -> None:
    """Write every table that has runs to its own file, and tables that have a place on the page there."""
    tables = {name: "\n".join(lines) for name, lines in every_table(results).items() if len(lines) > 2}
    place = folder / "tables"
    place.mkdir(exist_ok=True)
    for name, text in tables.items():
        (place / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    if page is not None:
        page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")


def filled(text: str, tables: dict[str, str]) -> str:
    """Return the page with each table put between its two comments; a place without runs is left unchanged."""

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        return match[0] if name not in tables else f"<!-- table {name} -->\n{tables[name]}\n<!-- end {name} -->"

    return re.sub(r"<!-- table (?P<name>[\w-]+) -->\n.*?<!-- end (?P=name) -->", put, text, flags=re.DOTALL)


def every_table(results: Results) -> dict[str, list[str]]:
    """Make all tables: at the end the mean / worst node; until a target a node's rounds, bytes and time."""
    tables = {}
    for name, setting in SETTINGS.items():
        tables[f"{name}-end"] = by_contender(results, setting, lambda rival: pair(rival.mean, rival.worst))
        tables[f"{name}-until"] = by_contender(results, setting, lambda rival, to=setting.target: cost(rival, to))
    return tables | {
        "methods": methods_table(results),
        "sixteen": sixteen_table(results),
        "slow": slow_table(results),
    }


def cost(contender: Contender, target: float) -> str:
    if contender.curve is None:
        return UNKNOWN
    rounds, sent, time = (contender.until(target, over) for over in ("rounds", "bytes", "time"))
    if rounds is None or sent is None or time is None:
        return NEVER
    return f"{rounds.mean:.0f} rounds, {sent.mean / 1e3:,.0f} kB, {time.mean:,.1f} s"


def by_contender(results: Results, setting: Setting, cell: Callable[[Contender], str]) -> list[str]:
    splits = setting.partitions(results)
    every = {split: {rival.name: rival for rival in contenders(results, setting, split)} for split in splits}
    names = dict.fromkeys(name for rivals in every.values() for name in rivals)
    rows = [[name, *(cell(every[split][name]) if name in every[split] else "" for split in splits)] for name in names]
    kept = [row for row in rows if any(row[1:])]
    return table(["", *(PARTITIONS[split] for split in splits)], kept)


def methods_table(results: Results) -> list[str]:
    splits = [split for split in PARTITIONS if split in results.values("methods", "partition")]
    rows = []
    for name in results.values("methods", "method"):
        groups = [results.where("methods", method=name, partition=split) for split in splits]
        if any(groups):
            rows.append([f"`{name.removesuffix('.0')}`", *(both(runs) for runs in groups)])
    return table(["method", *(PARTITIONS[split] for split in splits)], rows)


def sixteen_table(results: Results) -> list[str]:
    """Make the table of accuracy on the common test set and on a node's own data, and of bytes."""
    rows = [
        [rival.name, "", pair(rival.mean, rival.worst), "", "", ""]
        for rival in contenders(results, DIGITS, SIXTEEN)
        if rival.name in {POOLED, POOLED_LONG}
    ]
    for method in results.values("sixteen", "method"):
        plain = Over.of(map(bytes_of, results.where("sixteen", method=method, compressor="none")))
        for compressor in results.values("sixteen", "compressor"):
            runs = results.where("sixteen", method=method, compressor=compressor)
            local, sent = [run.report.local_accuracy for run in runs], Over.of(map(bytes_of, runs))
            if sent is not None:
                own = pair(Over.of(row and row.mean for row in local), Over.of(row and row.min for row in local))
                share = "" if plain is None else f"{sent.mean / plain.mean:.3f}"
                rows.append([f"`{method}`", f"`{compressor}`", both(runs), own, f"{sent.mean / 1e3:,.0f}", share])
    head = ["method", "compressor", "test, mean / worst node", "own data, mean / worst", "kB a node", "of `none`"]
    return table(head, rows)


def bytes_of(run: Run) -> float:
    """Return the average number of bytes sent by a node."""
    return (run.report.bytes_sent or 0) / run.nodes


def slow_table(results: Results) -> list[str]:
    """Make the table of virtual seconds until each target."""
    rows = []
    for split in (split for split in PARTITIONS if split in results.values("slow", "partition")):
        named = {
            name: [run.curve("time") for run in results.where("slow", partition=split, world=world)]
            for world, name in SLOW_NAMES.items()
        }
        named["a server in synchronous rounds"] = server_of_slow(results, split)
        for name, curves in named.items():
            rows.append([PARTITIONS[split], name, *(_seconds(curves, target) for target in TARGETS)])
    return table(["split", "who", *(f"until {three(target)}" for target in TARGETS)], rows)


def _seconds(curves: Sequence[Curve], target: float) -> str:
    until = Over.of(curve.first(target) for curve in curves)
    return NEVER if until is None else f"{until.mean:.1f} s"


def both(runs: Sequence[Run]) -> str:
    return pair(Over.of(map(final, runs)), Over.of(map(worst, runs)))


def pair(mean: Over | None, least: Over | None) -> str:
    """Write mean / worst node, and (worst seed to best seed) of the mean; equal figures are written once."""
    if mean is None:
        return UNKNOWN
    words = three(mean.mean)
    if least is not None and least.mean < mean.mean and three(least.mean) != words:
        words += f" / {three(least.mean)}"
    return words if three(mean.low) == three(mean.high) else f"{words} ({three(mean.low)} to {three(mean.high)})"


def three(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
