"""A coalition that cheats in sums, and all that it can work out of what it has seen.

Colluders run the real protocol but for a *deed*. Vectors are probes: where all members have zeros, whatever a coalition
sees is masks alone, so a combination of what it sees that is zero there is free of masks; in the entries after them
each member has a one of its own, so the same combination tells how often each member's vector is in it. Secrets are
rebuilt as `p2pfl audit` does.
"""

from __future__ import annotations

import random
from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import combinations_with_replacement

import numpy as np
from msgspec.structs import replace
from sum_world import SumWorld, posted

from p2pfl.errors import PeerFault
from p2pfl.features.sums import (
    BranchPart,
    Keys,
    MemberList,
    Post,
    Reveal,
    SetupOpening,
    SlotVote,
    Sums,
    Total,
    bits_of,
    decode_statement,
    id_of,
    members_of,
    total_digest,
)
from sim import Coalition

LONGEST_S, MOST_SENT = 100.0, 20_000
ZEROS = 900
"""More than there are masks and vectors that a coalition may have of these sums."""
UNEVEN = 5.5
"""In standard deviations: bytes that are farther from chance are not random."""
ROSTER = -1


class AuditedWorld(SumWorld):
    """Members sum the data sets `data` in turn; `taps` see what is sent by or to a colluder, and may hold it back."""

    def __init__(self, count, edges, *, cheats=(), data=("a", "b"), seed=1, **changes):
        self.colluders, self.sets, self.seed = frozenset(cheats), dict(enumerate(data)), seed
        self.draws, self.said, self.taps, self.forgetful = [[] for _ in range(count)], [], [], set()
        self.forged = set()
        super().__init__(count, edges, seed=seed, make=self._make, size=ZEROS + len(set(data)) * count, **changes)
        self.ask_all(*map(str, self.sets), pause_s=0.2, spread_s=0.2)

    def _make(self, settings, identity, *, draw, past):
        index, drawn = settings.index, self.draws[settings.index]
        life = 1 if index in self.forgetful else settings.life
        chance = random.Random(f"{self.seed} {index} {life}")
        del draw
        return Sums(settings, identity, draw=lambda size: drawn.append(chance.randbytes(size)) or drawn[-1], past=past)

    def column(self, label, member):
        return sorted(set(self.sets.values())).index(self.sets[int(label)]) * self.count + member

    def vector(self, index, label):
        vector = np.zeros(self.size, "<u8")
        vector[ZEROS + self.column(label, index)] = 1
        return vector

    def after(self, delay_s, action):
        self.schedule(self.now + delay_s, action)

    def ask_on(self, index):
        """Go on after a restart with the first sum that this member has had no outcome of."""
        had = {each.label for at, each in (*self.done, *self.refused) if at == index}
        for label in [str(one) for one in self.sets if str(one) not in had][:1]:
            self.ask(index, label)

    def post(self, author, statement):
        return posted(author, statement, {"count": self.count, **self.changes})

    def tell(self, sender, receiver, message):
        """A colluder hands a message to anybody, neighbor or not."""
        self.said.append((sender, receiver, message))
        self.forged.add(getattr(message, "vector", None))
        self.watch.see(message)
        self.after(0.0, lambda: self._hear(receiver, sender, message))

    def _send(self, index, peer, message):
        if (min(index, peer), max(index, peer)) not in self.open:
            return
        if {index, peer} & self.colluders:
            passed = [tap(index, peer, message) for tap in self.taps]
            if index in self.colluders and not all(passed):
                return
        self.said.append((index, peer, message))
        super()._send(index, peer, message)

    def _arrive(self, edge, index, peer, receiver, message):
        if self.nodes[peer] is receiver and receiver is not None and edge in self.open:
            self._hear(peer, index, message)

    def _hear(self, receiver, sender, message):
        """Whoever honest is told nonsense refuses it; a colluder that has tied itself in knots leaves."""
        if self.nodes[receiver] is None:
            return
        try:
            effects = self.nodes[receiver].hear(sender, message, self.now)
        except PeerFault:
            assert {sender, receiver} & self.colluders, "an honest member is made to say what others take for a lie"
            return
        except Exception:
            if receiver not in self.colluders:
                raise
            self.crash(receiver)
            return
        self.carry_out(receiver, effects)

    def run(self):
        """Play until nobody waits for a sum, or for too long."""
        while (self.asked or self._todo) and self._queue and self.now < LONGEST_S and len(self.said) < MOST_SENT:
            self.run_once()

    # -- what a coalition knows ---------------------------------------------------------------------------------------

    def knowledge(self, members):
        """The rows that it can work out, by column of the honest members' data, what the sums tell, its secrets."""
        mine = [(a, b, message) for a, b, message in self.said if a in members or b in members]
        draws = {member: self.draws[member] for member in members}
        known = Coalition((message for *_, message in mine), draws, self.changes["colluders"] + 1)
        if self.colluders:  # what they made up, others may have passed back
            known.parts = {key: whose for key, whose in known.parts.items() if key[1] not in self.forged}
        rows = [np.frombuffer(vector, "<u8") for _, vector in known.parts]
        rows += [done.total for at, done in self.done if at in members]
        rows = [row for row in rows if row.size == self.size]
        pairs = list(combinations_with_replacement(range(self.count), 2))
        masks = [known.mask(*slot, *pair, self.size) for slot in {slot for slot, _ in known.parts} for pair in pairs]
        matrix = np.array([*rows, *(mask for mask in masks if mask is not None)], "<u8").reshape(-1, self.size)
        assert len(matrix) < ZEROS - 48, "too few zeros to tell all vectors and masks apart"
        free = signed(combinations_without(matrix[:, :ZEROS], matrix[:, ZEROS:]))
        honest = [member for member in range(self.count) if member not in members]
        columns = sorted({self.column(label, member) for label in self.sets for member in honest})
        sums = [({self.column(self.labels[one.terms], m) for m in members_of(one.members)}) for one in self.certified()]
        promised = [[Fraction(int(column in inside)) for column in columns] for inside in sums]
        return columns, reduced([[row[column] for column in columns] for row in free]), promised, known

    def certified(self):
        """The lists that a quorum has signed."""
        lists = [one for slot, _ in self.watch.votes for one in self.watch.certified(slot)]
        return [one for one in lists if isinstance(one, MemberList) and one.number != ROSTER]

    def mistakes(self, members):
        """What a coalition of the promised size learns that it must not."""
        columns, rows, promised, known = self.knowledge(members)
        found = []
        if rank([*promised, *rows]) > rank(promised):
            found.append("more than the sums")
        if 0 < len(smallest(rows, columns, self.count)) < self.changes["least"] - len(members):
            found.append("the sum of too few")
        places = [
            (kind, place, secret) for kind in ("seeds", "masks") for place, secret in getattr(known, kind).items()
        ]
        if any(place[2] not in members for place in set(known.seeds) & set(known.masks)):
            found.append("both secrets of a sum")
        held = {(kind, place[2], secret): set() for kind, place, secret in places}
        for kind, place, secret in places:
            if place[2] not in members and known.holdings.get((place[0], place[2])):  # its owner takes part
                held[kind, place[2], secret].add(place[:2])
        if any(len(slots) > 1 for slots in held.values()):
            found.append("a secret of two sums")
        told = [set(members_of(one.members)) - set(members) for one in self.certified()]
        masked = [row for whose, row in known.unmasked(self.size) if set(whose) - set(members) not in (*told, set())]
        if max(map(surprise, masked), default=0.0) > UNEVEN:
            found.append("not as good as random")
        return found


