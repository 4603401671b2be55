"""Counts imports between the packages of p2pfl, a package under `features` counted as one, and shows the cycles.

python benchmarks/arrows.py [--list]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1]
PACKAGE = "p2pfl"


def room(module: str) -> str:
    """Return the package that a module belongs to; below features the single feature."""
    parts = module.split(".")
    if len(parts) > 2 and parts[1] == "features":
        return f"features.{parts[2]}"
    return parts[1] if len(parts) > 1 else PACKAGE


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(root: Path) -> Counter[tuple[str, str]]:
    """Count, for each pair of packages, the modules of one that import from the other."""
    modules = {".".join(path.relative_to(root).with_suffix("").parts): path for path in (root / PACKAGE).rglob("*.py")}
    found: Counter[tuple[str, str]] = Counter()
    for name, path in modules.items():
        seen = {room(other) for other in imports(path) if other.startswith(f"{PACKAGE}.")}
        found.update((room(name), other) for other in seen if other != room(name))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="each arrow, and how many modules it is made of")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    given = parser.parse_args()
    found = arrows(given.root)
    if given.list:
        for (source, target), count in sorted(found.items()):
            print(f"{source} -> {target}: {count}")
    circles = [sorted(part) for part in nx.strongly_connected_components(nx.DiGraph(list(found))) if len(part) > 1]
    rooms = {end for arrow in found for end in arrow}
    print(f"{len(found)} arrows between {len(rooms)} rooms, {sum(found.values())} imports")
    print("circles:", circles or "none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
