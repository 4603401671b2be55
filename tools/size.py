"""Count the project and compare it with size.toml: lines and files of each part, words, commands, what tests import.

    python tools/size.py            a table; exit code 1 where something is larger than it may be

Lines are as `wc -l` counts them. A file belongs to the part with the longest of its folders.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from p2pfl.cli.main import cli

ROOT = Path()
"""The root of the checkout: where this is run."""
PRODUCT = ("p2pfl", "sim", "topologies")


def tracked(*folders: str, suffix: str) -> list[str]:
    """Return the paths that git has in these folders, with this suffix."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.splitlines() if path.endswith(suffix) and (ROOT / path).is_file()]


def lines(paths: list[str]) -> int:
    return sum((ROOT / path).read_bytes().count(b"\n") for path in paths)


def words(paths: list[str]) -> int:
    return sum(len((ROOT / path).read_text("utf-8").split()) for path in paths)


def part_of(path: str, folders: dict[str, str]) -> str:
    """Return the part to which a file belongs; `folders` maps each folder to its part."""
    return folders[max((folder for folder in folders if path.startswith(f"{folder}/")), key=len)]


def imported_by_tests() -> set[str]:
    """Return the modules of the product that tests import, at the top or within a function."""
    paths = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in tracked(suffix=".py")}
    modules = {name for name in paths if name.split(".")[0] in PRODUCT}
    imported: set[str] = set()
    for path in tracked("tests", suffix=".py"):
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= (names & modules) or {node.module}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    return imported & modules


def options(command: click.Command) -> Iterator[int]:
    """Yield how many options each command has that can be called."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if inner := command.get_command(context, name):
                yield from options(inner)
    else:
        yield sum(isinstance(param, click.Option) and "--help" not in param.opts for param in command.params)


def measured(folders: dict[str, str]) -> dict[str, int]:
    """Return every figure that size.toml bounds; `folders` maps each folder to its part."""
    product = tracked(*PRODUCT, suffix=".py")
    figures: dict[str, int] = {}
    for part in dict.fromkeys(folders.values()):
        own = [path for path in product if part_of(path, folders) == part]
        figures |= {f"{part}: lines": lines(own), f"{part}: files": len(own)}
    benchmarks, per_command = tracked("benchmarks", suffix=".py"), list(options(cli))
    return figures | {
        "product lines": lines(product),
        "product files": len(product),
        "longest file": max(lines([path]) for path in product),
        "largest package": max(Counter(Path(path).parent for path in product).values()),
        "tests lines": lines(tracked("tests", suffix=".py")),
        "modules imported by tests": len(imported_by_tests()),
        "benchmarks lines": lines(benchmarks),
        "benchmarks files": len(benchmarks),
        "docs words": words(tracked("docs", suffix=".md")),
        "decisions words": words(tracked("docs/decisions", suffix=".md")),
        "ARCHITECTURE words": words(["ARCHITECTURE.md"]),
        "commands": len(per_command),
        "options": sum(per_command),
    }


def main() -> int:
    table = tomllib.loads((ROOT / "size.toml").read_text("utf-8"))
    parts, bounds = table["parts"], table["whole"]
    for part, bound in parts.items():
        bounds |= {f"{part}: lines": bound["lines"], f"{part}: files": bound["files"]}
    figures = measured({folder: part for part, bound in parts.items() for folder in bound["folders"]})
    over = {name for name, figure in figures.items() if figure > bounds[name]}
    for name, figure in figures.items():
        print(f"{name:44} {figure:8,} of {bounds[name]:8,}{'  TOO LARGE' if name in over else ''}")
    if over:
        print("Take away what its fewest users need. The commit that raises a bound in size.toml says why.")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
