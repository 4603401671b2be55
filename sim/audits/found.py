"""The findings of an audit: its table, and signs that no mechanism shows that does what it claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sim.audits.reconstruction import Guess

Value = float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackRow:
    """One line of the table: the results of an attack in a `place`, by the name of the layer."""

    attack: str
    place: str
    unit: str
    values: dict[str, Value]


@dataclass(slots=True, kw_only=True)
class AuditFound:
    """The findings. `guesses` are the inversions of what a real node sent, by layer, for the picture."""

    node: str
    samples: int
    layers: list[str]
    rows: list[AttackRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    """Signs that a mechanism that does what it claims would not show."""
    guesses: dict[str, tuple[Guess, ...]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, attack: str, place: str, unit: str, values: Mapping[str, Value]) -> None:
        """Add figures by layer to the row of that attack, or to a new row."""
        if not values:
            return
        for row in self.rows:
            if (row.attack, row.place, row.unit) == (attack, place, unit):
                row.values.update(values)
                return
        full = {name: values.get(name) for name in self.layers}
        self.rows.append(AttackRow(attack=attack, place=place, unit=unit, values=full))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "samples": self.samples,
            "layers": self.layers,
            "rows": [asdict(row) for row in self.rows],
            "notes": self.notes,
            "mistakes": self.mistakes,
            "seconds": round(self.seconds, 1),
        }
