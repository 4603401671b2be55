"""What a secure sum gives: sums, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

MOST_NAMED = 8
"""The members that a short text names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SecureSum:
    """Sums of arrays over some nodes of a federation, of which nobody has seen a summand."""

    sums: Mapping[str, NDArray[Any]]
    """The sums by name, each of the shape of its summands; whole numbers where all summands are."""
    members: tuple[str, ...]
    """The names of the nodes whose arrays are in all of the sums."""

    def mean(self) -> dict[str, NDArray[Any]]:
        """The sums divided by the number of members."""
        return {name: total / len(self.members) for name, total in self.sums.items()}

    def __repr__(self) -> str:
        names = ", ".join(self.members[:MOST_NAMED])
        others = f" and {len(self.members) - MOST_NAMED} more" if len(self.members) > MOST_NAMED else ""
        arrays = ", ".join(
            f"{name!r}: {total.item() if not total.ndim else f'{total.dtype} {total.shape}'}"
            for name, total in self.sums.items()
        )
        return f"SecureSum(of {names}{others}; {arrays})"
