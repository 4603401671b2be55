"""Virtual time for the node's own code: the shipped core and engine under another clock, another link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.simulation import simulate

__all__ = ["simulate"]


def __getattr__(name: str) -> Any:
    """`from sim import simulate` loads torch; what lies below does not."""
    if name != "simulate":
        raise AttributeError(name)
    from sim.simulation import simulate  # noqa: PLC0415 - as above

    return simulate
