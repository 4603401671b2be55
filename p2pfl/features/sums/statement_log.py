"""The statement log: every member's copy of all signed statements, handed on by neighbors, with gaps filled on request.

A statement is taken once and passed on: along the tree of the latest wave, as in Plumtree (Leitao et al. 2007, doi
10.1109/SRDS.2007.27) where a wave is what prunes; without a tree to all neighbors, or to some where they are many.
Neighbors compare digests of what they have when a session opens, and while something is going on; what one lacks, the
other sends, and the edge between them counts as one of the tree for a while. So in any graph that is connected for long
enough all get all statements, in any order. What an author may say is bounded, for each slot and in all: a statement is
kept and passed on only if it belongs to a set-up whose opening is here and names its author, and few that come before
their opening wait for it. What is said of sums long ended is dropped.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.features.sums.messages import (
    ID_BYTES,
    PAIR_BYTES,
    ROSTER,
    SEAL_BYTES,
    Ack,
    Effects,
    GroupWave,
    Have,
    HeldUp,
    InSetup,
    Keys,
    MemberList,
    Parcel,
    Post,
    Reveal,
    SetupOpening,
    SlotVote,
    Statement,
    SumSettings,
    VectorReady,
    Wave,
    WideHave,
    decode_statement,
    encode_statement,
    id_of,
    members_of,
)
from p2pfl.limits import (
    MOST_AUTHOR_KEYS,
    MOST_EARLY,
    MOST_EARLY_BYTES,
    MOST_ID_BYTES,
    MOST_OF_A_KIND,
    MOST_REFUSED_STATEMENTS,
    MOST_SETUPS,
    MOST_SETUPS_IN_ALL,
    MOST_SLOTS,
    MOST_STRIKES,
    MOST_WAVES,
)

FORGIVEN_S = 300.0
"""After so many seconds one strike is forgiven to all."""
PROVEN = 10**9


class Blame:
    """The members that hold sums up, as far as this one sees it.

    Who was struck once has its turn last, to open a set-up and to lead a sum. With `MOST_STRIKES` it is left out of the
    next set-ups, where enough others are there. A strike is forgiven with time; a proof never. Each member judges for
    itself, and nobody signs another list for it: how few may be in a sum, and the history of sums, stay as they are.
    But the opener's judgment decides who is in its set-up: a slow member that it has struck is out for all until a
    strike is forgiven, or somebody else opens one.
    """

    def __init__(self, own: int) -> None:
        self._own, self._at = own, 0.0
        """The latest time at which strikes were forgiven."""
        self._strikes: Counter[int] = Counter()
        self._news: dict[int, str] = {}

    def strike(self, member: int, why: str, *, is_proof: bool = False) -> None:
        if member == self._own or self.is_banned(member):
            return
        self._strikes[member] += PROVEN if is_proof else 1
        self._news[member] = why

    def is_struck(self, member: int) -> bool:
        return self._strikes[member] > 0

    def is_banned(self, member: int) -> bool:
        return self._strikes[member] >= MOST_STRIKES

    def turn(self, member: int) -> tuple[bool, int]:
        """Orders members by whose turn it is: the lowest first, of those who have held nothing up."""
        return self.is_struck(member), member

    def pass_time(self, now: float) -> None:
        times = int((now - self._at) // FORGIVEN_S)
        if times:
            self._at = now
            for member, strikes in self._strikes.items():
                if strikes < PROVEN:
                    self._strikes[member] = max(0, strikes - times)

    def tell(self, effects: Effects) -> None:
        """Say who was struck since the last time, and for what."""
        for member, why in self._news.items():
            effects.append(HeldUp(member=member, why=why))
        self._news.clear()


TERMS_BYTES = 32


def is_sound(author: int, statement: Statement, settings: SumSettings) -> bool:
    """Return True if a member with these settings may have made a statement, whatever else was said."""
    if getattr(statement, "number", ROSTER) >= settings.sums:
        return False
    match statement:
        case Keys():
            return statement.fit(settings.sums)
        case Wave() if settings.groups or isinstance(statement, GroupWave):
            asked = frozenset(members_of(statement.members)) if isinstance(statement, GroupWave) else frozenset()
            return bool(asked) and bool(settings.groups) and settings.whole(asked) == asked
        case SetupOpening():
            named = statement.named()
            is_known = named is not None and author in named and settings.are_members(statement.members)
            return is_known and settings.are_enough(named or {})
        case Parcel():
            size = settings.sums * PAIR_BYTES + SEAL_BYTES
            return statement.to < settings.count and statement.to != author and len(statement.sealed) == size
        case Ack():
            return settings.are_members(statement.holds)
        case MemberList():
            size = 0 if statement.number == ROSTER else TERMS_BYTES
            return len(statement.terms) == len(statement.total) == size and settings.are_members(statement.members)
        case Reveal():
            of = [member for member, _ in statement.shares]
            return len(statement.own) in {0, TERMS_BYTES} and of == sorted({*of}) and of[-1:] < [settings.count]
    return True


MOST_FIRST = 6
"""A node with so many neighbors hands each statement to all of them."""
MOST_LINKS = 16
"""A node with more neighbors keeps no tree: in a dense graph that would be a star, and its root would carry all."""
MOST_HELD = 2
"""The comparisons of a neighbor in a row that are not answered while there is a tree: what differs is on its way."""
MENDED = 8
"""The trees for which an edge counts as part of them after a comparison over it has found a gap."""
MOST_ASKED = 8
"""The neighbors that a node compares its statements with at once."""
LOOK_EVERY = 4
"""The beats between two comparisons of neighbors while statements come in anyway."""
SHORT = 8
"""The bytes of an id by which neighbors of earlier versions compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStatement:
    """A new statement. `id` names it; `peer` brought it, or None: it is this node's own."""

    id: bytes
    author: int
    statement: Statement
    post: Post
    peer: int | None

    @property
    def wave(self) -> Wave:
        if not isinstance(self.statement, Wave):
            raise TypeError("no wave")
        return self.statement