def surprise(words):
    """How many standard deviations the bytes of these words are from being equally frequent (chi-square)."""
    counts = np.bincount(words.view(np.uint8), minlength=256).astype(float)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    return (float((chi_square / 255) ** (1 / 3)) - (1 - 2 / (9 * 255))) / (2 / (9 * 255)) ** 0.5


# -- linear algebra: modulo 2^64 for what is masked, over the rationals for what is learned ----------------------------


def combinations_without(masked, carried):
    """All combinations of the rows (r, p) that are zero, as what they make of the rows `carried` (r, q): (k, q).

    A row that keeps only even entries is free of masks once it is doubled often enough: it tells the low bits.
    """
    left, right = masked.copy(), carried.copy()
    rows, columns = left.shape
    begin = 0
    for column in range(columns if rows else 0):
        odd = np.flatnonzero(left[begin:, column] & np.uint64(1))
        if not odd.size:
            continue
        pivot = begin + int(odd[0])
        for matrix in (left, right):
            matrix[[begin, pivot]] = matrix[[pivot, begin]]
        inverse = np.uint64(pow(int(left[begin, column]), -1, 2**64))
        below = np.flatnonzero(left[begin + 1 :, column]) + begin + 1
        factors = (left[below, column] * inverse)[:, None]
        left[below] -= factors * left[begin]
        right[below] -= factors * right[begin]
        begin += 1
        if begin == rows:
            break
    found = [right[row] * _annihilator(left[row]) for row in range(begin, rows)]
    kept = [row for row in found if row.any()]
    return np.array(kept, "<u8").reshape(len(kept), carried.shape[1])


def _annihilator(row):
    """The least power of two, modulo 2^64, that makes the row zero: 1 if it is; 0 if one of its entries is odd."""
    together = int(np.bitwise_or.reduce(row)) if row.size else 0
    zeros = (together & -together).bit_length() - 1
    return np.uint64(1 if not together else 2 ** (64 - zeros) if zeros else 0)


