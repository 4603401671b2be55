"""Which axis of a sweep becomes what in its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BYTES = "bytes_per_node"
NOTHING = ""
"""the only value of the only axis of a sweep without axes."""
MOST_SIGNS = 8
"""so many colors or markers are told apart."""
FEWEST_NUMBERS = 3
"""so many numbers make a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Axes by name; None where there are not so many. `across` None: bytes. `numeric`: it is drawn to scale.

    `label` is the axis whose values stand beside the points, because it has too many for colors.
    """

    across: str | None
    color: str | None
    marker: str | None
    panels: tuple[str, ...]
    numeric: bool
    label: str | None = None
    values: Mapping[str, Sequence[Any]] = field(repr=False)

    def place(self, name: str | None, row: Mapping[str, Any]) -> int:
        return 0 if name is None else self.values[name].index(row["values"].get(name, NOTHING))

    def many(self, name: str | None) -> int:
        """An axis that there is not has one value."""
        return 1 if name is None else len(self.values[name])


def assign(axes: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> Roles:
    """Only axes with more than one value in `rows` count; of these, the file's order decides."""
    present = {name: _present(name, given, rows) for name, given in axes.items()}
    values = {name: found for name, found in present.items() if len(found) > 1}
    values = values or dict(list(present.items())[:1]) or {NOTHING: [NOTHING]}
    across = _across(values, rows)
    many = across is None and len(values["compressor"]) > MOST_SIGNS
    label = "compressor" if many else None
    rest = [name for name in values if name not in {across, label}]
    if across is None and len(rest) > 1 and "compressor" in rest:
        # bytes tell most compressors apart already
        rest.sort(key=lambda name: name == "compressor")
        signs = [name for name in rest if len(values[name]) <= MOST_SIGNS]
        signs = [*signs[:1], *(["compressor"] if "compressor" in signs[1:] else signs[1:2])]
    else:
        signs = [name for name in rest if len(values[name]) <= MOST_SIGNS][:2]
    color, marker = (*signs, None, None)[:2]
    panels = tuple(name for name in rest if name not in signs)
    numeric = across is not None and _numeric(values[across])
    return Roles(across=across, color=color, marker=marker, panels=panels, numeric=numeric, label=label, values=values)


def _present(name: str, given: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    found = {row["values"][name] for row in rows}
    return [value for value in given if value in found]


def _across(values: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> str | None:
    if "compressor" in values and all(row["metrics"][BYTES] for row in rows):
        return None
    lines = [name for name in values if _numeric(values[name])]
    return next(iter(lines), next(iter(values), None))


def _numeric(values: Sequence[Any]) -> bool:
    return len(values) >= FEWEST_NUMBERS and all(isinstance(value, int | float) for value in values)