def first_of(neighbors: Sequence[int], index: int) -> Sequence[int]:
    """Return the neighbors to whom a node of this index hands a statement on; comparisons bring the others the rest.

    Of many these are the next ones on the circle of indices and some at twice the distance each, as in Chord (Stoica et
    al. 2001, doi 10.1145/383059.383071): where all are neighbors, they reach everybody in log2 n steps.
    """
    if len(neighbors) <= MOST_FIRST:
        return neighbors
    start = bisect(neighbors, index)
    circle = [*neighbors[start:], *neighbors[:start]]
    places = {2**power - 1 for power in range(len(circle).bit_length()) if 2**power <= len(circle)}
    return [circle[place] for place in sorted(places | {len(circle) - 1, len(circle) - 2})]


@dataclass(slots=True)
class AuthorLog:
    """An author's statements in one set-up."""

    counts: Counter[tuple[type[Statement], int]] = field(default_factory=Counter)
    """The number of statements of a kind, by slot; parcels by receiver, and under -1 in all."""
    names: dict[int | None, list[bytes]] = field(default_factory=dict)
    """The ids of all its statements, by sum; those of the set-up and its roster under None."""
    latest: int = 0
    """The greatest number of a sum in which it has said something."""

    def is_past(self, number: int) -> bool:
        """True if what it says of this sum is not kept any more."""
        return ROSTER < number <= self.latest - MOST_SLOTS


