"""Who imports whom: no circles, and every module can be imported first."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("p2pfl", "topologies", "sim")

ONE_AFTER_THE_OTHER = """
import importlib, os, sys, traceback
from contextlib import suppress
for name in ("aiohttp", "click", "matplotlib.pyplot", "msgspec", "networkx", "numpy", "rich", "torch"):
    with suppress(ImportError):
        importlib.import_module(name)
for name in sys.stdin.read().split():
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 0
        try:
            importlib.import_module(name)
        except BaseException:
            print(name, traceback.format_exc())
            code = 1
        sys.stdout.flush()
        os._exit(code)
    os.waitpid(child, 0)
"""
"""A fork for each module shares the imports of others, which take seconds, and none of ours."""


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def parsed(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Every module of ours that is imported anywhere in this one: at the top, in a function, or for types alone."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in parsed(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (full if full in known else base for full in names if full in known or base in known)


def circles(known: dict[str, Path]) -> list[list[str]]:
    arrows = [(name, other) for name, path in known.items() for other in imported(name, path, known) if other != name]
    return [sorted(part) for part in nx.strongly_connected_components(nx.DiGraph(arrows)) if len(part) > 1]


@pytest.mark.long
def test_no_module_imports_itself_by_way_of_others_not_even_for_types():
    assert circles(modules()) == []


def test_a_circle_through_a_function_or_for_types_alone_is_found(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n    from p2pfl import b\n")
    (tmp_path / "b.py").write_text("if TYPE_CHECKING:\n    from .a import f\n")
    assert circles({"p2pfl.a": tmp_path / "a.py", "p2pfl.b": tmp_path / "b.py"}) == [["p2pfl.a", "p2pfl.b"]]


@pytest.mark.long  # without circles, a module that cannot be imported first can hardly be imported at all
@pytest.mark.timeout(400)
def test_every_module_can_be_imported_first():
    ours = [name for name in modules() if not name.endswith("__main__")]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER],
        input="\n".join(ours),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment,
        timeout=300,
    )
    assert ran.stdout == "", ran.stdout + ran.stderr


WALL_CLOCK = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
ENDS_INVITES = ROOT / "p2pfl/console/__init__.py"
"""An invite or a ticket ends after some days, a site answers so many questions a day: commands of people ask, and a
relay; no node does.
"""

BY_THE_CALENDAR = (
    ROOT / "p2pfl/features/bounds/traffic.py",
    ROOT / "p2pfl/net/dial_paths.py",
    ROOT / "p2pfl/adapt/flower.py",
)
"""A node's hours and months, looked at every second in case somebody sets the clock, the end of a certificate, and when
a message of Flower's was made, which nobody compares.
"""


def test_no_node_imports_the_clock_that_ends_invites():
    users = {name for name, path in modules().items() if "seconds_now" in path.read_text(encoding="utf-8")}
    assert users == {
        "p2pfl.cli.deploy",
        "p2pfl.console",
        "p2pfl.features.members.changes",
        "p2pfl.features.members.joining",
        "p2pfl.features.relay.feature",
        "p2pfl.features.relay.link",
        "p2pfl.features.relay.server",
        "p2pfl.features.relay.tickets",
        "p2pfl.features.stats.query_policy",
        "p2pfl.features.stats.command",
    }


def may_ask(path):
    """Parsing a file takes much longer than looking for words in it."""
    text = path.read_text(encoding="utf-8")
    return any(re.search(rf"\b{module}\b", text) and re.search(rf"\b{name}\b", text) for module, name in WALL_CLOCK)


def test_nothing_asks_the_wall_clock():
    """Somebody sets it by hours while a node runs: whatever lasts or is due is by the monotonic clock."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("p2pfl", "sim")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path not in (ENDS_INVITES, *BY_THE_CALENDAR) and may_ask(path)
        for node in parsed(path)
        if (
            isinstance(node, ast.Attribute)
            and (getattr(node.value, "attr", getattr(node.value, "id", "")), node.attr) in WALL_CLOCK
        )
        or (isinstance(node, ast.ImportFrom) and any((node.module, name.name) in WALL_CLOCK for name in node.names))
    ]
    assert found == []
