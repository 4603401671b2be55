"""What the board says of one set-up, sorted: monotone, so that the order in which statements come does not matter."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from p2pfl.features.sums.board import Taken
from p2pfl.features.sums.sum_certificate import Ballot
from p2pfl.features.sums.sum_messages import (
    Ack,
    MemberList,
    Parcel,
    Reveal,
    SetupOpening,
    SlotQuit,
    SlotVote,
    VectorReady,
    Wave,
    members_of,
)


@dataclass(slots=True, kw_only=True)
class SlotTally:
    """What is said about one number."""

    ballot: Ballot
    ready: dict[int, bytes] = field(default_factory=dict)
    """The terms of each member who has its vector."""
    waves: dict[bytes, Taken] = field(default_factory=dict)
    """The waves, by id."""
    authors: dict[bytes, int] = field(default_factory=dict)
    """Who has proposed each list, by id."""
    own: dict[int, list[bytes]] = field(default_factory=dict)
    """The secrets that members have revealed of their own."""
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """For each member the shares revealed of it, by holder."""
    news: set[int] = field(default_factory=set)
    """The members of whom something was revealed that nobody has looked at yet."""

    def last_epoch(self, most: int) -> int:
        """Return the latest epoch; above `most` there is none but a liar's."""
        epochs = [_wave(taken).epoch for taken in self.waves.values()]
        return max((epoch for epoch in epochs if epoch <= most), default=-1)

    def take_reveal(self, author: int, reveal: Reveal) -> None:
        if reveal.own:
            self.own.setdefault(author, []).append(reveal.own)
            self.news.add(author)
        for member, share in reveal.shares:
            self.shares.setdefault(member, {}).setdefault(author, share)
            self.news.add(member)


class SetupTally:
    """Everything said of one set-up, from before its opening is known."""

    def __init__(self, needed: int) -> None:
        self.opening: tuple[int, SetupOpening] | None = None
        """Its opener, and the opening."""
        self.named: dict[int, bytes] = {}
        """The ids of the keys that it names, by member."""
        self.parcels: list[tuple[int, Parcel]] = []
        """Those for this node, with their dealers, who may have dealt a false one first."""
        self.acks: dict[int, set[int]] = defaultdict(set)
        self.slots: dict[int, SlotTally] = defaultdict(lambda: SlotTally(ballot=Ballot(needed)))

    def take(self, taken: Taken, index: int) -> None:  # noqa: C901 - a table
        """`index` is this node's."""
        author, statement = taken.author, taken.statement
        match statement:
            case SetupOpening():
                self.opening, self.named = (author, statement), statement.named() or {}
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
                slot.ballot.propose(taken.id, statement)
                slot.authors[taken.id] = author
            case SlotVote():
                self.slots[statement.number].ballot.sign(author, statement.chosen)
            case SlotQuit():
                self.slots[statement.number].ballot.give_up(author, statement.reason)
            case Reveal():
                self.slots[statement.number].take_reveal(author, statement)
            case _:
                raise TypeError(f"{type(statement).__name__} belongs to no set-up")


def _wave(taken: Taken) -> Wave:
    if not isinstance(taken.statement, Wave):
        raise TypeError("no wave")
    return taken.statement
