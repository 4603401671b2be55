"""All that was said of sums, sorted by set-up and slot: monotone, so that the order of statements does not matter.

A slot is one question of one set-up: its roster, or who is in the sum of a number. A member signs at most one list for
a slot, ever, or gives the slot up and then signs none. A quorum is more than (n + t) / 2 of all n members of the
federation: two quorums share over t members, one of whom is honest: it signed one list (doi 10.1145/4221.214134).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from p2pfl.features.sums.messages import (
    PLAIN,
    Ack,
    Keys,
    MemberList,
    Parcel,
    Reveal,
    SetupOpening,
    SlotQuit,
    SlotVote,
    Statement,
    SumSettings,
    VectorReady,
    Wave,
    encode_statement,
    members_of,
)
from p2pfl.features.sums.statement_log import Blame, NewStatement
from p2pfl.limits import MOST_RECORD_KEYS


@dataclass(slots=True, kw_only=True)
class SlotTally:
    """All statements about one number, votes among them, as they come in: in any order, any number of times."""

    needed: int
    """The signers of a list that is certified."""
    lists: dict[bytes, MemberList] = field(default_factory=dict)
    """The lists proposed, by id."""
    authors: dict[bytes, int] = field(default_factory=dict)
    """The author of each list, by its id."""
    signed: dict[int, bytes] = field(default_factory=dict)
    """The id of the list that each signer has signed first."""
    quit: dict[int, str] = field(default_factory=dict)
    """The reason of each who has given the slot up."""
    ready: dict[int, bytes] = field(default_factory=dict)
    """The terms of each member who has its vector."""
    waves: dict[bytes, NewStatement] = field(default_factory=dict)
    """The waves, by id."""
    own: dict[int, list[bytes]] = field(default_factory=dict)
    """The secrets that members have revealed of their own."""
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """The shares revealed of each member, by holder."""
    news: set[int] = field(default_factory=set)
    """The members with revealed secrets or shares that nobody has looked at yet."""

    @property
    def certified(self) -> MemberList | None:
        """The list with a quorum. Two authors' lists that say the same are one: members may differ about turns."""
        if len(self.signed) < self.needed:
            return None
        counts = Counter(self.lists[name] for name in self.signed.values() if name in self.lists)
        commonest, count = counts.most_common(1)[0] if counts else (None, 0)
        return commonest if count >= self.needed else None

    @property
    def is_dead(self) -> bool:
        """True if no list of this slot can be certified any more."""
        return len(self.quit) >= self.needed

    def take_reveal(self, author: int, reveal: Reveal) -> None:
        if reveal.own:
            self.own.setdefault(author, []).append(reveal.own)
            self.news.add(author)
        for member, share in reveal.shares:
            self.shares.setdefault(member, {}).setdefault(author, share)
            self.news.add(member)


class SetupTally:
    """Everything said of one set-up. `named` are the ids of the keys that its opening names, by member."""

    def __init__(self, needed: int, opener: int = -1, named: Mapping[int, bytes] = MappingProxyType({})) -> None:
        self.opener, self.named = opener, named
        self.parcels: list[tuple[int, Parcel]] = []
        """Those for this node, with their dealers, who may have dealt a false one first."""
        self.acks: dict[int, set[int]] = defaultdict(set)
        self.slots: dict[int, SlotTally] = defaultdict(lambda: SlotTally(needed=needed))

    def take(self, taken: NewStatement, index: int) -> None:
        """`index` is this node's."""
        author, statement = taken.author, taken.statement
        match statement:
            case Parcel():
                if statement.to == index:
                    self.parcels.append((author, statement))
            case Ack():
                self.acks[author].update(members_of(statement.holds))
            case VectorReady():
                self.slots[statement.number].ready.setdefault(author, statement.terms)
            case Wave():
                self.slots[statement.number].waves[taken.id] = taken
            case MemberList():
                slot = self.slots[statement.number]
                slot.lists.setdefault(taken.id, statement)
                slot.authors[taken.id] = author
            case SlotVote():
                self.slots[statement.number].signed.setdefault(author, statement.chosen)
            case SlotQuit():
                self.slots[statement.number].quit.setdefault(author, statement.reason)
            case Reveal():
                self.slots[statement.number].take_reveal(author, statement)
            case _:
                raise TypeError(f"{type(statement).__name__} belongs to no set-up")


