"""Put small mistakes into the code, one at a time: how many of them do the tests find?

    PYTHONPATH=$PWD python benchmarks/mutants.py core storage topologies --work /tmp/mutants

For each package, `COUNT` of all possible mutants are drawn using `SEED`: a comparison, a constant, a sign, `and`, `not`
or `min` is replaced, or a statement is removed. Each is applied alone in a copy of the tree, and the tests that run its
line are run until one fails. The lines run by the tests in `WHERE` are recorded in the tests' own process; processes
that they start are not followed. It needs `coverage` in addition to what `make test` needs. A surviving mutant means a
missing test or an equivalent program: people must judge the lines that are printed and written to WORK/results.jsonl.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import coverage
import numpy as np
import pytest

SEED = 20261125
COUNT = 30
ROOT = Path(__file__).parents[1]
WHERE = {
    "core": ("core", "paper/test_staleness.py", "property/test_flows.py", "property/test_schedules.py"),
    "net": ("net", "crypto", "wire"),
    "node": ("node", "integration"),
    "engine": ("engine", "storage", "core"),
    "learn": ("learn",),
    "methods": ("learn/methods", "engine/test_rounds.py", "paper", "cli/test_specs.py"),
    "features": ("node", "net", "cli", "config", "reporting", "integration/test_members.py"),
    "console": ("cli",),
    "fleet": ("node", "cli", "reporting"),
    "sim": ("sim",),
}
"""Folders and files under tests/ whose tests may find a package's mutants, nearest first; by default its own folder."""
AHEAD = ("torch", "aiohttp", "scipy.sparse.linalg", "networkx")
"""Packages that are slow to import: imported once, not once per mutant."""
SWAPS = {
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


@dataclass(frozen=True, order=True)
class Mutant:
    file: str
    line: int
    column: int
    before: str
    after: str
    span: tuple[int, int]
    """Start and end in the file, in bytes."""
    statement: int
    """The line where its statement begins; 0 if that runs when the module is imported."""

    def put(self, text: bytes) -> bytes:
        return text[: self.span[0]] + self.after.encode() + text[self.span[1] :]


def mutants_of(tree: Path, file: Path) -> Iterator[Mutant]:
    text = file.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, statement in _looked_at(ast.parse(text)):
        span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
        for after in _changed(node):
            before = text[slice(*span)].decode()
            yield Mutant(str(file.relative_to(tree)), node.lineno, node.col_offset, before, after, span, statement)


def _looked_at(node: ast.AST, statement: int = 0, *, within: bool = False) -> Iterator[tuple[ast.AST, int]]:
    """Yield nodes that are computed: no annotation, decorator, or part of a string (whose position Python 3.11 does not
    know).
    """
    if isinstance(node, ast.arguments):  # defaults
        statement, within = 0, False
    within = within or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "keywords"} and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Assert | ast.arg):
                begins = child.lineno if within and isinstance(child, ast.stmt) else statement
                if isinstance(child, ast.expr | ast.stmt):
                    yield child, begins
                yield from _looked_at(child, begins, within=within)


