"""Print what `run.py` has measured: python benchmarks/rivals/table.py [bench-out/rivals]

Medians of the runs. Seconds: from the start of the command, and from the first local step of any node, until the worst
node's last test reached the target. CPU-seconds, bytes and memory as meter.py counts them, until then. In a simulation
models do not cross a socket, so that bytes there are its own traffic: in brackets. "Lines" are those that a user writes
for the system, between `# typed` and `# end` in its script, comments and blank lines aside, and each command, which
stands there as `# $ command`; the model, its steps, the test and the data are counted for nobody, only calls of them.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).absolute().parent
HEADS = (
    "system",
    "runs",
    "to the target, s",
    "after start, s",
    "CPU-s",
    "MB",
    "peak MB",
    "rounds",
    "lines",
    "worst node",
    "load",
)
HIDDEN = {"nodes", "rounds", "way", "simulated", "threads"}


def literals(path: Path) -> dict[str, Any]:
    """Return the constants at a script's head, without importing it: what it needs is not installed here."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def results(out: Path) -> list[dict[str, Any]]:
    """Read the lines of results.jsonl; the last may be half written."""
    path, lines = out / "results.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def table(lines: list[dict[str, Any]], skipped: Mapping[str, str]) -> str:
    """Return the runs to the target, then those in which a process was killed, then what is missing, as markdown."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        cell = {key: value for key, value in line["cell"].items() if key not in {"repeat", "limit_s"}}
        groups[line["name"], line["label"], json.dumps(cell)].append(line)
    texts, killed = [_row(HEADS), _row("---" for _ in HEADS)], []
    for (name, label, text), runs in sorted(groups.items()):
        cell = json.loads(text)
        (killed if "kill" in cell else texts).append((_killed if "kill" in cell else _arrived)(name, label, cell, runs))
    texts += ["", *killed, *(f"not measured: {name}: {reason}" for name, reason in sorted(skipped.items()))]
    return "\n".join(texts)


def _arrived(name: str, label: str, cell: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    there = [run for run in runs if run["seconds"]]
    pin = re.sub(r"\[.*?\]", "", literals(HERE / f"{name}.py")["PINS"][0]).replace("-e ROOT", "p2pfl")
    title = f"{pin}, {label}: {', '.join(f'{key} {value}' for key, value in cell.items() if key not in HIDDEN)}"
    count = f"{len(there)} of {len(runs)}" if len(there) < len(runs) else f"{len(runs)}"
    used = there or runs

    def middle(key: str, scale: float = 1.0, form: str = ".1f", of: Callable[[Any], Any] = median) -> str:
        values = [run[key] for run in used if run[key] is not None]
        return format(of(values) / scale, form) if values else "-"

    late = f"> {max(run['ran_s'] for run in runs):.0f}"
    seconds = [middle(key) if there else late for key in ("seconds", "learning_s")]
    mb = middle("bytes", 1e6, ".2f")
    figures = [middle("cpu_s"), f"({mb})" if cell.get("simulated") else mb, middle("peak_bytes", 1e6, ".0f")]
    figures += [middle("rounds", form=".0f"), str(typed(HERE / f"{name}.py", label))]
    return _row((title, count, *seconds, *figures, middle("worst", of=min, form=".3f"), middle("load")))


def _killed(name: str, label: str, cell: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    who = "the server" if cell["kill"] == "server" else f"node {cell['kill']}"
    texts = []
    for run in runs:
        others = [count for node, count in run["after"].items() if node != str(cell["kill"])]
        went = f"{sum(count >= 5 for count in others)} of {len(others)} others made five rounds more"
        texts.append(went if run["killed"] is not None else f"{who} was never there to be killed")
    return f"killed, {name}: {label}: {who} after three rounds: {'; '.join(texts)}"


def typed(path: Path, label: str) -> int:
    """Count a user's lines: in parts headed `# typed`, or `# typed for LABEL, ...` where a part is of some cells."""
    count, counting = 0, False
    for line in map(str.strip, path.read_text(encoding="utf-8").splitlines()):
        if line.startswith(("# typed", "# end")):
            labels = line.partition(" for ")[2].split(", ")
            counting = line.startswith("# typed") and (labels == [""] or label in labels)
        elif counting:
            count += line.startswith("# $") or (bool(line) and not line.startswith("#"))
    return count


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table(results(Path(sys.argv[1] if sys.argv[1:] else "bench-out/rivals")), {}))
