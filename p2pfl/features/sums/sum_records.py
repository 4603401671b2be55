"""All that the board has brought, sorted by set-up, and whose keys are fresh."""

from __future__ import annotations

from collections.abc import Container, Mapping

from p2pfl.features.sums.blame import Blame
from p2pfl.features.sums.board import Taken
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
            named = [(t.opening[0], t.named.get(taken.author)) for t in self.tallies.values() if t.opening is not None]
            if any(name == taken.id and not self._blame.is_struck(opener) for opener, name in named):
                self._used.add(taken.id)
            self.latest[taken.author] = max(of, key=lambda name: (of[name].life, of[name].serial))
            self._refresh(taken.author)
            for old in sorted(of, key=lambda name: (of[name].life, of[name].serial))[:-MOST_KEYS]:
                if old not in dict(named).values():
                    del of[old]
                    self._used.discard(old)
            return
        if isinstance(statement, SetupOpening):
            self.tallies[taken.id] = SetupTally(self._settings.quorum)
        setup = taken.id if isinstance(statement, SetupOpening) else statement.setup
        if setup in self.tallies:
            self.tallies[setup].take(taken, self._settings.index)
        if isinstance(statement, SetupOpening) and not self._blame.is_struck(taken.author):
            self.use(self.tallies[setup].named)

    def use(self, named: Mapping[int, bytes]) -> None:
        """The keys that an opening names serve no other one."""
        for member, name in named.items():
            if name in self._keys.get(member, ()):
                self._used.add(name)
            self._refresh(member)

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

    def keys_of(self, named: Mapping[int, bytes]) -> dict[int, Keys]:
        """The keys that an opening names, as far as they are here (yet)."""
        return {m: self._keys[m][name] for m, name in named.items() if name in self._keys.get(m, ())}