def _changed(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(left, [op], others) if type(op) in SWAPS:
            yield ast.unparse(ast.Compare(left, [SWAPS[type(op)]()], others))
        case ast.BoolOp(op, values):
            yield f"({ast.unparse(ast.BoolOp(SWAPS[type(op)](), values))})"
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            yield f"({ast.unparse(ast.BinOp(left, SWAPS[type(op)](), right))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(bool() | int() | float() as value):
            yield _other_number(value)
        case ast.Name("min" | "max" as name):
            yield "max" if name == "min" else "min"
        case ast.Expr(ast.Constant()):
            pass
        case (
            ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete()
        ):
            yield "pass"


def _other_number(value: float) -> str:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return "0" if value == 1 else str(value + 1)
    return repr(2 * value or 1.0)


class Contexts:
    """A pytest plugin that tells coverage which test is running, and records each test's CPU time."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured, self.took = measured, {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):  # noqa: ANN001, ANN201
        self.measured.switch_context(item.nodeid)
        begun = time.process_time()
        outcome = yield
        self.took[item.nodeid] = time.process_time() - begun
        self.measured.switch_context("")
        return outcome


class First:
    """A pytest plugin that writes the name of the first failing test."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report) -> None:  # noqa: ANN001
        if report.failed:
            self.file.write_text(report.nodeid, encoding="utf-8")


def forked(tree: Path, call, timeout_s: float) -> int | None:  # noqa: ANN001
    """Return the exit status of a call in a separate process with that tree's packages; None if it had to be killed.

    `timeout_s` is CPU time; in wall-clock time it may take ten times as long, on a busy machine.
    """
    pid = os.fork()
    if pid == 0:
        os.setsid()
        said = os.open(tree.with_name("said"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in range(3):
            os.dup2(said, stream)
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(timeout_s), math.ceil(timeout_s)))
        try:
            os._exit(call())
        except BaseException:  # noqa: BLE001 - whatever it is, it ends here
            traceback.print_exc()
            os._exit(70)
    end = time.monotonic() + 10 * timeout_s
    status = None
    while status is None and time.monotonic() < end:
        done, code = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # processes started by a test end with it
    if status is None:
        os.waitpid(pid, 0)
    return status


PYTEST = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not long", "--timeout", "120"]


def lines_of_tests(tree: Path, package: Path, tests: list[str], work: Path) -> tuple[dict, dict]:
    """Record which tests run each line of each file, and the CPU time of each test."""
    kept = work / f"{package.name}.contexts.json"

    def measure() -> int:
        measured = coverage.Coverage(data_file=None, source=[str(tree / package)], config_file=False)
        contexts = Contexts(measured)
        measured.start()
        status = pytest.main([*(word for word in PYTEST if word != "-x"), *tests], plugins=[contexts])
        measured.stop()
        data, by_file = measured.get_data(), {}
        for file in data.measured_files():
            lines = data.contexts_by_lineno(file)
            by_file[str(Path(file).relative_to(tree))] = {
                line: [name for name in by if name] for line, by in lines.items()
            }
        kept.write_text(json.dumps([by_file, contexts.took]), encoding="utf-8")
        return int(status)

    if not kept.exists():
        status = forked(tree, measure, 1500.0)
        print(f"{package.name}: lines of tests recorded (exit {status})", flush=True)
    by_file, took = json.loads(kept.read_text(encoding="utf-8"))
    return {file: {int(line): by for line, by in lines.items()} for file, lines in by_file.items()}, took


def tests_for(mutant: Mutant, lines: dict, took: dict, tests: list[str], most_s: float) -> list[str]:
    """Return the tests that run its line, or its file if the line runs on import; nearest and fastest first."""
    file = lines.get(mutant.file, {})
    seen = (mutant.line, mutant.statement) if mutant.statement else file
    names = {name for line in seen for name in file.get(line, ())}
    place = {name: next(k for k, where in enumerate(tests) if name.startswith(where)) for name in names}
    chosen, spent_s = [], 0.0
    for name in sorted(names, key=lambda name: (place[name], took.get(name, 1.0), name)):
        spent_s += took.get(name, 1.0)
        if chosen and spent_s > most_s:
            break
        chosen.append(name)
    return chosen


def judged(mutant: Mutant, chosen: list[str], tree: Path, work: Path, most_s: float) -> dict:
    """Return the fate of the mutant: "killed", "survived", or "unseen" by any test that runs in this process."""
    row = {"file": mutant.file, "line": mutant.line, "before": mutant.before, "after": mutant.after}
    if not chosen:
        return row | {"outcome": "unseen"}
    file, first = tree / mutant.file, work / "first"
    whole = file.read_bytes()
    first.unlink(missing_ok=True)
    begun = time.monotonic()
    listed = work / "tests"
    listed.write_text("\n".join(chosen), encoding="utf-8")

    def run() -> int:
        return int(pytest.main([*PYTEST, f"@{listed}"], plugins=[First(first)]))

    try:
        file.write_bytes(mutant.put(whole))
        _forget(file)
        status = forked(tree, run, 3 * most_s)
    finally:
        file.write_bytes(whole)
        _forget(file)
    killer = first.read_text(encoding="utf-8") if first.exists() else f"exit {status}"
    outcome = {"outcome": "survived"} if status == 0 else {"outcome": "killed", "by": killer}
    return row | outcome | {"tests": len(chosen), "seconds": round(time.monotonic() - begun, 1)}


def _forget(file: Path) -> None:
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", help="core, net, ..., topologies, sim")
    parser.add_argument("--work", type=Path, required=True, help="for the copy, what tests run, and the results")
    parser.add_argument("--count", type=int, default=COUNT, help="only this many of the drawn mutants")
    parser.add_argument("--most-s", type=float, default=40.0, help="CPU seconds for the tests of one mutant")
    parser.add_argument("--without", nargs="*", default=[], metavar="TEST", help="tests (or how they begin) left out")
    options = parser.parse_args()
    work = options.work.absolute()
    tree = work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split():  # noqa: S607
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    for name in AHEAD:
        importlib.import_module(name)
    print(f"Python {sys.version.split()[0]}, numpy {np.__version__}; seed {SEED}")
    for name in options.packages:
        package = Path(name) if (ROOT / name).is_dir() else Path("p2pfl", name)
        tests = [f"tests/{where}" for where in WHERE.get(name, (name,))]
        lines, took = lines_of_tests(tree, package, tests, work)
        every = sorted({mutant for file in sorted((tree / package).rglob("*.py")) for mutant in mutants_of(tree, file)})
        drawn = random.Random(f"{SEED} {name}").sample(every, min(COUNT, len(every)))[: options.count]
        outcomes = defaultdict(int)
        for mutant in drawn:
            chosen = tests_for(mutant, lines, took, tests, options.most_s)
            chosen = [test for test in chosen if not any(test.startswith(prefix) for prefix in options.without)]
            row = {"package": name} | judged(mutant, chosen, tree, work, options.most_s)
            outcomes[row["outcome"]] += 1
            with (work / "results.jsonl").open("a", encoding="utf-8") as results:
                results.write(json.dumps(row) + "\n")
            if row["outcome"] != "killed":
                print(
                    f"{row['outcome']:9}{row['file']}:{row['line']}: {row['before']!r} -> {row['after']!r}", flush=True
                )
        print(f"{name}: {len(drawn)} of {len(every)} mutants drawn: {dict(outcomes)}", flush=True)


if __name__ == "__main__":
    main()
