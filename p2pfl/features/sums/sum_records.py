"""All that the board has brought, sorted by set-up, and whose keys are fresh."""

from __future__ import annotations

from collections.abc import Container, Mapping

from p2pfl.features.sums.blame import Blame
from p2pfl.features.sums.board import Taken
from p2pfl.features.sums.setup import SumSetup
from p2pfl.features.sums.sum_messages import Keys, SetupOpening
from p2pfl.features.sums.sum_settings import SumSettings
from p2pfl.features.sums.tally import SetupTally

MOST_KEYS = 4
"""The latest keys of an author that are kept."""


class Records:
    def __init__(self, settings: SumSettings, blame: Blame) -> None:
        self._settings, self._blame = settings, blame
        self.tallies: dict[bytes, SetupTally] = {}
        """What is said about each set-up that is kept, by its id."""
        self.latest: dict[int, bytes] = {}
        """The id of each member's latest keys, in whatever order they have come."""
        self._keys: dict[int, dict[bytes, Keys]] = {}
        self._used: set[bytes] = set()
        """Those of the kept keys that an opening has named."""
        self._fresh: dict[int, bytes] = {}

    def tally(self, setup: bytes) -> SetupTally:
        """Return what is said about a set-up; one that is not kept has nothing."""
        return self.tallies.get(setup) or SetupTally(self._settings.quorum)

    def keep_only(self, setups: Container[bytes]) -> None:
        self.tallies = {setup: tally for setup, tally in self.tallies.items() if setup in setups}

    def take(self, taken: Taken) -> None:
        statement = taken.statement
        if isinstance(statement, Keys):
            of = self._keys.setdefault(taken.author, {})
            of[taken.id] = statement
            openings = [tally.opening for tally in self.tallies.values() if tally.opening is not None]
            if any(self._counts(opener, opening, taken.author) == taken.id for opener, opening in openings):
                self._used.add(taken.id)
            newest = max(of.items(), key=lambda each: (each[1].life, each[1].serial))
            self.latest[taken.author] = newest[0]
            self._refresh(taken.author)
            if len(of) > MOST_KEYS:
                oldest = min(of, key=lambda name: (of[name].life, of[name].serial))
                del of[oldest]
                self._used.discard(oldest)
            return
        if isinstance(statement, SetupOpening):
            self.tallies[taken.id] = SetupTally(self._settings.quorum)
            if not self._blame.is_struck(taken.author):
                self.use(statement)
        setup = taken.id if isinstance(statement, SetupOpening) else statement.setup
        if setup in self.tallies:
            self.tallies[setup].take(taken, self._settings.index)

    def use(self, opening: SetupOpening) -> None:
        """The keys that an opening names serve no other one."""
        for member, name in (SumSetup.named_keys(opening) or {}).items():
            if name in self._keys.get(member, ()):
                self._used.add(name)
            self._refresh(member)

    def _counts(self, opener: int, opening: SetupOpening, member: int) -> bytes | None:
        """Return the id of a member's keys in an opening that counts."""
        return None if self._blame.is_struck(opener) else (SumSetup.named_keys(opening) or {}).get(member)

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
