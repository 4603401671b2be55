"""Mistakes in a table or schema: one error has them all. The same mistake on many lines is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p2pfl.errors import UserError

MOST_LINES = 3
"""The most lines that are named for one mistake."""
MOST_MISTAKES = 100
"""The most different mistakes that are kept of one file."""
LEAST_ODD = 2
"""The fewest wrong cells that make a row one mistake."""
LEAVE_OUT = 'on_bad_row = "drop" in [data], to leave such rows out'
"""The alternative remedy for a bad row."""


class MistakesError(UserError):
    """The mistakes of one `place`. It reads as the first of `all`, and says how many there are."""

    place = "file"

    def __init__(self, mistakes: Sequence[UserError], more: int = 0) -> None:
        first, others = mistakes[0], len(mistakes) - 1 + more
        text = first.message
        if others:
            text += f" (and {others} other mistake{'s' * (others > 1)} in this {self.place}: `p2pfl check` lists them)"
        super().__init__(text, file=first.file, key=first.key, value=first.value, allowed=first.allowed)
        self.all = tuple(mistakes)
        self.more = more
        """The number of further mistakes that were counted but not kept."""


class TableError(MistakesError):
    """The mistakes of one table."""

    place = "table"


class SchemaError(MistakesError):
    """The mistakes of one schema."""

    place = "schema"


def mistakes_of(error: UserError) -> list[UserError]:
    """Every mistake that an error stands for."""
    if not isinstance(error, MistakesError):
        return [error]
    for mistake in error.all:
        mistake.file = mistake.file or error.file  # the caller that knows the file sets it on the outer error alone
    rest = UserError(f"{error.more} more mistakes of other values", file=error.file)
    return [*error.all, *([rest] if error.more else [])]


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of mistake. `column` is the name in the file; empty: it is about a whole row."""

    column: str
    message: str
    value: object
    allowed: str
    is_gap: bool = False
    """True for an empty cell that the schema requires, which does not make a bad row."""

    @property
    def text(self) -> str:
        where = f"column {self.column!r}: " if self.column else ""
        found = "" if self.value is None else f" (found {self.value!r})"
        return f"{where}{self.message}{found}"


@dataclass(frozen=True, slots=True)
class Dropped:
    """The bad rows of a file that were left out."""

    count: int = 0
    lines: tuple[int, ...] = ()
    """The first few lines."""
    first: str = ""
    """The mistake in the first row."""

    def as_sentence(self, rows: int) -> str:
        """A sentence about the dropped rows; `rows` are those that are left."""
        many = f"{self.count} rows of {rows + self.count} are" if self.count > 1 else f"1 row of {rows + 1} is"
        return f"{many} left out, because on_bad_row is drop: {_lines(self.lines, self.count)}; the first: {self.first}"


NONE_DROPPED = Dropped()


@dataclass(slots=True)
class TableMistakes:
    """Collects the mistakes of one file. `drops`: bad rows are counted, not reported."""

    file: Path
    drops: bool = False
    whole: list[UserError] = field(default_factory=list)
    """Mistakes of the file or its header."""
    cells: dict[Cell, list[int]] = field(default_factory=dict)
    """The first lines of each mistake."""
    counts: dict[Cell, int] = field(default_factory=dict)
    more: int = 0
    odd: Cell | None = None
    """Stands for all rows with mostly wrong cells; it describes the first one."""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """The first rows that were left out: their lines, and what is wrong with each."""
    bad_rows: int = 0

    def add(self, message: str, *, key: str | None = None, value: object = None, allowed: str | None = None) -> None:
        if len(self.whole) < MOST_MISTAKES:
            self.whole.append(UserError(message, file=self.file, key=key, value=value, allowed=allowed))
        else:
            self.more += 1

    def add_row(self, line: int, row: Cell) -> None:
        """Add a bad row, whose cells are not examined."""
        if self.drops:
            self._drop(line, row.text)
        else:
            self.add_cell(line, row)

    def add_odd_row(self, line: int, wrong: Sequence[Cell], count: int) -> None:
        """Add a row with mostly wrong cells, of `count`: all such rows are one mistake."""
        if self.odd is None or self.drops:
            said = ", ".join(f"column {cell.column!r}: {cell.value!r}" for cell in wrong[:MOST_LINES])
            text = f"{len(wrong)} of {count} cells do not fit their columns: {said}"
            text += ", ..." if len(wrong) > MOST_LINES else ""
            self.odd = Cell("", text, None, f"a row like the others; or another separator or decimal; or {LEAVE_OUT}")
        self.add_row(line, self.odd)

    def judge(self, line: int, wrong: Sequence[Cell], count: int) -> bool:
        """Judge a row with these wrong cells, of `count`. True: it is left out; else they are mistakes."""
        unreadable = [cell for cell in wrong if not cell.is_gap]
        if self.drops and unreadable:
            self._drop(line, unreadable[0].text)
            return True
        if len(unreadable) >= LEAST_ODD and 2 * len(unreadable) > count:
            self.add_odd_row(line, unreadable, count)
        else:
            for cell in wrong:
                self.add_cell(line, cell)
        return False

    def _drop(self, line: int, why: str) -> None:
        self.bad_rows += 1
        self.bad = sorted([*self.bad, (line, why)])[:MOST_LINES]

    def add_cell(self, line: int, cell: Cell) -> None:
        if cell not in self.cells and len(self.cells) == MOST_MISTAKES:
            self.more += 1
            return
        lines = self.cells.setdefault(cell, [])
        self.counts[cell] = self.counts.get(cell, 0) + 1
        if len(lines) < MOST_LINES:
            lines.append(line)

    @property
    def dropped(self) -> Dropped:
        if not self.bad:
            return NONE_DROPPED
        return Dropped(self.bad_rows, tuple(line for line, _ in self.bad), f"line {self.bad[0][0]}, {self.bad[0][1]}")

    def raise_any(self) -> None:
        """Raise TableError if there are mistakes."""
        found = self.whole + [self._error(cell) for cell in sorted(self.cells, key=lambda cell: self.cells[cell][0])]
        if found:
            raise TableError(found, self.more)

    def _error(self, cell: Cell) -> UserError:
        key = _lines(self.cells[cell], self.counts[cell]) + (f", column {cell.column!r}" if cell.column else "")
        return UserError(cell.message, file=self.file, key=key, value=cell.value, allowed=cell.allowed)


def _lines(lines: Sequence[int], count: int) -> str:
    said = f"line {lines[0]}" if count == 1 else f"lines {', '.join(map(str, lines))}"
    return said + (f" and {count - len(lines)} more" if count > len(lines) else "")
