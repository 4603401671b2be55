"""Guess the kind of a column in an unknown table from its cells."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from p2pfl.learn.table import cells
from p2pfl.learn.table.layout import Layout

Kind = Literal["number", "category", "text", "date", "identifier", "empty"]

MOST_VALUES = 1000
"""The most different values that are counted in one column."""
MOST_CATEGORIES = 30
"""A column with more different texts is free text."""
MOST_LEVELS = 10
"""A column with more different whole numbers is no category."""
SENTINELS = (0.0, -9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0)
"""Numbers that often stand for a missing value, where they are far from the others."""
FAR = 2.0
"""A number is far from the others if it is this many times as large as the next one."""
FAR_FROM_ZERO = 3.0
"""Zero is far from the other numbers if their mean is this many standard deviations from it."""
MOST_CODE_SHARE = 0.5
"""A text in more of the cells than this is no code for missing among numbers."""
MOST_CODES = 2
PEOPLE = "patient|person|subject|participant|respondent|case|record|sample|row|user|customer|client"
IDENTIFIER = re.compile(
    rf"(?:.*[_\s.-])?(?:ids?|uuid|guid|mrn|(?:{PEOPLE})(?:id|no|nr)?)|id[_\s.-].*",
    re.IGNORECASE,
)
"""Names of columns that name rows, if no two values are alike and they are whole numbers or texts."""
MAYBE_IDENTIFIER = re.compile(r"(?:.*[_\s.-])?(?:nr|no|num|number|index|key|code|barcode|serial)", re.IGNORECASE)
"""Names of columns that also name rows if there are enough rows."""
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
CODE = re.compile(r"(?=.*\d)(?=.*[A-Za-z_#/-])[\w#/:-]{2,64}", re.ASCII)
"""Texts that look like codes."""
LEAST_ROWS = 20
"""The fewest rows for which it is a surprise that all values differ."""
LEAST_NAMED_ROWS = 5
"""The fewest rows for that surprise in a column whose name suggests that it names rows."""
EXPECTED_PAIRS = 7.0
"""Whole numbers without equal pairs were assigned, not measured, if chance alone would make this many pairs: the chance
of no pair is below one in a thousand.
"""
MOST_DISTINCT = 1 << 17
"""The most different values that are remembered to check whether any two are alike."""


@dataclass(slots=True)
class Column:
    """The statistics of one column. Sums leave out the sentinels, which are counted apart."""

    name: str
    rows: int = 0
    missing: int = 0
    numbers: int = 0
    dates: int = 0
    total: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    is_whole: bool = True
    sentinels: Counter[float] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    """Cells that hold no number, spelled."""
    values: Counter[str] = field(default_factory=Counter)
    """All cells that are not missing, spelled; of too many different ones the first."""
    is_too_varied: bool = False
    distinct: set[int] | None = field(default_factory=set)
    """Hashes of all cells that are not missing, spelled, while no two are alike and none is a fraction; then None."""

    def see(self, text: str, count: int, layout: Layout, codes: frozenset[str], *, fold: bool) -> None:
        """Count `count` cells with this text."""
        self.rows += count
        if cells.is_missing(text, codes, layout.decimal):
            self.missing += count
            return
        value = cells.spelled(text, decimal=layout.decimal, ignore_case=fold)
        if value in self.values or len(self.values) < MOST_VALUES:
            self.values[value] += count
        else:
            self.is_too_varied = True
        number = cells.number(text, layout.decimal)
        self._see_whether_distinct(value, number, count)
        if number is None:
            self._see_text(value, text, count)
        elif number in SENTINELS:
            self.sentinels[number] += count
        else:
            self._see_number(number, count)

    def _see_whether_distinct(self, value: str, number: float | None, count: int) -> None:
        if self.distinct is None:
            return
        if count > 1 or hash(value) in self.distinct or (number is not None and not number.is_integer()):
            self.distinct = None
        elif len(self.distinct) < MOST_DISTINCT:
            self.distinct.add(hash(value))

    def _see_text(self, value: str, text: str, count: int) -> None:
        self.dates += count if cells.is_date(text) else 0
        if value in self.texts or len(self.texts) < MOST_VALUES:
            self.texts[value] += count

    def _see_number(self, number: float, count: int) -> None:
        self.numbers += count
        self.total += number * count
        self.squares += number * number * count
        self.low, self.high = min(self.low, number), max(self.high, number)
        self.is_whole = self.is_whole and number.is_integer()

    @property
    def known(self) -> int:
        return self.rows - self.missing

    def decide(self) -> None:
        """Treat sentinels that are far from the other numbers as missing, and count the others as the
        numbers they are.
        """
        for number in sorted(self.sentinels):
            count = self.sentinels[number]
            if not (self.numbers and self._is_far(number)):
                del self.sentinels[number]
                self._see_number(number, count)

    def _is_far(self, number: float) -> bool:
        """True for a negative code among numbers that are not negative, one that is far above all of them, or 0 far
        below many.
        """
        if number < 0:
            return self.low >= 0
        if number == 0:
            mean = self.total / self.numbers
            std = math.sqrt(max(0.0, self.squares / self.numbers - mean**2))
            return len(self.values) > MOST_LEVELS and self.low >= std > 0 and mean >= FAR_FROM_ZERO * std
        return self.low >= 0 and 0 < self.high * FAR <= number

    @property
    def codes(self) -> tuple[str, ...]:
        """The values that seem to mean missing: a far number, or a rare text among numbers."""
        found = [f"{number:g}" for number in sorted(self.sentinels)]
        return (*found, *sorted(self._odd_texts()))

    def _odd_texts(self) -> Iterable[str]:
        words, count = len(self.texts), sum(self.texts.values())
        few = words <= MOST_CODES and count <= MOST_CODE_SHARE * self.known
        return self.texts if self.numbers and few and not self.dates else ()

    @property
    def kind(self) -> Kind:
        odd = set(self._odd_texts())
        texts = sum(count for text, count in self.texts.items() if text not in odd)
        if not self.numbers and not texts:
            return "empty"
        if self.dates > MOST_CODE_SHARE * self.known:
            return "date"
        if self._names_rows(texts):
            return "identifier"
        if not texts:
            return "number"
        few = not self.is_too_varied and len(self.values) <= min(MOST_CATEGORIES, max(2, self.known // 2))
        return "category" if few else "text"

    def _names_rows(self, texts: int) -> bool:
        """True if the column names the rows: no two values are alike, and its name says so, or they look like codes, or
        chance alone would have made some alike. `texts` counts its cells that hold neither numbers nor codes for
        missing.
        """
        if self.distinct is None or self.known < LEAST_NAMED_ROWS:
            return False
        words = CAMEL.sub("_", self.name)
        if IDENTIFIER.fullmatch(words):
            return True
        if self.known < LEAST_ROWS:
            return False
        if MAYBE_IDENTIFIER.fullmatch(words):
            return True
        if texts:
            return all(CODE.fullmatch(text) for text in self.texts)
        pairs = self.numbers * (self.numbers - 1) / 2
        return pairs > EXPECTED_PAIRS * (self.high - self.low + 1)

    @property
    def might_name_rows(self) -> bool:
        """True if whole numbers may name rows or their subjects: no two are alike, or the column's name says so."""
        if self.kind != "number" or not self.is_whole or self.known < LEAST_ROWS:
            return False
        is_called_so = IDENTIFIER.fullmatch(CAMEL.sub("_", self.name)) and len(self.values) > MOST_LEVELS
        return self.distinct is not None or bool(is_called_so)

    @property
    def levels(self) -> dict[str, int]:
        """Count the cells of each value, where the values are few enough to be a category's."""
        missing = {*self.codes}
        found = {value: count for value, count in self.values.items() if value not in missing}
        if self.is_too_varied:
            return {}
        if self.kind == "number":
            return found if self.is_whole and len(found) <= MOST_LEVELS else {}
        return found if self.kind == "category" else {}
