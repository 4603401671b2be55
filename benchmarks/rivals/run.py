"""p2pfl beside others: the same rows, model, first weights, batch and target, each system at the best settings found.

Each rival is a script beside this one, which starts with literals: PINS (what pip installs in its own environment,
bench-out/rivals/NAME; the first is the version that must be there), CELLS (settings by name: the best ones found; those
of TASKS come before them, and before these what a cell has in a table of the task's name) and SEARCH (the settings that
were tried, run with --search). Each run is a line of bench-out/rivals/results.jsonl; one that is there is not run
again. A script without CELLS prints a table of its own, which is kept as NAME.md. What cannot be installed or measured
is skipped by name, and the table says so.

The table has medians. Seconds: from the start of the command, and from the first local step of any node, until the
worst node's last test reached the target; CPU-seconds, bytes and memory as meter.py counts them, until then. In a
simulation models do not cross a socket: its own traffic is in brackets. "Lines" are those that a user writes for the
system, between `# typed` and `# end` in its script, and each command, which stands there as `# $ command`; the model,
its steps, the test and the data are counted for nobody, only calls of them.

Usage: python benchmarks/rivals/run.py [NAME...] [--search] [--repeats 3] [--task digits] [--kill] [--table]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).absolute().parent
ROOT = HERE.parents[1]
SPACES = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
SPACES += ["--map-root-user"] if os.geteuid() else []
COMMON = {"task": "digits", "split": "shards:2", "nodes": 8, "batch": 16, "steps": 20, "rate": 0.2, "rounds": 500}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"task": "digits", "target": 0.9},
    "mnist": {"task": "mnist", "target": 0.9, "steps": 100},
    "cifar10": {"task": "cifar10", "target": 0.4, "rate": 0.05, "tested": 500},
}
NOT_MEASURED = {"DisCo": "discojs-node 2.1.1 did not install from npm alone: two of its parts fetch binaries elsewhere"}
QUIET = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
HEAD = "| system | runs | to target, s | after start, s | CPU-s | MB | peak MB | rounds | lines | worst node | load |"
TRIED = ", tried"
HIDDEN = {"nodes", "rounds", "way", "simulated", "threads"}
HEARD: dict[str, Any] = {"capture_output": True, "text": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--search", action="store_true", help="also run the settings that were tried")
    parser.add_argument("--kill", action="store_true", help="instead: kill a node, or the server, and see who goes on")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    parser.add_argument("--picture", type=Path, help="only print the table, and draw its digits there")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--target", type=float, help="default: the task's")
    parser.add_argument("--limit-s", type=float, default=300.0, help="where a cell names none")
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--mnist", type=Path, default=Path("mnist"), help="the folder of its four files")
    parser.add_argument("--cifar10", type=Path, default=Path("cifar10"), help="the folder of benchmarks/cifar.py")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out" / "rivals")
    options = parser.parse_args()
    if options.table or options.picture:
        print(table(options.out, {}))
        draw(options.out, options.picture) if options.picture else None
        return
    every = sorted(path.stem for path in HERE.glob("*.py") if "PINS" in literals(path))
    if unknown := set(options.names) - set(every):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(every)}")
    options.out.mkdir(parents=True, exist_ok=True)
    reasons = {name: namespaces() or install(name, options.out) for name in options.names or every}
    skipped = {name: reason for name, reason in reasons.items() if reason}
    print(*(f"skipped: {name}: {reason}\n" for name, reason in skipped.items()), sep="", end="", flush=True)
    for repeat in range(options.repeats):  # all in turn, so that the machine's load hits all alike
        for name in (each for each in reasons if each not in skipped):
            for label, cell in cells(name, options, repeat):
                measure(name, label, cell, options)
    for name in reasons.keys() - skipped.keys():
        skipped |= {} if "CELLS" in literals(HERE / f"{name}.py") else compare(name, options.out)
    print(table(options.out, skipped))


def namespaces() -> str:
    done = subprocess.run([*SPACES, "ip", "link", "set", "lo", "up"], check=False, **HEARD)
    return f"no network namespaces here, so nothing can be counted: {done.stderr.strip()}" if done.returncode else ""


def install(name: str, out: Path) -> str:
    """Make a rival's environment unless it is there; return why it cannot be used, or nothing."""
    pins, python = literals(HERE / f"{name}.py")["PINS"], out.absolute() / name / "bin" / "python"
    package, _, commit = pins[0].partition("@")
    if commit:  # not from an index: the folder that a variable names
        pins[0] = os.environ.get(package.upper(), "")
        command = ["git", "-C", pins[0] or os.devnull, "rev-parse", "HEAD"]
        if not subprocess.run(command, check=False, **HEARD).stdout.startswith(commit):
            return f"{package.upper()} names no clone of {package} at {commit}"
        pins[0] = f"--editable {pins[0]}"
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        command += [word for each in pins for word in each.replace("ROOT", str(ROOT)).split()]
        done = subprocess.run(command, check=False, **HEARD)
        if done.returncode:
            python.unlink()  # the next run tries again
            return f"{pins[0]} cannot be installed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    package, _, version = pins[0].partition("==")
    ask = f"from importlib.metadata import version; print(version({package.partition('[')[0]!r}))"
    here = subprocess.run([str(python), "-c", ask], check=False, **HEARD).stdout.strip() if version else ""
    return "" if here == version else f"{here or 'nothing'} is installed in {python.parents[1]}, pinned is {pins[0]}"


