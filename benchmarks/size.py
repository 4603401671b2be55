"""The size of the code: files, lines, and statements, which do not depend on comments, layout or docstrings.

python benchmarks/size.py [--root CHECKOUT]
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("p2pfl", "sim", "topologies", "tests", "benchmarks")


def statements(text: str) -> int:
    """Count the statements of a module; a string that stands alone is a docstring and does not count."""
    return sum(isinstance(node, ast.stmt) and not is_docstring(node) for node in ast.walk(ast.parse(text)))


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    given = parser.parse_args()
    print("package     files   lines  statements")
    for package in PACKAGES:
        texts = [path.read_text(encoding="utf-8") for path in (given.root / package).rglob("*.py")]
        lines = sum(len(text.splitlines()) for text in texts)
        print(f"{package:10}  {len(texts):5}  {lines:6}  {sum(map(statements, texts)):10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
