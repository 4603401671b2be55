"""What is wrong in a table: the same mistake on many lines is one, and one error has them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p2pfl.errors import UserError

MOST_LINES = 3
"""Lines that are named of one mistake."""
MOST_MISTAKES = 100
"""Different mistakes that are kept of one file."""


class TableError(UserError):
    """The mistakes of one table. It reads as the first of `all`, and says how many there are."""

    def __init__(self, mistakes: Sequence[UserError], more: int = 0) -> None:
        first, others = mistakes[0], len(mistakes) - 1 + more
        text = first.message
        if others:
            text += f" (and {others} other mistake{'s' * (others > 1)} in this table: `p2pfl check` lists them)"
        super().__init__(text, file=first.file, key=first.key, value=first.value, allowed=first.allowed)
        self.all = tuple(mistakes)
        self.more = more
        """How many further ones were counted and not kept."""


def mistakes_of(error: UserError) -> list[UserError]:
    """Every mistake that an error stands for."""
    if not isinstance(error, TableError):
        return [error]
    rest = UserError(f"{error.more} more mistakes of other values", file=error.file)
    return [*error.all, *([rest] if error.more else [])]


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of mistake. `column` is as the file calls it."""

    column: str
    message: str
    value: str
    allowed: str


@dataclass(slots=True)
class TableMistakes:
    """The mistakes of one file, in the order in which they were met."""

    file: Path
    whole: list[UserError] = field(default_factory=list)
    """About the file or a line, not a cell."""
    cells: dict[Cell, list[int]] = field(default_factory=dict)
    """The first lines of each."""
    counts: dict[Cell, int] = field(default_factory=dict)
    more: int = 0

    def add(self, message: str, *, key: str | None = None, value: object = None, allowed: str | None = None) -> None:
        if len(self.whole) < MOST_MISTAKES:
            self.whole.append(UserError(message, file=self.file, key=key, value=value, allowed=allowed))
        else:
            self.more += 1

    def add_cell(self, line: int, cell: Cell) -> None:
        if cell not in self.cells and len(self.cells) == MOST_MISTAKES:
            self.more += 1
            return
        lines = self.cells.setdefault(cell, [])
        self.counts[cell] = self.counts.get(cell, 0) + 1
        if len(lines) < MOST_LINES:
            lines.append(line)

    def raise_any(self) -> None:
        """Raises TableError: there are some."""
        found = self.whole + [self._error(cell) for cell in self.cells]
        if found:
            raise TableError(found, self.more)

    def _error(self, cell: Cell) -> UserError:
        lines, count = self.cells[cell], self.counts[cell]
        said = f"line {lines[0]}" if count == 1 else f"lines {', '.join(map(str, lines))}"
        said += f" and {count - len(lines)} more" if count > len(lines) else ""
        key = f"{said}, column {cell.column!r}"
        return UserError(cell.message, file=self.file, key=key, value=cell.value, allowed=cell.allowed)
