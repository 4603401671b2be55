"""Runs the node's own code in virtual time: the shipped core and engine with a different clock and different links.

Python programs may rely on the names in `__all__`. A name is imported on first use: `simulate` loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.simulation import simulate
    from sim.worlds.world import World

__distribution__ = "p2pfl-gossip"

__all__ = ["World", "simulate"]

_HOME = {
    "World": "sim.worlds.world",
    "simulate": "sim.simulation",
}
_GONE = {
    "adapt": "use a task of p2pfl.adapt.sklearn, and simulate",
    "load_world": "use World.from_file",
    "sweep": "use p2pfl sim sweep FILE",
}


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise ImportError(f"sim.{name} is gone: {_GONE[name]}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from p2pfl.errors import naming_extras  # noqa: PLC0415 - `import sim` stays light

    with naming_extras():
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