def cells(name: str, options: argparse.Namespace, repeat: int) -> list[tuple[str, dict[str, Any]]]:
    constants = literals(HERE / f"{name}.py")
    task = TASKS[options.task] | ({"target": options.target} if options.target else {})

    def whole(cell: dict[str, Any]) -> dict[str, Any]:
        of_all = {key: value for key, value in cell.items() if key not in {*TASKS, "repeats"}}
        own: dict[str, Any] = cell.get(options.task, {})
        return COMMON | {"limit_s": options.limit_s, "repeat": repeat} | of_all | task | own

    best = constants.get("CELLS", {}).items()
    every = [(label, whole(cell)) for label, cell in best if repeat < cell.get("repeats", options.repeats)]
    if options.kill:
        victims, real = [1, *constants.get("SERVER", [])], [each for each in every if "simulated" not in each[1]]
        return [(label, cell | {"kill": victim}) for label, cell in real for victim in victims]
    if options.search and not repeat:
        every += [(label + TRIED, whole(cell)) for label, cell in constants.get("SEARCH", [])]
    return every


def measure(name: str, label: str, cell: dict[str, Any], options: argparse.Namespace) -> None:
    if any((line["name"], line["label"], line["cell"]) == (name, label, cell) for line in results(options.out)):
        return
    with tempfile.TemporaryDirectory(prefix=f"rivals-{name}-") as place:
        write_data(Path(place), cell, options)
        environment = surroundings(name, options.out) | {"RIVAL_CELL": json.dumps(cell | {"folder": place})}
        environment["HOME"] = place
        command = [*SPACES, sys.executable, str(HERE / "meter.py"), "python", str(HERE / f"{name}.py")]
        load, done = os.getloadavg()[0], subprocess.run(command, check=False, **HEARD, env=environment)
        output = Path(place, "output.txt")
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        tail = output.read_text(errors="replace")[-2000:] if output.exists() else ""
    line = {"name": name, "label": label, "cell": cell, "load": load, "date": time.strftime("%F")}
    line |= json.loads(done.stdout)
    line |= {} if line["seconds"] or line["killed"] is not None else {"tail": tail}
    with (options.out / "results.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print({each: value for each, value in line.items() if each != "tail"}, line.get("tail", ""), flush=True)


def surroundings(name: str, out: Path) -> dict[str, str]:
    """Return the variables of a script's environment: nothing of this one's but what the machine needs."""
    kept = {each: text for each, text in os.environ.items() if each not in {"PYTHONPATH", "VIRTUAL_ENV"}} | QUIET
    return kept | {"PYTHONPATH": str(HERE), "PATH": f"{out.absolute() / name / 'bin'}:{kept['PATH']}"}


def compare(name: str, out: Path) -> dict[str, str]:
    """Run a script that prints a table of its own, unless it has; return why it could not."""
    kept, command = out / f"{name}.md", ["python", str(HERE / f"{name}.py")]
    if not kept.exists():
        done = subprocess.run(command, check=False, **HEARD, env=surroundings(name, out))
        if done.returncode:
            return {name: (done.stderr.strip().splitlines() or ["no reason given"])[-1]}
        kept.write_text(done.stdout)
    return {}


def write_data(folder: Path, cell: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the arrays that common.py reads: the split and the first weights are p2pfl's own."""
    import torch  # noqa: PLC0415 - two seconds that --help does not need

    from p2pfl.config.model import TaskConfig  # noqa: PLC0415
    from p2pfl.learn.load import load_task  # noqa: PLC0415
    from p2pfl.learn.task import NodeContext  # noqa: PLC0415

    names = {"digits": "digits", "mnist": "mnist-idx", "cifar10": f"{ROOT / 'benchmarks' / 'cifar.py'}:cifar"}
    named = {"partition": cell["split"]} | {key: cell[key] for key in {"tested"} & cell.keys()}
    named |= {} if cell["task"] == "digits" else {"path": str(getattr(options, cell["task"]).absolute())}
    task: Any = load_task(TaskConfig(name=names[cell["task"]], options=named), folder)
    arrays, pairs, test, rows = dict[str, Any](), list[Any](), list[Any](), 0
    for node in range(cell["nodes"]):
        of = {"name": f"node{node}", "seed": cell["repeat"], "base_dir": folder, "options": named}
        pair, test = task.data(NodeContext(node=node, nodes=cell["nodes"], **of))
        arrays[f"rows{node}"], rows = rows + np.arange(len(pair[1])), rows + len(pair[1])
        pairs.append(pair)
    arrays |= {"test_x": test[0], "test_y": test[1]}
    arrays |= {name: np.concatenate([pair[place] for pair in pairs]) for place, name in enumerate("xy")}
    torch.manual_seed(cell["repeat"])
    arrays |= {f"w{place}": each.detach() for place, each in enumerate(task.model().parameters())}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", np.asarray(array))


def table(out: Path, skipped: dict[str, str]) -> str:
    """Return the runs to the target, those in which a process was killed, the scripts' own tables, what is missing."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in (each for each in results(out) if (HERE / f"{each['name']}.py").exists()):
        cell = {key: value for key, value in line["cell"].items() if key not in {"repeat", "limit_s"}}
        groups[line["name"], line["label"], json.dumps(cell)].append(line)
    texts, killed = [HEAD, "| --- " * 11 + "|"], list[str]()
    for (name, label, text), runs in sorted(groups.items()):
        cell = json.loads(text)
        (killed if "kill" in cell else texts).append((_killed if "kill" in cell else _arrived)(name, label, cell, runs))
    texts += ["", *killed, *(f"\n{path.read_text()}" for path in sorted(out.glob("*.md")))]
    texts += [f"not measured: {name}: {reason}" for name, reason in sorted((NOT_MEASURED | skipped).items())]
    return "\n".join(texts)


def draw(out: Path, path: Path) -> None:
    """Draw the cells on digits that have arrived: seconds after start, CPU-seconds, megabytes, on scales of ten."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only here

    groups = defaultdict[str, list[dict[str, Any]]](list)
    for line in results(out):
        chosen = "kill" not in line["cell"] and not line["label"].endswith(TRIED)
        if line["cell"]["task"] == "digits" and chosen and line["seconds"]:
            groups[_title(line["name"], line["label"])].append(line)
    scales = {"learning_s": (1.0, "seconds after start"), "cpu_s": (1.0, "CPU-seconds"), "bytes": (1e6, "megabytes")}
    names = sorted(groups, key=lambda name: -median(run["learning_s"] for run in groups[name]))
    figure, axes = plt.subplots(1, 3, figsize=(10, 0.4 * len(names) + 1), sharey=True, layout="constrained")
    for axis, (key, (scale, title)) in zip(axes, scales.items(), strict=True):
        unseen = {name for name in names if key == "bytes" and groups[name][0]["cell"].get("simulated")}
        heights = [0 if name in unseen else median(run[key] for run in groups[name]) / scale for name in names]
        colors = ["#1f6f8b" if name.startswith("p2pfl,") else "#b8c4cc" for name in names]
        bars = axis.barh(names, heights, color=colors)
        axis.bar_label(bars, [f" {height:.1f}" if height else "" for height in heights])
        axis.set_title(title), axis.set_xscale("log"), axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.25), axis.set_xticks([]), axis.minorticks_off()
    figure.savefig(path, dpi=150)


def _title(name: str, label: str) -> str:
    pin = re.sub(r"\[.*?\]", "", literals(HERE / f"{name}.py")["PINS"][0]).replace("-e ROOT", "p2pfl")
    return f"{'another ' if name == 'other_p2pfl' else ''}{re.sub('==|@', ' ', pin)}, {label}"


def _arrived(name: str, label: str, cell: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    there = [run for run in runs if run["seconds"]]
    title = f"{_title(name, label)}: {', '.join(f'{key} {value}' for key, value in cell.items() if key not in HIDDEN)}"
    count = f"{len(there)} of {len(runs)}" if len(there) < len(runs) else f"{len(runs)}"
    used = there or runs

    def middle(key: str, scale: float = 1.0, form: str = ".1f", of: Callable[[Any], Any] = median) -> str:
        values = [run[key] for run in used if run[key] is not None]
        return format(of(values) / scale, form) if values else "-"

    late = f"> {max(run['ran_s'] for run in runs):.0f}"
    seconds = [middle(key) if there else late for key in ("seconds", "learning_s")]
    mb = middle("bytes", 1e6, ".2f")
    figures = [middle("cpu_s"), f"({mb})" if cell.get("simulated") else mb, middle("peak_bytes", 1e6, ".0f")]
    figures += [middle("rounds", form=".0f"), str(typed(HERE / f"{name}.py", label.removesuffix(TRIED)))]
    figures += [middle("worst", of=min, form=".3f"), middle("load")]
    return f"| {' | '.join((title, count, *seconds, *figures))} |"


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


def results(out: Path) -> list[dict[str, Any]]:
    """Read the lines of results.jsonl; the last may be half written."""
    path, lines = out / "results.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def literals(path: Path) -> dict[str, Any]:
    """Return the constants at a script's head, without importing it: what it needs is not installed here."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            with suppress(ValueError):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


if __name__ == "__main__":
    main()
