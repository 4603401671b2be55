"""One room for each feature. A room's declarations are read alone; the rest of the room is imported when needed:

- `FEATURE`: what its nodes have, a class derived from `p2pfl.node.feature.Feature`.
- `COMMANDS`: the subcommands of `p2pfl` that it brings, by name.
- `FINDINGS`: what it says of a federation before there are nodes, derived from `p2pfl.node.findings.Findings`.
- `NEW`: its options of `p2pfl new`, derived from `p2pfl.console.founding.Founding`.
- `ARRIVE`: (federation, node's name, its node file or None) -> the federation by which it starts; it may wait for one.
- `SUM`: (federation, make, settings) -> what sums over all nodes of one program, for `Federation.sum`.
- `PREPARE`: (federation, node, launched) -> bool: prepares what a node needs before its model; False: it was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pfl.console.groups import Command
    from p2pfl.node.feature import Feature

    FEATURES: tuple[Feature, ...]

ROOMS = ("tables", "privacy", "members", "status", "lan", "sums")
"""The rooms, in the order in which a node calls them."""


def __getattr__(name: str) -> Any:
    """Import FEATURES, the feature of each room, on demand, because commands can do without."""
    if name != "FEATURES":
        raise AttributeError(name)
    found = globals()["FEATURES"] = tuple(kind() for kind in import_declared("FEATURE"))
    return found


def import_declared(what: str) -> Iterator[Any]:
    """Import and yield the objects that rooms declare under this name as `module:object`."""
    for place in filter(None, declarations(what)):
        module, _, name = place.partition(":")
        yield getattr(import_module(module), name)


def declarations(what: str) -> list[Any]:
    """Return the declarations of all rooms under this name; None for a room that has none."""
    return [getattr(import_module(f"{__name__}.{room}"), what, None) for room in ROOMS]


def commands() -> dict[str, Command]:
    """Return the subcommands of `p2pfl` that features bring, by name."""
    return {name: command for found in declarations("COMMANDS") for name, command in (found or {}).items()}
