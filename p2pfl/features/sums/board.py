"""The board: every member's copy of all signed statements, filled by flooding, with gaps filled on request.

A statement is taken once and passed on to the neighbors, or to some where they are many. Neighbors compare digests of
what they have when a session opens, and while something is going on; what one lacks, the other sends. So in any graph
that is connected for long enough all get all statements, in any order. What an author may say is bounded, for each slot
and in all; what it has said of sums long ended is dropped, by a rule that depends only on what else it has said, so
that neighbors keep the same.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.features.sums.sum_certificate import ROSTER
from p2pfl.features.sums.sum_effects import Effects
from p2pfl.features.sums.sum_messages import (
    ID_BYTES,
    MOST_ID_BYTES,
    Have,
    Keys,
    MemberList,
    Parcel,
    Post,
    SetupOpening,
    Statement,
    Wave,
    decode_statement,
    encode_statement,
    id_of,
)
from p2pfl.features.sums.sum_settings import SumSettings

MOST_OF_A_KIND = 3
"""Statements of one kind that an author may make in one slot: an ack may grow, and shares be revealed late."""
MOST_WAVES = 8
MOST_SETUPS = 6
"""The latest set-ups of which an author's statements are kept."""
MOST_KEYS = 2
"""An author's latest keys that are kept: those of the present set-up, and fresh ones."""
MOST_FIRST = 6
"""A node with so many neighbors hands each statement to all of them."""
MOST_ASKED = 8
"""The neighbors that a node compares its statements with at once."""
MOST_SLOTS = 8
"""The latest sums of a set-up of which an author's statements are kept."""
MOST_REFUSED = 4096
"""The latest statements refused as those of sums long ended, by their ids."""
LOOK_EVERY = 4
"""In beats: while statements come in anyway, neighbors compare only so often."""
SHORT = 8
"""The bytes of an id by which neighbors compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A new statement. `id` names it; `peer` brought it, or None: it is this node's own."""

    id: bytes
    author: int
    statement: Statement
    post: Post
    peer: int | None


def fingers(neighbors: Sequence[int], index: int) -> list[int]:
    """The neighbors to whom a node of this index hands a statement on: all, where they are few.

    Of many they are those next to it on the circle of indices and some at twice the distance each, as in Chord (Stoica
    et al. 2001, doi 10.1145/383059.383071): where all are neighbors, they reach everybody in log2 n steps. What these
    leave out anywhere, the comparison with all neighbors brings.
    """
    if len(neighbors) <= MOST_FIRST:
        return list(neighbors)
    start = bisect(neighbors, index)
    circle = [*neighbors[start:], *neighbors[:start]]
    places = {2**power - 1 for power in range(len(circle).bit_length()) if 2**power <= len(circle)}
    return sorted(circle[place] for place in places | {len(circle) - 1, len(circle) - 2})


@dataclass(slots=True)
class Said:
    """What an author has said in one set-up."""

    counts: Counter[tuple[type[Statement], int]] = field(default_factory=Counter)
    """How many statements of a kind, by slot or receiver."""
    names: dict[int | None, list[bytes]] = field(default_factory=dict)
    """The ids of all its statements, by sum; those of the set-up and its roster under None."""
    latest: int = 0
    """The greatest number of a sum in which it has said something."""

    def is_past(self, number: int) -> bool:
        """True if what it says of this sum is not kept any more."""
        return ROSTER < number <= self.latest - MOST_SLOTS


@dataclass(slots=True)
class Comparing:
    """When this node compares its statements with neighbors, and with which of them it begins."""

    news: bool = False
    quiet: int = 0
    turn: int = 0

    def is_due(self) -> bool:
        """Ask at each beat: after one without news, or after some."""
        self.quiet = self.quiet + 1 if self.news else LOOK_EVERY
        self.news = False
        if self.quiet < LOOK_EVERY:
            return False
        self.quiet = 0
        return True


