"""One package ("room") for each feature. The declarations of a room are read first; its other modules are imported on
demand:

- `FEATURE`: the feature at a node, a class derived from `p2pfl.node.feature.Feature`.
- `COMMANDS`: the subcommands of `p2pfl` that it adds, by name.
- `CHECKS`: what it reports about a federation before nodes exist, derived from `p2pfl.node.feature.Check`.
- `NEW`: its options for `p2pfl new`, derived from `p2pfl.console.NewOptions`.
- `ARRIVE`: (federation, node's name, its node file or None) -> the federation to start with; it may wait for one.
- `PREPARE`: (federation, node, launched) -> bool: prepares what a node needs before its model; False if it was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pfl.console import Command
    from p2pfl.node.feature import Feature

    FEATURES: tuple[Feature, ...]

ROOMS = (
    "tables",
    "texts",
    "privacy",
    "members",
    "status",
    "bounds",
    "lan",
    "relay",
    "sums",
    "stats",
    "shared_noise",
    "trees",
)
"""The rooms, in the order in which a node calls them."""


def __getattr__(name: str) -> Any:
    """Import FEATURES, the features of all rooms, on demand, because commands do not need them."""
    if name != "FEATURES":
        raise AttributeError(name)
    features = globals()["FEATURES"] = tuple(kind() for kind in import_declared("FEATURE"))
    return features


def import_declared(what: str) -> Iterator[Any]:
    """Import and yield the objects that rooms declare under this name as `module:object`."""
    for place in filter(None, declarations(what)):
        module, _, name = place.partition(":")
        yield getattr(import_module(module), name)


def declarations(what: str) -> list[Any]:
    """Return the declarations of all rooms under this name; None for a room without one."""
    return [vars(import_module(f"{__name__}.{room}")).get(what) for room in ROOMS]


def commands() -> dict[str, Command]:
    """Return the subcommands of `p2pfl` that features add, by name."""
    return {name: command for declared in declarations("COMMANDS") for name, command in (declared or {}).items()}