def signed(rows):
    """Numbers modulo 2^64 as those nearest to zero."""
    return [[Fraction(int(value)) for value in row] for row in rows.view(np.int64)]


def reduced(rows):
    """The reduced row echelon form, without rows of zeros."""
    left, found = [list(row) for row in rows], []
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        pivot = [value / pivot[column] for value in pivot]
        for others in (left, found):
            for place, row in enumerate(others):
                if row[column]:
                    others[place] = [a - row[column] * b for a, b in zip(row, pivot, strict=True)]
        found.append(pivot)
    return found


def rank(rows):
    return len(reduced(rows))


def smallest(rows, columns, count):
    """The fewest members of whom a combination of the rows was found; exact for one member."""
    found = []
    for at in range(len(columns)):
        order = [*range(at, len(columns)), *range(at)]
        for row in reduced([[row[column] for column in order] for row in rows]):
            found += [{columns[column] % count for column, value in zip(order, row, strict=True) if value}]
    return min(found, key=len, default=set())


# -- deeds ------------------------------------------------------------------------------------------------------------


def statement_of(message):
    return decode_statement(message.body) if isinstance(message, Post) else None


def unique(messages):
    """Statements and vectors, each once, in order."""
    return list(dict.fromkeys(message for message in messages if isinstance(message, Post | BranchPart | Total)))


def tell_list(world, liar, like, members, vector, to):  # noqa: PLR0917 - as in a message
    """Propose a list with its total to some, signed by all colluders."""
    bits, total = bits_of(members), vector.tobytes()
    digest = total_digest(like.setup, like.number, bits, total) if like.total else b""  # a roster has no total
    post = world.post(liar, replace(like, members=bits, total=digest))
    vote = SlotVote(setup=like.setup, number=like.number, chosen=id_of(liar, post.body))
    for member in to:
        for message in (post, *(world.post(colluder, vote) for colluder in sorted(world.colluders))):
            world.tell(liar, member, message)
        if like.total:
            world.tell(liar, member, Total(setup=like.setup, number=like.number, members=bits, vector=total))


class ListForger:
    """Turns the list of a sum, when it first shows, into one without the victim, for a share of the honest members."""

    def __init__(self, world, victim, *, number, share):
        self.world, self.victim, self.number, self.share = world, victim, number, share
        self.true, self.is_told, self.seen = None, False, []
        world.taps.append(self.tap)

    def tap(self, _, __, message):
        statement = statement_of(message)
        self.seen.append(message)
        if isinstance(statement, MemberList) and statement.number == self.number:
            if self.true is None and self.victim in members_of(statement.members):
                self.true = message
                self.world.after(0.0, partial(self.forge, statement))
            return self.share < 1.0 or self.is_told
        if isinstance(statement, Reveal) and statement.number == self.number and not self.is_told:
            self.is_told = True
            self.world.after(0.0, self.tell_true)
        return True

    def forge(self, proposal):
        world = self.world
        members, total = self.without_victim(frozenset(members_of(proposal.members)))
        honest = [member for member in range(world.count) if member not in world.colluders]
        for liar in sorted(world.colluders):
            tell_list(world, liar, proposal, sorted(members), total, honest[-round(self.share * len(honest)) :])
        if self.share < 1.0:
            self.tell_true()

    def without_victim(self, everybody):
        """The largest set without the victim of whose masked vectors the colluders know the sum; else zeros."""
        seen = Coalition(self.seen, {}, 1).parts.items()
        parts = {members: np.frombuffer(vector, "<u8") for (_, vector), members in seen}
        known = {members: vector for members, vector in parts.items() if self.victim not in members}
        for members, vector in parts.items() if everybody in parts else ():
            if self.victim in members < everybody:
                known[everybody - members] = parts[everybody] - vector
        large = [members for members in known if len(members) >= self.world.changes["least"]]
        if not large:
            return everybody - {self.victim}, np.zeros(self.world.size, "<u8")
        best = max(large, key=lambda members: (len(members), sorted(members)))
        return best, known[best]

    def tell_true(self):
        """Show the true list to everybody, with the colluders' signatures."""
        if self.true is None:
            return
        world, statement = self.world, statement_of(self.true)
        name = id_of(self.true.author, self.true.body)
        vote = SlotVote(setup=statement.setup, number=statement.number, chosen=name)
        for member in range(world.count):
            world.tell(min(world.colluders), member, self.true)
            for liar in sorted(world.colluders):
                world.tell(liar, member, world.post(liar, vote))


def two_lists(world, victim):
    """Tell half of the others that the victim is there and half that it is gone, and sign both."""
    ListForger(world, victim, number=0, share=0.5)


def claimed_death(world, victim):
    """Tell all that the victim is gone, and sign it; once that is certified, that it is there."""
    ListForger(world, victim, number=0, share=1.0)


