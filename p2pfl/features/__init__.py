"""One room for each feature. What a room declares (`FEATURE`, `COMMANDS`) is read without anything else of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pfl.console.groups import Command
    from p2pfl.node.feature import Feature

    FEATURES: tuple[Feature, ...]

ROOMS = ("tables", "privacy", "members", "status", "lan")
"""In the order in which a node calls them."""


def __getattr__(name: str) -> Any:
    """FEATURES, the feature of each room: imported when somebody asks, for commands can do without."""
    if name != "FEATURES":
        raise AttributeError(name)
    found = []
    for room in ROOMS:
        module, _, kind = import_module(f"{__name__}.{room}").FEATURE.partition(":")
        found.append(getattr(import_module(module), kind)())
    globals()["FEATURES"] = tuple(found)
    return tuple(found)


def commands() -> dict[str, Command]:
    """The subcommands of `p2pfl` that features bring, by name."""
    found: dict[str, Command] = {}
    for room in ROOMS:
        brought: Mapping[str, Command] = import_module(f"{__name__}.{room}").COMMANDS
        found |= brought
    return found