class Records:
    def __init__(self, settings: SumSettings, blame: Blame) -> None:
        self._settings, self._blame = settings, blame
        self.tallies: dict[bytes, SetupTally] = {}
        """The statements about each set-up that is kept, by its id."""
        self.latest: dict[int, bytes] = {}
        """The id of each member's latest keys, in whatever order they have come."""
        self._keys: dict[int, dict[bytes, Keys]] = {}
        self._used: set[bytes] = set()
        """Those of the kept keys that an opening has named."""

    def tally(self, setup: bytes) -> SetupTally:
        """Return what is said about a set-up; one that is not kept has nothing."""
        return self.tallies.get(setup) or SetupTally(self._settings.quorum)

    def take(self, taken: NewStatement) -> None:
        statement = taken.statement
        if isinstance(statement, Keys):
            of = self._keys.setdefault(taken.author, {})
            of[taken.id] = statement
            named = [(tally.opener, tally.named.get(taken.author)) for tally in self.tallies.values()]
            if any(name == taken.id and not self._blame.is_struck(opener) for opener, name in named):
                self._used.add(taken.id)
            in_order = sorted(of, key=lambda name: (of[name].life, of[name].serial))
            self.latest[taken.author] = in_order[-1]
            for old in in_order[:-MOST_RECORD_KEYS]:
                if old not in dict(named).values():
                    del of[old]
                    self._used.discard(old)
        elif isinstance(statement, SetupOpening):
            tally = SetupTally(self._settings.quorum, taken.author, statement.named() or {})
            self.tallies[taken.id] = tally
            if not self._blame.is_struck(taken.author):
                self.use(tally.named)
        elif statement.setup in self.tallies:
            self.tallies[statement.setup].take(taken, self._settings.index)

    def use(self, named: Mapping[int, bytes]) -> None:
        """The keys that an opening names serve no other one."""
        self._used |= {name for member, name in named.items() if name in self._keys.get(member, ())}

    @property
    def fresh(self) -> dict[int, bytes]:
        """The members whose latest keys no opening has named, and the ids of these, in no order."""
        return {member: name for member, name in self.latest.items() if name not in self._used}

    def proves(self, author: int, statement: Statement, body: bytes) -> bool | None:
        """True if a statement needs no signature, as nobody could make another one: a seed that its author's keys name.

        And all members of the set-up understand that. None: their keys are not all here; those of this node's own that
        it has forgotten by a restart do not count.
        """
        if not isinstance(statement, Reveal) or statement.shares or body != encode_statement(statement):
            return False
        named = self.tally(statement.setup).named
        keys = self.keys_of(named)
        if author not in keys or named.keys() - keys.keys() - {self._settings.index}:
            return None
        is_plain = all(each.serial >= PLAIN for each in keys.values())
        return is_plain and keys[author].has_seed(statement.number, statement.own)

    def keys_of(self, named: Mapping[int, bytes]) -> dict[int, Keys]:
        """The keys that an opening names, as far as they are here (yet)."""
        return {m: self._keys[m][name] for m, name in named.items() if name in self._keys.get(m, ())}


def atoms(sets: Collection[frozenset[int]]) -> list[int]:
    """The sizes of the groups of members who are in the same ones of these sets. Who is in none is in no group."""
    everybody = frozenset().union(*sets)
    return sorted(Counter(tuple(member in each for each in sets) for member in everybody).values())


class SumHistory:
    """The member sets for which this member has signed sums, by the digest of its own data in them.

    Any linear combination of sums weighs all members of an atom alike. So if each atom has at least `least` members, no
    combination of any number of sums tells of fewer: more than pairs of sums would show.
    """

    def __init__(self, least: int, past: Iterable[tuple[bytes, frozenset[int]]] = ()) -> None:
        self._least = least
        self._atoms: dict[bytes, frozenset[frozenset[int]]] = {}
        """The atoms of the sets of each data: however many sums there are, no more than members."""
        for data, members in past:
            self.keep(data, members)

    def keep(self, data: bytes, members: frozenset[int]) -> None:
        self._atoms[data] = self._split(data, members)

    def adds(self, data: bytes, members: frozenset[int]) -> bool:
        """Return True if a set says more than those before it: if it is no union of their atoms."""
        return self._split(data, members) != self._atoms.get(data)

    def allows(self, data: bytes, members: frozenset[int]) -> bool:
        return min(map(len, self._split(data, members))) >= self._least

    def _split(self, data: bytes, members: frozenset[int]) -> frozenset[frozenset[int]]:
        before = self._atoms.get(data, frozenset())
        atoms = {members.difference(*before)}
        for atom in before:
            atoms |= {atom & members, atom - members}
        return frozenset(atoms - {frozenset()})
