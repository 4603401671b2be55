"""All signed statements that somebody has seen in a play, sorted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from p2pfl.features.sums.messages import (
    ID_BYTES,
    Ack,
    BranchPart,
    Keys,
    MemberList,
    Message,
    Parcel,
    Poll,
    Post,
    Reveal,
    SetupOpening,
    SlotVote,
    Total,
    Wave,
    decode_statement,
    id_of,
    members_of,
)

ROSTER = -1
Slot = tuple[bytes, int]
"""A set-up and the number of a sum."""


@dataclass(slots=True)
class SumBoard:
    """`parts` are the vectors that travelled alone or added, with whose they are said to be."""

    keys: dict[bytes, tuple[int, Keys]] = field(default_factory=dict)
    openings: dict[bytes, SetupOpening] = field(default_factory=dict)
    parcels: list[tuple[int, Parcel]] = field(default_factory=list)
    reveals: list[tuple[int, Reveal]] = field(default_factory=list)
    lists: dict[bytes, MemberList] = field(default_factory=dict)
    votes: dict[Slot, dict[bytes, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    waves: dict[bytes, Wave] = field(default_factory=dict)
    held: dict[bytes, dict[int, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    """For each set-up and member, whose shares it holds: they are its partners."""
    parts: dict[tuple[Slot, bytes], frozenset[int]] = field(default_factory=dict)
    _seen: set[bytes] = field(default_factory=set)
    _keys_in: dict[bytes, dict[int, Keys]] = field(default_factory=dict)

    def keys_in(self, setup: bytes) -> dict[int, Keys]:
        """The keys of a set-up's members; empty while they are not all known."""
        if setup not in self._keys_in:
            opening = self.openings.get(setup)
            members = () if opening is None else members_of(opening.members)
            ids = b"" if opening is None else opening.keys
            names = {member: ids[at * ID_BYTES : (at + 1) * ID_BYTES] for at, member in enumerate(members)}
            found = {m: self.keys[name][1] for m, name in names.items() if name in self.keys}
            self._keys_in[setup] = found if len(found) == len(members) else {}
        return self._keys_in[setup]

    def setups_of(self, member: int) -> list[bytes]:
        return [setup for setup in self.openings if member in self.keys_in(setup)]

    def partners(self, setup: bytes, member: int) -> set[int]:
        held = self.held[setup]
        return set(held[member]) | {other for other in list(held) if member in held[other]}

    def certified(self, needed: int) -> dict[Slot, list[MemberList]]:
        """The lists that so many have signed, by slot."""
        found: dict[Slot, list[MemberList]] = {}
        for slot, chosen in self.votes.items():
            for name, authors in chosen.items():
                if len(authors) >= needed and name in self.lists:
                    found.setdefault(slot, []).append(self.lists[name])
        return found

    def signed_twice(self) -> set[int]:
        """Who has signed two lists of one slot."""
        found = set[int]()
        for chosen in self.votes.values():
            authors = [author for each in chosen.values() for author in each]
            found |= {author for author in authors if authors.count(author) > 1}
        return found

    def forget(self, vector: bytes) -> None:
        self.parts = {key: members for key, members in self.parts.items() if key[1] != vector}

    def take(self, message: Message) -> None:
        match message:
            case Post():
                self._take_post(message)
            case Poll():
                self._take_post(message.wave)
            case BranchPart() if message.wave in self.waves:
                wave = self.waves[message.wave]
                self._take_part((wave.setup, wave.number), message.vector, message.members)
            case Total():
                self._take_part((message.setup, message.number), message.vector, message.members)

    def _take_part(self, slot: Slot, vector: bytes, members: bytes) -> None:
        if vector:
            self.parts.setdefault((slot, vector), frozenset(members_of(members)))

    def _take_post(self, post: Post) -> None:  # noqa: C901 - a table
        name = id_of(post.author, post.body)
        if name in self._seen:
            return
        self._seen.add(name)
        try:
            statement = decode_statement(post.body)
        except msgspec.MsgspecError:
            return
        match statement:
            case Keys():
                self.keys[name] = post.author, statement
            case SetupOpening():
                self.openings[name] = statement
            case Parcel():
                self.parcels.append((post.author, statement))
            case Ack():
                self.held[statement.setup][post.author] |= set(members_of(statement.holds))
            case Wave():
                self.waves[name] = statement
            case MemberList():
                self.lists[name] = statement
            case SlotVote():
                self.votes[statement.setup, statement.number][statement.chosen].add(post.author)
            case Reveal():
                self.reveals.append((post.author, statement))
            case _:
                pass


def board_of(messages: Iterable[Message]) -> SumBoard:
    board, waiting = SumBoard(), list[Message]()
    for message in messages:
        if isinstance(message, BranchPart):
            waiting.append(message)
        else:
            board.take(message)
    for message in waiting:
        board.take(message)
    return board
