"""Registry entries of all compressor stages: each is a decorator on the class that implements the stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from p2pfl.specs import Catalog, Entry, Kind, Parameter

SPARSIFIER, ROTATION, VALUES, ENTROPY = range(4)
"""The position of a stage in a chain, which has at most one of each."""
LARGEST_COUNT = 10**12


@dataclass(frozen=True, kw_only=True)
class StageEntry(Entry):
    """A stage's entry; its source is the one for the compressor in the example."""

    chains: Mapping[str, str] = field(default_factory=dict)
    """Names that others use for a chain with this stage, mapped to its spec."""
    stochastic: bool = False
    """True if `:stochastic` may follow; the code then takes an argument of this name."""
    rotated: Mapping[str, Any] | None = None
    """Additional arguments of the code after `rotate`; None if it cannot follow `rotate`."""
    before: tuple[str, ...] | None = None
    """The stages that may follow; None if all may."""

    @property
    def hints(self) -> Mapping[str, str]:
        return {**super().hints, **self.chains}


STAGES: Catalog[StageEntry] = Catalog("stage")
ALONE: Catalog[StageEntry] = Catalog("compressor")
"""Compressors that are not stages, and stand alone."""


def _read_keep(value: Any) -> int | float:
    if isinstance(value, int):
        if not 1 <= value <= LARGEST_COUNT:
            raise ValueError(f"a count lies from 1 to {LARGEST_COUNT}")
    elif not 0 < value <= 1:
        raise ValueError("a fraction lies in (0, 1]")
    return value  # type: ignore[no-any-return]


KEEP = Parameter(
    "X",
    Kind("a fraction in (0, 1] like 0.05, or a whole number from 1", _read_keep),
    "the values to keep: a share of them, or a count",
    argument="keep",
)


def plain(keep: float) -> str:
    """Write the number as in a spec, without an exponent."""
    return str(keep) if isinstance(keep, int) else format(Decimal(repr(keep)), "f")
