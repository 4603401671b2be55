"""All that the board has brought, sorted by set-up, and whose keys are fresh."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from p2pfl.features.sums.board import Taken
from p2pfl.features.sums.setup import SumSetup, fits
from p2pfl.features.sums.sum_messages import Keys, SetupOpening
from p2pfl.features.sums.sum_settings import SumSettings
from p2pfl.features.sums.tally import SetupTally

MOST_TALLIES = 32
MOST_KEYS = 4
"""The latest keys of an author that are kept."""


class Records:
    def __init__(self, settings: SumSettings) -> None:
        self._settings = settings
        self.tallies: OrderedDict[bytes, SetupTally] = OrderedDict()
        """What is said about each set-up, by its id."""
        self.latest: dict[int, bytes] = {}
        """The id of each member's latest keys, in whatever order they have come."""
        self._keys: dict[int, dict[bytes, Keys]] = {}
        self._used: set[bytes] = set()
        self.blamed: set[int] = set()
        """The authors whose openings are ignored, as one of theirs named keys that nobody has."""
        self._fresh: dict[int, bytes] = {}

    def tally(self, setup: bytes) -> SetupTally:
        if setup not in self.tallies:
            self.tallies[setup] = SetupTally(self._settings.quorum)
            if len(self.tallies) > MOST_TALLIES:
                self.tallies.popitem(last=False)
        self.tallies.move_to_end(setup)
        return self.tallies[setup]

    def take(self, taken: Taken) -> None:
        statement = taken.statement
        if isinstance(statement, Keys):
            if not fits(statement, self._settings.sums):
                return
            of = self._keys.setdefault(taken.author, {})
            of[taken.id] = statement
            newest = max(of.items(), key=lambda each: (each[1].life, each[1].serial))
            self.latest[taken.author] = newest[0]
            self._refresh(taken.author)
            if len(of) > MOST_KEYS:
                oldest = min(of, key=lambda name: (of[name].life, of[name].serial))
                del of[oldest]
                self._used.discard(oldest)
            return
        if isinstance(statement, SetupOpening):
            if taken.author in self.blamed:
                return
            named = SumSetup.named_keys(statement)
            self._used.update(() if named is None else named.values())
            for member in named or ():
                self._refresh(member)
        setup = taken.id if isinstance(statement, SetupOpening) else statement.setup
        self.tally(setup).take(taken, self._settings.index)

    def _refresh(self, member: int) -> None:
        name = self.latest.get(member)
        if name is not None and name not in self._used:
            self._fresh[member] = name
        else:
            self._fresh.pop(member, None)

    @property
    def fresh(self) -> Mapping[int, bytes]:
        """The members whose latest keys no opening has named, and the ids of these, in no order."""
        return self._fresh

    def keys_of(self, opening: SetupOpening) -> dict[int, Keys] | None:
        """The keys that an opening names; None: they are not all here (yet)."""
        found = {}
        named = SumSetup.named_keys(opening)
        for member, name in ({} if named is None else named).items():
            of = self._keys.get(member)
            keys = of.get(name) if of is not None else None
            if keys is None:
                return None
            found[member] = keys
        return found or None