def difference(world, victim):
    """Sum the same data twice, and say the second time that the victim is gone."""
    ListForger(world, victim, number=1, share=1.0)


def silence(world, victim):
    """Keep what the victim reveals from everybody, so that shares of its seed are told, and claim that it is dead, so
    that shares of its mask key are.
    """
    ListForger(world, victim, number=0, share=0.5)

    def tap(_, receiver, message):
        is_about = isinstance(message, Post) and message.author == victim
        return not (is_about and isinstance(statement_of(message), Reveal)) and receiver != victim

    world.taps.append(tap)


def say_again(world, seen, setup):
    """Say all that was ever said, and the colluders' own statements under another set-up's id."""
    again = unique(seen)
    for message in list(again):
        statement = statement_of(message)
        if (
            statement is not None
            and not isinstance(statement, Keys | SetupOpening)
            and message.author in world.colluders
        ):
            with suppress(AttributeError, TypeError):
                again.append(world.post(message.author, replace(statement, setup=setup)))
    for member in [member for member in range(world.count) if member not in world.colluders]:
        for message in again:
            world.tell(min(world.colluders), member, message)


def repeat(world, _):
    """In each new set-up say again all that was ever said."""
    seen, told = [], set()

    def tap(_, __, message):
        seen.append(message)
        if (
            isinstance(statement_of(message), SetupOpening)
            and (name := id_of(message.author, message.body)) not in told
        ):
            told.add(name)
            world.after(0.3, partial(say_again, world, list(seen), name))
        return True

    world.taps.append(tap)


def restart(world, victim):
    """Begin again with one's old keys, and say to a victim that was killed and started again all that it has said."""
    seen, over = [], []

    def back():
        world.start(victim)
        world.ask_on(victim)
        for colluder in sorted(world.colluders):
            world.crash(colluder)
            world.forgetful.add(colluder)
            world.start(colluder)
            world.after(0.1, partial(world.ask_on, colluder))
        for message in unique(seen):
            world.tell(min(world.colluders), victim, message)

    def tap(_, __, message):
        seen.append(message)
        is_victims = isinstance(message, Post) and message.author == victim
        if is_victims and isinstance(statement_of(message), Reveal) and not over:
            over.append(message)
            world.after(0.0, partial(world.crash, victim))
            world.after(1.0, back)
        return True

    world.taps.append(tap)


def chaos(world, victim):
    """Drop, repeat and forge at random: lists with random members, and signatures for them."""
    chance, seen = random.Random(f"chaos {victim} {sorted(world.colluders)}"), []
    honest = [member for member in range(world.count) if member not in world.colluders]

    def forge(proposal):
        members = [member for member in range(world.count) if chance.random() < 0.8]
        liar, at = chance.choice(sorted(world.colluders)), chance.sample(honest, len(honest) // 2 + 1)
        tell_list(world, liar, proposal, members, np.zeros(world.size, "<u8"), at)

    def tap(_, __, message):
        seen.append(message)
        if not chance.randrange(3):
            world.tell(chance.choice(sorted(world.colluders)), chance.choice(honest), chance.choice(seen))
        statement = statement_of(message)
        if isinstance(statement, MemberList) and not chance.randrange(12):
            world.after(0.0, partial(forge, statement))
        return bool(chance.randrange(8))

    world.taps.append(tap)


def deaths(world, victim):
    """Members die at drawn moments, and some come back; colluders only look."""
    chance = random.Random(f"deaths {world.seed}")

    def back(member):
        if world.nodes[member] is None:
            world.start(member)
            world.ask_on(member)

    others = [member for member in range(world.count) if member != victim and member not in world.colluders]
    for member in chance.sample(others, max(1, len(others) // 3)):
        at_s = chance.random() * 3
        world.after(at_s, partial(world.crash, member))
        if chance.random() < 0.5:
            world.after(at_s + chance.random() * 2, partial(back, member))


DEEDS = {
    two_lists: {},
    claimed_death: {},
    difference: {"data": ("a", "a")},
    silence: {},
    repeat: {"data": ("a", "b", "c"), "sums": 1},
    restart: {"data": ("a", "b", "a"), "sums": 1},
    chaos: {"data": ("a", "b", "a"), "sums": 2},
    deaths: {"data": ("a", "b", "a")},
}
"""With what the sums of each are of, and how many one set-up is for."""


def played(deed=None, *, count=5, colluders=1, edges, seed=1):
    """A world in which the lowest members do that to the last one."""
    how = {"colluders": colluders, "least": colluders + 2, "sums": 3} | DEEDS.get(deed, {})
    world = AuditedWorld(count, edges, cheats=() if deed in (None, deaths) else range(colluders), seed=seed, **how)
    if deed is not None:
        deed(world, count - 1)
    world.run()
    return world
