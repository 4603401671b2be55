"""Whose packages `p2pfl`, `topologies` and `sim` are: other projects have packages of these names, too.

Installed beside or over ours, one fails somewhere in the middle, or quietly does something else: so a start looks
first.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

OURS = ("p2pfl", "topologies", "sim")
DISTRIBUTION = "p2pfl-gossip"
MARK = f'__distribution__ = "{DISTRIBUTION}"'
"""In the `__init__.py` of each of them."""
AGAIN = "pip install --force-reinstall --no-deps . in a checkout"


def foreign_package() -> str | None:
    """Return a sentence about a package that is missing or another project's, or None. Nothing is imported."""
    for name in OURS:
        spec = find_spec(name)
        if spec is None or not spec.origin:
            return f"the package {name!r} is missing: {AGAIN}"
        with open(spec.origin, "rb") as file:  # noqa: PTH123 - pathlib would cost each start a millisecond
            if MARK.encode() in file.read():
                continue
        return f"the package {name!r} in {os.path.dirname(spec.origin)} is {_owner(name)}; {_remedy(name)}"  # noqa: PTH120
    return None


def _others(name: str) -> list[str]:
    from importlib.metadata import packages_distributions  # noqa: PLC0415 - reads all that is installed

    return sorted(set(packages_distributions().get(name, ())) - {DISTRIBUTION})


def _owner(name: str) -> str:
    return f"another project's ({', '.join(_others(name))})" if _others(name) else "not p2pfl-gossip's"


def _remedy(name: str) -> str:
    if others := _others(name):
        return f"pip uninstall {' '.join(others)}, then {AGAIN}"
    return "rename it, or start from another folder"
