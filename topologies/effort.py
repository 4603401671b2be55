"""How long eigenvalues take, roughly and before they are asked for, so that a command can refuse what would take hours;
and whom a long computation tells how far it is.

In units of about five microseconds on one core; measured on rings, expanders and complete graphs.
"""

from __future__ import annotations

from collections.abc import Callable

from topologies.eigen.dense import DENSE_LIMIT

EFFORT_LIMIT = 50_000_000
"""of one command: a few minutes."""
CALLS = 50
"""what numpy takes for a graph of a few nodes."""

Tell = Callable[[str], None]
"""Hears how far a long computation is."""


def silent(_text: str) -> None:
    """Tells nobody."""


def effort(nodes: int, edges: int) -> int:
    """Of the algebraic connectivity: dense up to `DENSE_LIMIT` nodes; above, edges beyond those of a ring cost most."""
    if nodes <= DENSE_LIMIT:
        return CALLS + nodes**2 // 10 + edges // 20
    return DENSE_LIMIT**2 // 10 + 2 * nodes + edges + 10 * max(0, edges - nodes)