class StatementLog:
    """`proves` as of `Records`: which statements need no signature."""

    def __init__(
        self,
        settings: SumSettings,
        identity: Identity,
        blame: Blame,
        proves: Callable[[int, Statement, bytes], bool | None],
    ) -> None:
        self._proves = proves
        self._settings, self._identity, self._blame = settings, identity, blame
        self._domain = settings.domain()
        self._verify = [VerifyKey(key) for key in settings.members]
        self._posts: dict[bytes, Post] = {}
        """All that is kept, by id, in the order in which it came."""
        self._seen: dict[bytes, None] = {}
        """The ids of what has been taken. It is not asked for again."""
        self._refused: dict[bytes, None] = {}
        """The ids of what is not kept. Neighbors may have it: they drop others, as orders of arrival differ."""
        self._refused_of: list[deque[bytes]] = [deque() for _ in settings.members]
        self._early: list[dict[bytes, tuple[int, Post, InSetup]]] = [{} for _ in settings.members]
        """Each member's statements about set-ups whose opening is not here."""
        self._digest, self._wide_digest = 0, b""
        """Of all that is kept; the second is empty until it is asked for."""
        self.wide: set[int] = set()
        """The neighbors that compare whole ids."""
        self._said: list[dict[bytes, AuthorLog]] = [{} for _ in settings.members]
        """Each member's statements, by set-up."""
        self.opened_by: dict[bytes, tuple[int, dict[int, bytes]]] = {}
        """The opener of each set-up that is kept, and the keys that the opening names, by member."""
        self._has_news, self._quiet, self._turn = False, 0, 0
        """True if something came since the last beat; the beats since neighbors compared; the first of them to ask."""
        self._keys: dict[int, dict[bytes, tuple[int, int]]] = {}
        """Life and serial of the keys of each member that are kept, by their ids."""
        self.route: dict[int, int] = {}
        """The neighbor who was the first to bring the latest keys of each member."""
        self.neighbors: list[int] = []
        """The neighbors, in ascending order."""
        self._links: frozenset[int] | None = None
        """The neighbors in the latest wave's tree; None: there is no tree."""
        self._before: frozenset[int] = frozenset()
        """Those in the tree before: what was said while it changed comes along either."""
        self._is_grown = False
        """True if no wave has come since."""
        self._mended: dict[int, int] = {}
        """The neighbors that have brought what the tree did not, and for how many trees they count as linked."""
        self._held: Counter[int] = Counter()
        """The comparisons of each neighbor that were not answered, in a row and since the tree began."""

    def state(self, statement: Statement, effects: Effects) -> NewStatement:
        """Sign a statement of this node's own, and spread it, unless its set-up is dropped: nobody would take it."""
        body, index = encode_statement(statement), self._settings.index
        signature = b"" if self._proves(index, statement, body) else self._identity.sign(self._domain + body)
        post = Post(author=index, body=body, signature=signature)
        name = id_of(post.author, body)
        if isinstance(statement, InSetup) and statement.setup not in self.opened_by:
            return NewStatement(id=name, author=post.author, statement=statement, post=post, peer=None)
        taken = self._take(post, name, statement, None, effects)
        if taken is None:
            raise RuntimeError(f"more statements in one slot than a member may make: {statement}")
        return taken

    def hear(self, peer: int, post: Post, name: bytes, effects: Effects) -> list[NewStatement]:
        """Take a statement and pass it on, and with an opening what waited for it; nothing if it is known or too much.

        Keys of this node's own that it has not stated are of an earlier life: not kept, and told to the caller.
        Raises PeerFault: its author did not sign it, or it is no statement.
        """
        if name in self._seen or name in self._refused:
            return []
        if post.author >= self._settings.count:
            raise PeerFault(f"a statement of member {post.author}, whom the federation does not have")
        if name in self._early[post.author]:
            return []
        if (statement := self._checked(post)) is None:
            return []
        if not is_sound(post.author, statement, self._settings):
            self._refuse(post.author, name, f"it has signed a {type(statement).__name__} that no member may make")
            return []
        if isinstance(statement, InSetup) and statement.setup not in self.opened_by:
            self._wait(peer, post, name, statement)
            return []
        taken = self._take(post, name, statement, peer, effects)
        if taken is None or not isinstance(statement, SetupOpening):
            return [] if taken is None else [taken]
        return [taken, *self._released(name, effects)]

    def _checked(self, post: Post) -> Statement | None:
        """Return what its author says; None: without a signature, and keys are not here that might prove it.

        Raises PeerFault: its author has not said it, or it is no statement.
        """
        try:
            if post.signature:
                self._verify[post.author].verify(self._domain + post.body, post.signature)
            statement = decode_statement(post.body)
        except (CryptoError, ValueError, msgspec.MsgspecError) as error:
            raise PeerFault(f"a statement in the name of member {post.author}: {error}") from error
        proven = bool(post.signature) or self._proves(post.author, statement, post.body)
        if proven is False:
            raise PeerFault(f"a statement in the name of member {post.author} that it has not signed")
        return statement if proven else None

    def _wait(self, peer: int, post: Post, name: bytes, statement: InSetup) -> None:
        """Keep a statement until its set-up's opening comes, where there is room and that was not dropped."""
        early = self._early[post.author]
        if statement.setup in self._refused:
            self._refuse(post.author, name)
        elif sum(len(each.body) for _, each, _ in early.values()) + len(post.body) <= MOST_EARLY_BYTES:
            early[name] = peer, post, statement
            if len(early) > MOST_EARLY:
                del early[next(iter(early))]

    def _released(self, setup: bytes, effects: Effects) -> list[NewStatement]:
        taken = []
        for author in self.opened_by[setup][1]:
            for name, (peer, post, statement) in list(self._early[author].items()):
                if statement.setup == setup:
                    del self._early[author][name]
                    taken.append(self._take(post, name, statement, peer, effects))
        return [each for each in taken if each is not None]

    def _refuse(self, author: int, name: bytes, why: str = "") -> None:
        """Remember a statement that is not kept. With a reason, its author is struck for it."""
        self._seen.pop(name, None)
        self._refused[name] = None
        of = self._refused_of[author]
        of.append(name)
        if len(of) > MOST_REFUSED_STATEMENTS:
            self._refused.pop(of.popleft(), None)
        if why:
            self._blame.strike(author, why)

    def opened(self, peer: int, effects: Effects) -> None:
        self.neighbors = sorted({*self.neighbors, peer})
        self._links = None
        effects.say(peer, self._have(peer))

    def closed(self, peer: int) -> None:
        self.wide.discard(peer)
        self.neighbors = sorted({*self.neighbors} - {peer})
        self._mended.pop(peer, None)
        if self._links is not None and peer in self._links:
            self._links = None
        self.route = {member: through for member, through in self.route.items() if through != peer}

    def follow(self, links: frozenset[int] | None) -> bool:
        """Hand statements on along a new tree, in which these are this node's neighbors. False: to all, as without."""
        if links is None or not links <= {*self.neighbors} or len(self.neighbors) > MOST_LINKS:
            self._links = None
            return False
        self._held.clear()
        self._before = (self._links or frozenset()) | self._mended.keys()
        self._mended = {peer: trees - 1 for peer, trees in self._mended.items() if trees > 1}
        self._links, self._is_grown = links, True
        return True

    def _mend(self, peer: int, trees: int) -> None:
        """A neighbor lacked, or brought, what goes along the tree: for so many trees its edge counts as one of them."""
        if self._links is not None and peer not in self._links:
            self._mended[peer] = max(trees, self._mended.get(peer, 0))

    def _next(self, statement: Statement) -> Sequence[int]:
        """Return the neighbors to whom a statement goes."""
        if isinstance(statement, Wave):  # each neighbor answers it
            self._is_grown = False
            return self.neighbors
        if isinstance(statement, MemberList) and not self._is_grown:  # others may have a new tree, and wait for it
            self._links = None
            return self.neighbors
        if self._links is not None:
            return sorted(self._links | self._mended.keys())
        return first_of(self.neighbors, self._settings.index)

    def compare(self, effects: Effects) -> None:
        """Ask some neighbors, in turns, if they have what is here; not at each beat while much is on its way."""
        self._quiet = self._quiet + 1 if self._has_news else LOOK_EVERY
        self._has_news = False
        if self._quiet >= LOOK_EVERY:
            self._quiet, count = 0, len(self.neighbors)
            for place in range(self._turn, self._turn + min(count, MOST_ASKED)):
                neighbor = self.neighbors[place % count]
                effects.say(neighbor, self._have(neighbor))
            self._turn += MOST_ASKED

    def hear_have(self, peer: int, have: Have | WideHave, effects: Effects) -> None:
        held, size = self._held.pop(peer, 0), ID_BYTES if isinstance(have, WideHave) else SHORT
        if have.digest == self._digest_of(type(have)):
            return
        if not have.ids and have.digest:
            if self._links is not None and held < MOST_HELD:
                self._held[peer] = held + 1
                return
            effects.say(peer, self._have(peer, tells=True))
            return
        theirs = {have.ids[at : at + size] for at in range(0, len(have.ids), size)}
        # Who has more than one message tells has only told the latest.
        first = 0 if len(theirs) < MOST_ID_BYTES // size else max(0, len(self._posts) - len(theirs) // 2)
        for name, post in islice(self._posts.items(), first, None):
            if name[:size] not in theirs:
                self._mend(peer, MENDED)
                effects.say(peer, post)
        if have.asks and not theirs <= {name[:size] for name in (*self._refused, *self._seen)}:
            self._mend(peer, MENDED)
            effects.say(peer, self._have(peer, tells=True, asks=False))

    def _have(self, peer: int, *, tells: bool = False, asks: bool = True) -> Have | WideHave:
        """Say what is here; if it `tells`, with the ids of the latest statements, as many as one message may hold."""
        kind, size = (WideHave, ID_BYTES) if peer in self.wide else (Have, SHORT)
        latest = [*self._refused, *self._seen][-(MOST_ID_BYTES // size) :] if tells else []
        return kind(digest=self._digest_of(kind), ids=b"".join(name[:size] for name in latest), asks=asks)

    def _digest_of(self, kind: type[Have | WideHave]) -> Any:
        """Return a digest of what is kept: a hash, or an exclusive or, which an author can make equal for two sets."""
        if kind is Have:
            return self._digest
        if self._posts and not self._wide_digest:
            ids = b"".join(sorted(self._posts))
            self._wide_digest = hashlib.blake2b(ids, digest_size=ID_BYTES, person=b"sums have").digest()
        return self._wide_digest

    def _take(
        self, post: Post, name: bytes, statement: Statement, peer: int | None, effects: Effects
    ) -> NewStatement | None:
        taken = NewStatement(id=name, author=post.author, statement=statement, post=post, peer=peer)
        if post.author == self._settings.index and peer is not None and isinstance(statement, Keys):
            self._refuse(post.author, name)
            return taken
        if not self._may(post.author, name, statement, is_own=peer is None):
            return None
        self._seen[name] = None
        if isinstance(statement, Parcel) and not statement.spread:
            self._route(taken, statement.to, effects)
        else:
            self._posts[name] = post
            self._flip(name)
            self._has_news = True
            if peer is not None and peer not in self._before and not isinstance(statement, Wave):
                self._mend(peer, 1)  # it has come neither along this tree nor by the one before, nor by all ways
            for neighbor in self._next(statement):
                if neighbor != peer:
                    effects.say(neighbor, post)
        if isinstance(statement, Keys) and peer is not None:
            self.route[post.author] = peer
        return taken

    def _route(self, taken: NewStatement, to: int, effects: Effects) -> None:
        """Hand a parcel to who first brought its receiver's keys; if that way is broken its author spreads it later."""
        through = to if to in self.neighbors else self.route.get(to)
        if to != self._settings.index and through is not None and through != taken.peer:
            effects.say(through, taken.post)

    def _may(self, author: int, name: bytes, statement: Statement, *, is_own: bool) -> bool:
        """Count a statement; False: its author has made enough of this kind, or, if it is another node, a later one."""
        if isinstance(statement, Keys):
            return self._may_have_keys(author, name, statement)
        if isinstance(statement, SetupOpening):
            return self._may_open(author, name, statement)
        setup, number = statement.setup, getattr(statement, "number", ROSTER)
        named, said = self.opened_by[setup][1], self._said[author].setdefault(setup, AuthorLog())
        to = statement.to if isinstance(statement, Parcel) else None
        if author not in named or (to is not None and to not in named):
            self._refuse(author, name, "it has spoken of a set-up for who is not in it")
            return False
        if said.is_past(number) and not is_own:
            self._refuse(author, name)
            return False
        kind = type(statement), number if to is None else to
        said.counts[kind] += 1
        said.counts[Parcel, ROSTER] += to is not None
        most = MOST_WAVES if isinstance(statement, Wave) else MOST_OF_A_KIND
        parcels = said.counts[Parcel, ROSTER] if to is not None else 0
        if said.counts[kind] > most or parcels > 2 * self._settings.reach(len(named)):
            self._refuse(author, name, f"it has signed more statements ({type(statement).__name__}) than a member may")
            return False
        if said.counts[kind] > 1 and isinstance(statement, MemberList | SlotVote | VectorReady):
            self._blame.strike(author, f"it has signed two of a kind ({type(statement).__name__})", is_proof=True)
        if number > said.latest:
            said.latest = number
            for old in [each for each in said.names if each is not None and said.is_past(each)]:
                self._forget(said.names.pop(old))
                for each in [each for each in said.counts if each[1] == old and each[0] is not Parcel]:
                    del said.counts[each]
        said.names.setdefault(None if number == ROSTER else number, []).append(name)
        return True

    def _may_have_keys(self, author: int, name: bytes, statement: Keys) -> bool:
        """Keep an author's latest keys, and any that the latest opening of some opener names: others may lack them.

        Who says other keys to some than to others cannot keep these from an opening that names the former. Two of one
        number are no proof: so does who has lost its folder.
        """
        order, keys = (statement.life, statement.serial), self._keys.setdefault(author, {})
        named = {by: ids.get(author) for by, ids in self.opened_by.values()}.values()
        is_double = order in keys.values()
        is_old = len(keys) >= MOST_AUTHOR_KEYS and order < sorted(keys.values())[-MOST_AUTHOR_KEYS]
        if name not in named and (is_double or is_old):
            self._refuse(author, name, "it has signed two keys of one number" if is_double else "")
            return False
        keys[name] = order
        for old in sorted(keys, key=keys.__getitem__)[:-MOST_AUTHOR_KEYS]:
            if old not in named:
                del keys[old]
                self._forget([old])
        return True

    def _may_open(self, author: int, name: bytes, opening: SetupOpening) -> bool:
        """Take an opening; where there are too many, the oldest of who has opened most goes, with all that was said."""
        named = opening.named() or {}
        if any(by == author and keys[author] == named[author] for by, keys in self.opened_by.values()):
            self._blame.strike(author, "it has opened two set-ups with the same keys", is_proof=True)
            self._refuse(author, name)
            return False
        kept = Counter(by for by, _ in self.opened_by.values())
        openers = kept + Counter([author])
        if openers[author] > MOST_SETUPS or len(self.opened_by) >= MOST_SETUPS_IN_ALL:
            most = max(kept, key=lambda by: (openers[by], by))
            old = next(setup for setup, (by, _) in self.opened_by.items() if by == most)
            del self.opened_by[old]
            self._forget([old])
            self._refuse(most, old)
            for of in self._said:
                for names in of.pop(old, AuthorLog()).names.values():
                    self._forget(names)
        self.opened_by[name] = author, named
        for member, keys in named.items():
            if member != self._settings.index:
                self._refused.pop(keys, None)
        return True

    def _forget(self, names: list[bytes]) -> None:
        """Drop statements that would not be taken again."""
        for name in names:
            if self._posts.pop(name, None) is not None:
                self._flip(name)
            self._seen.pop(name, None)

    def _flip(self, name: bytes) -> None:
        """Put a statement into the digests of all that are kept, or take it out."""
        self._wide_digest = b""
        self._digest ^= int.from_bytes(name[:SHORT], "little") >> 1
