"""Classes above the bounds: 20 methods, 15 attributes, 8 parameters of a constructor. Records of plain data are exempt.

python benchmarks/large_classes.py [--root CHECKOUT]
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("p2pfl", "topologies", "sim")
METHODS, ATTRIBUTES, PARAMETERS = 20, 15, 8
EXEMPT = ("sim/lazy/",)
LONGEST_DERIVED = 12
"""The most lines of a record's longest method that is still a small derived value."""
RECORDS = {
    "p2pfl/config/model.py:FederationConfig": "the file as it was read: one field for each table",
    "p2pfl/engine/state.py:NodeState": "what the disk keeps of a node: one field for each thing that is kept",
    "p2pfl/node/status.py:Status": "one field for each thing that a status is made of",
    "p2pfl/reporting/report.py:Report": "the JSON of a run, whose fields users rely on",
    "p2pfl/federation.py:Federation": "its keywords are what users write, as they stand in the TOML file",
}
"""Classes exempt by name: records of which some members are no properties; and classes that users call."""


def figures(node: ast.ClassDef) -> tuple[int, int, int]:
    """Count methods, attributes, and parameters of the constructor; the fields of a dataclass are attributes."""
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    fields = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    for item in ast.walk(node):
        targets = (
            item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
        )
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    fields.add(part.attr)
    made = next((item for item in methods if item.name == "__init__"), None)
    given = len(made.args.args) + len(made.args.kwonlyargs) - 1 if made is not None else 0
    return len(methods), len(fields), given


def is_derived(node: ast.ClassDef) -> bool:
    """Return True for a dataclass or a Struct of which all methods are small properties."""
    made = [ast.unparse(item) for item in (*node.decorator_list, *node.bases)]
    if not any(item.startswith(("dataclass", "Struct")) for item in made):
        return False
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    return all(
        any(ast.unparse(item) == "property" for item in method.decorator_list)
        and (method.end_lineno or 0) - method.lineno < LONGEST_DERIVED
        for method in methods
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    given = parser.parse_args()
    found = []
    for path in sorted(file for package in PACKAGES for file in (given.root / package).rglob("*.py")):
        place = str(path.relative_to(given.root))
        if place.startswith(EXEMPT):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                methods, attributes, parameters = figures(node)
                is_named = f"{place}:{node.name}" in RECORDS
                is_record = methods <= 2 or is_named or is_derived(node)
                given_too_many = parameters > PARAMETERS and not is_named
                if methods > METHODS or given_too_many or (attributes > ATTRIBUTES and not is_record):
                    found.append((methods, attributes, parameters, f"{place}:{node.name}"))
    for methods, attributes, parameters, name in sorted(found, reverse=True):
        print(f"{methods:3} methods {attributes:3} attributes {parameters:3} parameters  {name}")
    print(f"{len(found)} classes above {METHODS}, {ATTRIBUTES}, {PARAMETERS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
