"""Sweeps of rules and attacks in Markdown: a summary by worst attack, then every rule against every attack.

Run `python benchmarks/robust/tables.py TITLE=FOLDER ...`, where FOLDER has the results of a sweep; several folders,
separated by commas, become one table. A cell has the honest nodes' mean, the worst of them and a backdoor's share.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

NOBODY = "none"
DIGITS = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """The mean over `seeds` of the honest nodes' mean accuracy (r2 of a regression), of the worst honest node's, and of
    the share of images with a backdoor's trigger that get the attacker's class.
    """

    mean: float
    least: float
    seeds: int
    backdoor: float | None

    def __str__(self) -> str:
        backdoor = "" if self.backdoor is None else f" ({three(self.backdoor)})"
        return f"{three(self.mean)} / {three(self.least)}{backdoor}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """The cells of a sweep, by attack and by the rule's name without its `b`."""

    title: str
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]

    def attacked(self, rule: str) -> dict[str, Cell]:
        """Return a rule's cells by attack, but only the ones that have been run."""
        return {attack: cell for (name, attack), cell in self.cells.items() if name == rule and attack != NOBODY}

    @property
    def most(self) -> int:
        """Return the largest number of attacks on a rule."""
        return max((len(self.attacked(rule)) for rule in self.rules), default=0)

    @property
    def seeds(self) -> str:
        counts = sorted({cell.seeds for cell in self.cells.values()})
        return " to ".join(str(count) for count in ([counts[0], counts[-1]] if len(counts) > 1 else counts))


def three(value: float) -> str:
    return f"{value:.{DIGITS}f}".removeprefix("0")


def read(title: str, folders: Sequence[Path]) -> Sweep:
    cells: dict[tuple[str, str], Cell] = {}
    rules: list[str] = []
    attacks: list[str] = []
    for folder in folders:
        for row in json.loads((folder / "results.json").read_text())["rows"]:
            rule, attack = re.sub(r":b=\d+$", "", row["values"]["rule"]), row["values"]["attack"]
            rules.append(rule)
            attacks.append(attack)
            cell = _cell(row["metrics"])
            if cell is not None:
                cells[rule, attack] = cell
    return Sweep(title, tuple(dict.fromkeys(rules)), tuple(dict.fromkeys(attacks)), cells)


def _cell(metrics: dict[str, Any]) -> Cell | None:
    mean, least = (metrics.get(f"accuracy_{which}") or metrics.get(f"r2_{which}") for which in ("mean", "worst"))
    if not mean or not least:
        return None
    backdoor = metrics.get("attack_success")
    return Cell(mean["mean"], least["mean"], mean["count"], backdoor and backdoor["mean"])


def summary(sweeps: Sequence[Sweep]) -> list[str]:
    """Summarize by the worst attack, which is named; for a rule with fewer attacks than others, show their number."""
    rules = dict.fromkeys(rule for sweep in sweeps for rule in sweep.rules)
    return table(
        ["rule", *(sweep.title for sweep in sweeps)],
        [[rule, *(_summed(sweep, rule) for sweep in sweeps)] for rule in rules],
    )


def _summed(sweep: Sweep, rule: str) -> str:
    known = sweep.attacked(rule)
    if not known:
        return ""
    worst = min(known, key=lambda attack: known[attack].mean)
    fewer = "" if len(known) == sweep.most else f" of {len(known)}"
    return f"{known[worst]} ({worst}{fewer})"


def details(sweep: Sweep) -> list[str]:
    rows = []
    for rule in sweep.rules:
        means = [cell.mean for cell in sweep.attacked(rule).values()]
        ends = [three(min(means)), three(fmean(means))] if 0 < len(means) == sweep.most else ["", ""]
        rows.append([rule, *(str(sweep.cells.get((rule, attack), "")) for attack in sweep.attacks), *ends])
    names = ["no attack" if attack == NOBODY else attack for attack in sweep.attacks]
    return table(["rule", *names, "worst", "mean"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="sweeps of rules and attacks as Markdown")
    parser.add_argument("sweeps", nargs="+", metavar="TITLE=FOLDER")
    given = [text.partition("=") for text in parser.parse_args().sweeps]
    sweeps = [read(title, [Path(folder) for folder in folders.split(",")]) for title, _, folders in given]
    print("\n".join(summary(sweeps)))
    for sweep in sweeps:
        head = ["", f"### {sweep.title}; seeds: {sweep.seeds}", ""]
        print("\n".join([*head, *details(sweep)]))


if __name__ == "__main__":
    main()
