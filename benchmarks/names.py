"""Finds names that stand for more than one thing: classes anywhere in the product, modules in different packages.

python benchmarks/names.py [--root CHECKOUT]

`SAME` lists modules that have one name because they are the same thing in different packages.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("p2pfl", "topologies", "sim")
SAME = {
    "alarms": "the kinds of alarm of the nucleus, and of each feature",
    "audit": "what is done, and its command",
    "catalog": "from a spec to the object",
    "chance": "the draws of the product, and of the library that imports nothing of it",
    "check": "of a federation, of a world",
    "drawn": "what chance decides: of a world, of a schedule",
    "draws": "what a room draws by chance",
    "entry": "what a spec's entry says",
    "errors": "the tree of errors, of the product and of the library",
    "feature": "what a room brings to a node",
    "findings": "what `check` says, and a feature's part of it",
    "founding": "what a feature brings to `new`",
    "graph": "of a federation, and what a graph is",
    "interface": "the seam of a room",
    "liars": "lying neighbors, as reports say it and as a simulation makes them",
    "limits": "what a neighbor may cost, of the core and of the net",
    "links": "the edges of a node, as sockets and as a simulation has them",
    "load": "from a file to values, from a task to a learner",
    "methods": "learning methods",
    "model": "the nouns of a file",
    "overview": "what a node knows of its federation, and its shape",
    "plan": "what will be done, in rooms that are far apart",
    "plot": "pictures, and their command",
    "privacy": "the table `[privacy]`, and the same as an option",
    "references": "what is learned without a network",
    "reloading": "data that grow, of a learner and of a node",
    "report": "the report of a run",
    "rows": "of a table; of many nodes' vectors",
    "rules": "robust rules, and the command that lists them",
    "run": "the commands `run`, and a sweep's",
    "side": "side channels, as messages and as sessions carry them",
    "spelling": "the words of a spec",
    "staleness": "how much a late exchange counts, and the command that lists it",
    "status": "what a node says of itself, and its shape",
    "task": "what a user writes, and the built-in one",
    "writing": "texts of new files",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    root = parser.parse_args().root
    classes, modules = defaultdict(set), defaultdict(set)
    for path in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        place = str(path.relative_to(root))
        if not path.stem.startswith("__"):
            modules[path.stem].add(place)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(f"{place}:{node.lineno}")
    for kind, named in (("class", classes), ("module", modules)):
        twice = {name: places for name, places in sorted(named.items()) if len(places) > 1}
        others = {name: places for name, places in twice.items() if kind == "class" or name not in SAME}
        for name, places in others.items():
            print(f"{kind} {name}: {', '.join(sorted(places))}")
        print(f"{len(others)} of {len(named)} {kind} names stand for two things")
    return 0


if __name__ == "__main__":
    sys.exit(main())
