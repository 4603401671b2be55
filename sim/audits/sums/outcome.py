"""What an audit of sums has found, in plain words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.audits.sums.combinations import Coalition, KnownCombinations
from sim.audits.sums.game import Guesses, probability
from sim.audits.sums.play import SumCast

MOST_NAMES = 3


@dataclass(slots=True, kw_only=True)
class CoalitionRow:
    """What the best of the coalitions of one size learns.

    `smallest`: the fewest honest members of whom a combination was found; `guesses`: the game's; `surprise`: how far
    from chance the least even bytes are, in standard deviations.
    """

    size: int
    tried: int = 0
    members: tuple[int, ...] = ()
    smallest: tuple[int, ...] = ()
    honest: int = 0
    has_excess: bool = False
    guesses: Guesses | None = None
    surprise: float = 0.0
    vectors: int = 0
    """The number of vectors whose bytes were counted."""

    @property
    def reach(self) -> tuple[bool, bool, int]:
        """Orders rows by how much is learned."""
        return self.has_excess, bool(self.smallest), -len(self.smallest)

    def take(
        self,
        coalition: Coalition,
        found: KnownCombinations,
        smallest: tuple[int, ...],
        guesses: Guesses,
        surprises: Sequence[float],
    ) -> None:
        self.tried += 1
        self.vectors += len(surprises)
        self.surprise = max([self.surprise, *surprises])
        if self.guesses is None or guesses.trained > self.guesses.trained:
            self.guesses = guesses
        reach = found.excess > 0, bool(smallest), -len(smallest)
        if not self.members or reach > self.reach:
            self.members, self.smallest = tuple(sorted(coalition.members)), smallest
            self.honest, self.has_excess = len(found.honest), found.excess > 0


@dataclass(slots=True, kw_only=True)
class DeedRow:
    """What came of a deed: the plays, and how many of the honest members' sums were done."""

    name: str
    text: str
    plays: int = 0
    sums: int = 0
    of: int = 0
    best: CoalitionRow | None = None

    def take(self, row: CoalitionRow, *, sums: int, of: int) -> None:
        self.plays += 1
        self.sums, self.of = self.sums + sums, self.of + of
        if self.best is None or row.reach > self.best.reach:
            self.best = row


@dataclass(slots=True, kw_only=True)
class SumsFound:
    cast: SumCast
    victim: int
    sizes: dict[int, CoalitionRow] = field(default_factory=dict)
    deeds: list[DeedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    """Signs that a protocol that does what it claims would not show."""
    seconds: float = 0.0

    def of_size(self, size: int) -> CoalitionRow:
        return self.sizes.setdefault(size, CoalitionRow(size=size))

    def mistake(self, text: str) -> None:
        if text not in self.mistakes:
            self.mistakes.append(text)

    @property
    def held(self) -> int:
        """The largest size up to which no coalition that was tried learned more than the sums; of all others but one,
        the sum is a vector.
        """
        broken = [row.size for row in self.sizes.values() if row.has_excess]
        return min([*broken, self.cast.count - 1, max(self.sizes, default=0) + 1]) - 1

    def named(self, members: Collection[int]) -> str:
        names = [self.cast.names[member] for member in sorted(members)]
        if len(names) > MOST_NAMES:
            return f"{', '.join(names[:2])} and {len(names) - 2} others"
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

    def learn(self, row: CoalitionRow) -> str:
        """What a coalition of this size learns, in words."""
        if not row.smallest:
            return "nothing"
        if row.size == self.cast.count - 1:
            return f"the vector of {self.named(row.smallest)}: the sum less their own"
        if len(row.smallest) == 1:
            return f"the vector of {self.named(row.smallest)}"
        whose = "all others" if len(row.smallest) == row.honest else self.named(row.smallest)
        if row.has_excess:
            return f"the sum of {whose} by themselves"
        return "the sum of all others" if len(row.smallest) == row.honest else f"sums, the smallest that of {whose}"

    def rows(self) -> list[dict[str, Any]]:
        """The table: sizes of coalitions that only look, then deeds."""
        rows = [self._row(f"{row.size} look", row, row.tried) for _, row in sorted(self.sizes.items())]
        for deed in self.deeds:
            if deed.best is not None:
                done = {"sums": f"{deed.sums} of {deed.of}"}
                rows.append(self._row(f"{deed.best.size}: {deed.name}", deed.best, deed.plays) | done)
        return rows

    def _row(self, name: str, row: CoalitionRow, tried: int) -> dict[str, Any]:
        is_promised = row.size <= self.cast.colluders
        return {
            "colluders": name,
            "tried": tried,
            "such as": self.named(row.members),
            "learn": self.learn(row),
            "advantage": self._advantage(row.guesses),
            "sums": None,
            "as promised": ("no" if row.has_excess else "yes") if is_promised else "-",
        }

    @staticmethod
    def _advantage(guesses: Guesses | None) -> str:
        if guesses is None:
            return "-"
        low, high = guesses.interval()
        return f"{guesses.advantage:+.2f} ({low:+.2f} to {high:+.2f})"

    def summary(self) -> list[str]:
        """Sentences for people. They claim what was tried, and no more."""
        cast, most = self.cast, max(self.sizes, default=0)
        promised = f"promised is {cast.colluders}"
        tried = f"no coalition of up to {self.held} that was tried learned more than the sum of the others"
        words = [f"{cast.count} members, {len(cast.edges)} edges: {tried} ({promised})."]
        beyond = self.sizes.get(self.held + 1)
        if beyond is not None and self.held < most:
            words.append(f"{self.held + 1} together, such as {self.named(beyond.members)}, learn {self.learn(beyond)}.")
        looked = [row for row in self.sizes.values() if row.size <= cast.colluders]
        if any(row.vectors for row in looked):
            worst, vectors = max(row.surprise for row in looked), sum(row.vectors for row in looked)
            words.append(
                f"What up to {cast.colluders} see of {self.named([self.victim])}, less all masks that they know: among "
                f"{vectors} random vectors the least even bytes would be as uneven in "
                f"{min(1.0, vectors * probability(worst)):.1%} of cases or more."
            )
        return words

    def as_json(self) -> dict[str, Any]:
        return {
            "members": self.cast.count,
            "promised": self.cast.colluders,
            "least": self.cast.least,
            "held": self.held,
            "rows": self.rows(),
            "deeds": {row.name: {"what": row.text, "sums": row.sums, "of": row.of} for row in self.deeds},
            "summary": self.summary(),
            "notes": self.notes,
            "mistakes": self.mistakes,
            "seconds": round(self.seconds, 1),
        }