class Board:
    def __init__(self, settings: SumSettings, identity: Identity) -> None:
        self._settings, self._identity = settings, identity
        self._domain = settings.domain()
        self._verify = [VerifyKey(key) for key in settings.members]
        self._posts: OrderedDict[bytes, Post] = OrderedDict()
        self._seen: dict[bytes, None] = {}
        """The short ids of what has been taken, or is more than its author may make: it is not asked for again."""
        self._refused: dict[bytes, None] = {}
        """The short ids of statements that are kept no more. Neighbors may have them still: what an author says reaches
        nodes in different orders, so they drop different set-ups of it.
        """
        self._digest = 0
        self._said: list[OrderedDict[bytes, Said]] = [OrderedDict() for _ in settings.members]
        """What each member has said, by set-up."""
        self._over: list[set[bytes]] = [set() for _ in settings.members]
        """The set-ups of which a member's statements have been dropped: nothing more of them is taken."""
        self._comparing = Comparing()
        self._keys: dict[int, dict[tuple[int, int], bytes]] = {}
        """The ids of the latest keys of each member, by life and serial."""
        self.route: dict[int, int] = {}
        """The neighbor who was the first to bring the latest keys of each member."""
        self.neighbors: list[int] = []
        """In ascending order."""
        self._first: list[int] = []
        """The neighbors to whom statements go at once."""

    def state(self, statement: Statement, effects: Effects) -> Taken:
        """Sign a statement of this node's own, and spread it. If its set-up is dropped others would not take it: it is
        as good as lost on its way.
        """
        body = encode_statement(statement)
        post = Post(author=self._settings.index, body=body, signature=self._identity.sign(self._domain + body))
        name = id_of(post.author, body)
        if not isinstance(statement, Keys | SetupOpening) and self.is_dropped(statement.setup):
            return Taken(id=name, author=post.author, statement=statement, post=post, peer=None)
        taken = self._take(post, name, statement, None, effects)
        if taken is None:
            raise RuntimeError(f"more statements in one slot than a member may make: {statement}")
        return taken

    def is_dropped(self, setup: bytes) -> bool:
        """True if this node has begun so many later set-ups that what it says of this one is not kept any more."""
        return setup in self._over[self._settings.index]

    def hear(self, peer: int, post: Post, name: bytes, effects: Effects) -> Taken | None:
        """Take a statement with this id and pass it on; None: it is known, or more than its author may make.

        Keys of this node's own that it has not stated are of an earlier life: not kept, and told to the caller.
        Raises PeerFault: its author did not sign it, or it is no statement.
        """
        if name[:SHORT] in self._seen or name[:SHORT] in self._refused:
            return None
        if post.author >= self._settings.count:
            raise PeerFault(f"a statement of member {post.author}, whom the federation does not have")
        try:
            self._verify[post.author].verify(self._domain + post.body, post.signature)
            statement = decode_statement(post.body)
        except (CryptoError, ValueError, msgspec.MsgspecError) as error:
            raise PeerFault(f"a statement in the name of member {post.author}: {error}") from error
        return self._take(post, name, statement, peer, effects)

    def opened(self, peer: int, effects: Effects) -> None:
        self._meet({*self.neighbors, peer})
        effects.say(peer, Have(digest=self._digest))

    def closed(self, peer: int) -> None:
        self._meet({*self.neighbors} - {peer})
        self.route = {member: through for member, through in self.route.items() if through != peer}

    def _meet(self, neighbors: set[int]) -> None:
        self.neighbors = sorted(neighbors)
        self._first = fingers(self.neighbors, self._settings.index)

    def compare(self, effects: Effects) -> None:
        """Ask neighbors whether they have what this node has, some after the others if they are many: all would send
        the same. Not at each beat while statements come in, for then they would say that they lack what is on its way.
        """
        if self._comparing.is_due():
            count, turn = len(self.neighbors), self._comparing.turn
            for place in range(turn, turn + min(count, MOST_ASKED)):
                effects.say(self.neighbors[place % count], Have(digest=self._digest))
            self._comparing.turn += MOST_ASKED

    def hear_have(self, peer: int, have: Have, effects: Effects) -> None:
        if have.digest == self._digest:
            return
        if not have.ids and have.digest:
            effects.say(peer, Have(digest=self._digest, ids=self._latest_ids()))
            return
        theirs = {have.ids[at : at + SHORT] for at in range(0, len(have.ids), SHORT)}
        # Who has more than one message tells has only told the latest.
        first = 0 if len(theirs) < MOST_ID_BYTES // SHORT else max(0, len(self._posts) - len(theirs) // 2)
        for name, post in islice(self._posts.items(), first, None):
            if name[:SHORT] not in theirs:
                effects.say(peer, post)
        if have.asks and not all(name in self._seen or name in self._refused for name in theirs):
            effects.say(peer, Have(digest=self._digest, ids=self._latest_ids(), asks=False))

    def _latest_ids(self) -> bytes:
        """Return the short ids of the latest statements, as many as one message may hold."""
        return b"".join([*self._refused, *self._seen][-(MOST_ID_BYTES // SHORT) :])

    def _take(self, post: Post, name: bytes, statement: Statement, peer: int | None, effects: Effects) -> Taken | None:
        self._seen[name[:SHORT]] = None
        taken = Taken(id=name, author=post.author, statement=statement, post=post, peer=peer)
        if post.author == self._settings.index and peer is not None and isinstance(statement, Keys):
            return taken
        if not self._may(post.author, name, statement, is_own=peer is None):
            return None
        if isinstance(statement, Parcel) and not statement.spread:
            self._route(taken, statement.to, effects)
        else:
            self._posts[name] = post
            self._flip(name)
            self._comparing.news = True
            # Each neighbor says whether it is in another branch of a wave, and takes a total only after its list.
            to = self.neighbors if isinstance(statement, Wave | MemberList) else self._first
            for neighbor in to:
                if neighbor != peer:
                    effects.say(neighbor, post)
        if isinstance(statement, Keys) and peer is not None:
            self.route[post.author] = peer
        return taken

    def _route(self, taken: Taken, to: int, effects: Effects) -> None:
        """Hand a parcel to the neighbor from whom the receiver's keys came first: as these spread, no route is a
        circle.

        Where the route is broken the parcel stays here, and its author spreads it later.
        """
        through = to if to in self.neighbors else self.route.get(to)
        if to != self._settings.index and through is not None and through != taken.peer:
            effects.say(through, taken.post)

    def _may(self, author: int, name: bytes, statement: Statement, *, is_own: bool) -> bool:
        """Count a statement; False: its author has made enough of this kind, or a later one.

        This node itself may be so late with a sum that the others no longer take what it says of it.
        """
        if isinstance(statement, Keys):
            order, keys = (statement.life, statement.serial), self._keys.setdefault(author, {})
            if order in keys or (len(keys) >= MOST_KEYS and order < min(keys)):
                return False
            keys[order] = name
            if len(keys) > MOST_KEYS:
                self._forget([keys.pop(min(keys))])
            return True
        setup = name if isinstance(statement, SetupOpening) else statement.setup
        said, number = self._said_in(author, setup), getattr(statement, "number", ROSTER)
        if said is None or (said.is_past(number) and not is_own):
            self._seen.pop(name[:SHORT], None)
            self._refused[name[:SHORT]] = None
            if len(self._refused) > MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
            return False
        if number > said.latest:
            said.latest = number
            for old in [each for each in said.names if each is not None and said.is_past(each)]:
                self._forget(said.names.pop(old))
        said.names.setdefault(None if number == ROSTER else number, []).append(name)
        kind = type(statement), statement.to if isinstance(statement, Parcel) else number
        said.counts[kind] += 1
        return said.counts[kind] <= (MOST_WAVES if isinstance(statement, Wave) else MOST_OF_A_KIND)

    def _said_in(self, author: int, setup: bytes) -> Said | None:
        """What an author has said in a set-up; None: it was dropped, as that of the oldest one is for a new one."""
        of = self._said[author]
        if setup in self._over[author]:
            return None
        if setup not in of:
            of[setup] = Said()
            if len(of) > MOST_SETUPS:
                old, said = of.popitem(last=False)
                self._over[author].add(old)
                for names in said.names.values():
                    self._forget(names)
        return of[setup]

    def _forget(self, names: list[bytes]) -> None:
        """Drop statements that would not be taken again."""
        for name in names:
            self._drop(name)
            self._seen.pop(name[:SHORT], None)

    def _drop(self, name: bytes) -> None:
        if self._posts.pop(name, None) is not None:
            self._flip(name)

    def _flip(self, name: bytes) -> None:
        """Put a statement into the digest of all that are kept, or take it out."""
        self._digest ^= int.from_bytes(name[:SHORT], "little") >> 1


assert ID_BYTES >= SHORT  # noqa: S101 - ids are compared by their beginnings
