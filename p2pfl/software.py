"""The version of this software."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "p2pfl-gossip"


@cache
def software() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "from source"
