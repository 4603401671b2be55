"""Virtual time for the node's own code: the shipped core and engine with another clock and other links.

Python programs may rely on the names in `__all__`. A name is imported when it is first used: `simulate` loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.simulation import simulate
    from sim.sweeps.run import sweep
    from sim.worlds.world import World, load_world

__all__ = ["World", "load_world", "simulate", "sweep"]

_HOME = {
    "World": "sim.worlds.world",
    "load_world": "sim.worlds.world",
    "simulate": "sim.simulation",
    "sweep": "sim.sweeps.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
