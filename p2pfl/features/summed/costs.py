"""What a secure sum costs a member, as estimated before it is made."""

from __future__ import annotations

VECTORS = 2.3
"""The masked vectors that a member sends for a sum, on average: up the tree, down again, and some once more."""
ENTRY_BYTES = 8
STATEMENT_BYTES = 2000
"""The bytes that a member sends for a sum for each other member, besides vectors: `python benchmarks/sums.py`."""


def bytes_each(entries: int, members: int) -> int:
    """Return the bytes that each of so many members sends for a sum of so many entries."""
    return round(VECTORS * ENTRY_BYTES * entries + STATEMENT_BYTES * members)
