"""The board: every member's copy of all signed statements, filled by flooding, with gaps filled on request.

A statement is taken once and passed on to all neighbors but the one it came from. Neighbors compare digests of what
they have when a session opens, and while something is going on; what one lacks, the other sends. So in any graph that
is connected for long enough all get all statements, in any order. What an author may say is bounded, for each slot and
in all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

import msgspec
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.features.sums.sum_effects import Effects
from p2pfl.features.sums.sum_messages import (
    ID_BYTES,
    MOST_ID_BYTES,
    Have,
    Keys,
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


class Board:
    def __init__(self, settings: SumSettings, identity: Identity) -> None:
        self._settings, self._identity = settings, identity
        self._domain = settings.domain()
        self._verify = [VerifyKey(key) for key in settings.members]
        self._posts: OrderedDict[bytes, Post] = OrderedDict()
        self._seen: dict[bytes, None] = {}
        """The short ids of all that has ever been taken or refused: it is not asked for again."""
        self._digest = 0
        self._made: Counter[tuple[int, str, bytes, int]] = Counter()
        self._setups: dict[int, OrderedDict[bytes, None]] = {}
        self._keys: dict[int, dict[tuple[int, int], bytes]] = {}
        """The ids of the latest keys of each member, by life and serial."""
        self.route: dict[int, int] = {}
        """The neighbor who was the first to bring the latest keys of each member."""
        self.neighbors: set[int] = set()

    def state(self, statement: Statement, effects: Effects) -> Taken:
        """Sign a statement of this node's own, and spread it."""
        body = encode_statement(statement)
        post = Post(author=self._settings.index, body=body, signature=self._identity.sign(self._domain + body))
        taken = self._take(post, statement, None, effects)
        if taken is None:
            raise RuntimeError(f"more statements in one slot than a member may make: {statement}")
        return taken

    def hear(self, peer: int, post: Post, effects: Effects) -> Taken | None:
        """Take a statement and pass it on; None: it is known, or more than its author may make.

        Keys of this node's own that it has not stated are of an earlier life: not kept, and told to the caller.
        Raises PeerFault: its author did not sign it, or it is no statement.
        """
        name = id_of(post.author, post.body)
        if name[:SHORT] in self._seen:
            return None
        if post.author >= self._settings.count:
            raise PeerFault(f"a statement of member {post.author}, whom the federation does not have")
        try:
            self._verify[post.author].verify(self._domain + post.body, post.signature)
            statement = decode_statement(post.body)
        except (CryptoError, ValueError, msgspec.MsgspecError) as error:
            raise PeerFault(f"a statement in the name of member {post.author}: {error}") from error
        return self._take(post, statement, peer, effects)

    def opened(self, peer: int, effects: Effects) -> None:
        self.neighbors.add(peer)
        effects.say(peer, Have(digest=self._digest))

    def closed(self, peer: int) -> None:
        self.neighbors.discard(peer)
        self.route = {member: through for member, through in self.route.items() if through != peer}

    def compare(self, effects: Effects) -> None:
        """Ask all neighbors whether they have what this node has."""
        for peer in sorted(self.neighbors):
            effects.say(peer, Have(digest=self._digest))

    def hear_have(self, peer: int, have: Have, effects: Effects) -> None:
        if have.digest == self._digest:
            return
        if not have.ids and have.digest:
            effects.say(peer, Have(digest=self._digest, ids=self._latest_ids()))
            return
        theirs = {have.ids[at : at + SHORT] for at in range(0, len(have.ids), SHORT)}
        for name, post in self._posts.items():
            if name[:SHORT] not in theirs:
                effects.say(peer, post)
        if have.asks and not theirs <= self._seen.keys():
            effects.say(peer, Have(digest=self._digest, ids=self._latest_ids(), asks=False))

    def _latest_ids(self) -> bytes:
        """Return the short ids of the latest statements, as many as one message may hold."""
        return b"".join(list(self._seen)[-(MOST_ID_BYTES // SHORT) :])

    def _take(self, post: Post, statement: Statement, peer: int | None, effects: Effects) -> Taken | None:
        name = id_of(post.author, post.body)
        self._seen[name[:SHORT]] = None
        taken = Taken(id=name, author=post.author, statement=statement, post=post, peer=peer)
        if post.author == self._settings.index and peer is not None and isinstance(statement, Keys):
            return taken
        if not self._may(post.author, name, statement):
            return None
        if isinstance(statement, Parcel) and not statement.spread:
            self._route(taken, statement.to, effects)
        else:
            self._posts[name] = post
            self._flip(name)
            for neighbor in sorted(self.neighbors - {peer}):
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

    def _may(self, author: int, name: bytes, statement: Statement) -> bool:
        """Count a statement; False: its author has made enough of this kind, or a later one."""
        if isinstance(statement, Keys):
            order, keys = (statement.life, statement.serial), self._keys.setdefault(author, {})
            if order in keys or (len(keys) >= MOST_KEYS and order < min(keys)):
                return False
            keys[order] = name
            if len(keys) > MOST_KEYS:
                self._drop(keys.pop(min(keys)))
            return True
        setup = name if isinstance(statement, SetupOpening) else statement.setup
        setups = self._setups.setdefault(author, OrderedDict())
        if setup not in setups:
            setups[setup] = None
            if len(setups) > MOST_SETUPS:
                self._forget(author, setups.popitem(last=False)[0])
        to = statement.to if isinstance(statement, Parcel) else getattr(statement, "number", 0)
        key = (author, type(statement).__name__, setup, to)
        self._made[key] += 1
        return self._made[key] <= (MOST_WAVES if isinstance(statement, Wave) else MOST_OF_A_KIND)

    def _forget(self, author: int, setup: bytes) -> None:
        """Drop an author's statements of its oldest set-up."""
        for key in [key for key in self._made if key[0] == author and key[2] == setup]:
            del self._made[key]
        for name, post in list(self._posts.items()):
            if post.author == author:
                statement = decode_statement(post.body)
                if name == setup or getattr(statement, "setup", b"") == setup:
                    self._drop(name)

    def _drop(self, name: bytes) -> None:
        if self._posts.pop(name, None) is not None:
            self._flip(name)

    def _flip(self, name: bytes) -> None:
        """Put a statement into the digest of all that are kept, or take it out."""
        self._digest ^= int.from_bytes(name[:SHORT], "little") >> 1


assert ID_BYTES >= SHORT  # noqa: S101 - ids are compared by their beginnings
