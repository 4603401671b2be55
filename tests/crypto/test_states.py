"""The handshake of docs/reference/protocol.md, explored: every state into which an intruder can bring four sessions.

Messages are terms and primitives are perfect (Dolev and Yao 1983, doi 10.1109/TIT.1983.1056650). The intruder is the
network, and a member itself: it keeps all that is said, opens what it has keys for, and sends whatever it can build
that somebody takes. It learns the long-term key of A or B at any moment, or of none. Each of A and B has two sessions,
in each of which it dials the other, dials the intruder or is dialed; B is in the federation of A or in another; A
speaks versions 9 and 10, B speaks 9. All combinations, in all orders.

Not here: control connections, chunks after the first of each direction, terms of a wrong type. One ephemeral key of the
intruder's own is enough, as nobody compares two. Who dials does so before all else, which only tells the intruder more;
a key leaks at the start or with the end of a handshake, before which it is worth no less than later.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, product
from typing import NamedTuple

import pytest

SHAPES, NUMBERS = [], {}


def term(*shape):
    """The number of a term: equal terms have one. Its shape is a word and its parts' numbers, or its name."""
    if shape not in NUMBERS:
        NUMBERS[shape] = len(SHAPES)
        SHAPES.append(shape)
    return NUMBERS[shape]


def public(name):
    return term("public", name)


def hashed(use, *parts):
    return term("hash", public(use), *parts)


class Knowledge:
    """What the intruder has, all opened that it can open; `closed` are the seals that it cannot."""

    def __init__(self, terms, closed=frozenset()):
        self.terms, self.closed, self._can = terms, closed, {}

    def can_make(self, number):
        if number not in self._can:
            self._can[number] = number in self.terms or self._can_build(*SHAPES[number])
        return self._can[number]

    def _can_build(self, kind, *parts):
        if kind in {"public", "secret"}:
            return kind == "public"
        if kind == "shared":  # X25519, from either side
            return any(self.can_make(x) and self.can_make(term("power", y)) for x, y in (parts, parts[::-1]))
        return all(map(self.can_make, parts))

    def with_(self, *heard):
        terms, closed, heard = set(self.terms), set(self.closed), list(heard)
        while True:
            while heard:
                terms.add(each := heard.pop())
                kind, *parts = SHAPES[each]
                heard += parts if kind == "row" else ()
                closed.update([each] if kind == "seal" else ())
            known = Knowledge(terms, closed)
            opened = [each for each in closed if known.can_make(SHAPES[each][1])]
            if not opened:
                return known
            closed.difference_update(opened)
            heard = [SHAPES[each][3] for each in opened]


MEMBERS, EVERYBODY, FEDERATIONS, ROLES = "AB", "ABM", ("one", "another"), ("responder", "initiator")
VERSIONS = {"A": public("versions 9 and 10"), "B": public("version 9")}
INTRUDER = Knowledge({term("secret", "signing M"), term("secret", "ephemeral M")})
OWN = term("power", term("secret", "ephemeral M"))


class Side(NamedTuple):
    """One end's session; `dialed` is None at the end that was dialed, `x` its ephemeral key."""

    owner: str
    dialed: str | None
    federation: str
    x: int


class Local(NamedTuple):
    """How far a session is: the ephemeral key and the introduction that it took, and if whose owner is honest."""

    stage: str = "begun"
    theirs: int = -1
    who: str = ""
    took: int = -1
    trusts: bool = False


class Run(NamedTuple):
    """What follows from what an end has said and taken; `keys` are from the dialer and to it; -1: not there yet."""

    th1: int
    prk: int
    th2: int = -1
    th3: int = -1
    keys: tuple[int, int] = (-1, -1)
    said: int = -1


class Handshake:
    """The protocol, `without` some of its defences."""

    def __init__(self, *without):
        self.without = frozenset(without)
        self.introduction, self.run = lru_cache(None)(self._introduction), lru_cache(None)(self._run)

    def first(self, theirs, to):
        return term("row", theirs, hashed("mac1", public(to), theirs))

    def _introduction(self, run, role, who, federation):
        def unless(out, *parts):
            return () if out in self.without else parts

        th1, prk, transcript = run.th1, run.prk, run.th1 if role == "responder" else run.th2
        blinded = unless("federation", hashed("federation", transcript, public(federation)))
        bound = *unless("role", public(role)), transcript, *unless("identity", public(who)), *blinded
        statement = term("row", *bound)
        signature = unless("signature", term("signature", term("secret", f"signing {who}"), statement))
        mac = unless("MAC", hashed("introduction", hashed(f"mac {role}", th1, prk), statement))
        plain = term("row", public(who), *blinded, *signature, *mac)
        return plain if "seal" in self.without else term("seal", hashed(f"seal {role}", th1, prk), transcript, plain)

    def _run(self, side, theirs, took):
        mine, dials = term("power", side.x), side.dialed is not None
        m1 = self.first(mine if dials else theirs, side.dialed or side.owner)
        th1 = hashed("th1", *(() if "transcript" in self.without else (m1, theirs if dials else mine)))
        secrets = sorted((side.x, SHAPES[theirs][1]))
        run, own = Run(th1, hashed("prk", th1, term("shared", *secrets))), (side.owner, side.federation)
        c2 = took if dials else self.introduction(run, "responder", *own)
        if c2 < 0:
            return run
        run = run._replace(th2=hashed("th2", th1, c2), said=c2)
        c3 = self.introduction(run, "initiator", *own) if dials else took
        if c3 < 0:
            return run
        th3, ways = hashed("th3", run.th2, c3), ("", "") if "directions" in self.without else ("i2r", "r2i")
        return run._replace(th3=th3, keys=tuple(hashed(f"stream {way}", th3, run.prk) for way in ways), said=c3)

    def offer(self, key, versions):
        """The first chunk of a direction."""
        return versions if "sealed offer" in self.without else term("seal", key, public("offer"), versions)

    def beginnings(self, sessions):
        """Each combination of so many sessions of both; with the intruder's knowledge."""
        kinds = [[(name, other) for other in (*EVERYBODY.replace(name, ""), None)] for name in MEMBERS]
        chosen = [list(combinations_with_replacement(each, sessions)) for each in kinds]
        for federation, of_a, of_b in product(FEDERATIONS, *chosen):
            sides = []
            for owner, dialed in (*of_a, *of_b):
                name = f"ephemeral {len(sides)}" if dialed or "fresh responder" not in self.without else f"of {owner}"
                name = f"static {owner}" if "fresh" in self.without else name
                sides.append(Side(owner, dialed, federation if owner == "B" else "one", term("secret", name)))
            said = [self.first(term("power", side.x), side.dialed) for side in sides if side.dialed]
            yield tuple(sides), INTRUDER.with_(*said)

    def steps(self, sides, locals_, out, known):
        """Each message that a session may take: the session's place, how far it is then, what the intruder hears."""
        pool = [*filter(known.can_make, {OWN, *(term("power", side.x) for side in sides)})]
        for place, (side, local) in enumerate(zip(sides, locals_, strict=True)):
            if local.took >= 0 or (place and (sides[place - 1][:3], locals_[place - 1].stage) == (side[:3], "begun")):
                continue  # it is over; or of two alike the first goes first
            if side.dialed is None and local.stage == "begun":
                for theirs in pool:
                    yield place, Local("answered", theirs), (term("power", side.x), self.run(side, theirs, -1).said)
                continue
            knows = side.dialed and "dialed key" not in self.without
            whom, role = side.dialed if knows else EVERYBODY.replace(side.owner, ""), ROLES[side.dialed is None]
            for theirs, who, federation in product(pool if local.theirs < 0 else [local.theirs], whom, FEDERATIONS):
                took = self.introduction(self.run(side, theirs, -1), role, who, federation)
                if not known.can_make(took):
                    continue
                fits, run = federation == side.federation or "federation" in self.without, self.run(side, theirs, took)
                said = [run.said] if side.dialed else []
                said += [self.offer(run.keys[side.dialed is None], VERSIONS[side.owner])] if fits else []
                yield place, Local("done" if fits else "refused", theirs, who, took, who not in {"M", out}), said

    def broken(self, sides, locals_, known):
        """What does not hold in this state; None if all does."""
        begun = [each for each in zip(sides, locals_, strict=True) if each[1].theirs >= 0]
        ends = [(side, each, self.run(side, each.theirs, each.took)) for side, each in begun]
        done = [end for end in ends if end[1].stage == "done"]
        for (side, local, run), (other, its, that) in combinations(done, 2):
            if not (local.trusts or its.trusts):
                continue
            if run.th3 == that.th3 and (side.dialed is None) == (other.dialed is None):
                return f"a replay: {side.owner} has one session twice"
            if run.keys == that.keys and (side.owner, local.who) != (its.who, other.owner):
                return f"{side.owner} takes the session for one with {local.who}, {other.owner} with {its.who}"
        return next(filter(None, (self._lacks(*end, ends, known) for end in done)), None)

    def _lacks(self, side, local, run, ends, known):
        if side.dialed not in {None, local.who}:
            return f"{side.owner} has dialed {side.dialed} and takes {local.who} for it"
        if not local.trusts:
            return None
        if any(map(known.can_make, run.keys)):
            return f"the intruder has the keys of a session of {side.owner} with {local.who}"
        others = [other.federation for other, *its in ends if other.owner == local.who and meet(side, run, other, *its)]
        if not others:
            return f"{side.owner} has a session with {local.who}, which has none such with {side.owner}"
        if {*others} != {side.federation}:
            return f"{side.owner} and {local.who} have a session, and two federations"
        if known.can_make(self.offer(run.keys[side.dialed is not None], VERSIONS[side.owner])):
            return f"{side.owner} may take other versions for those of {local.who}"
        return None

    def explore(self, sessions=2):
        """How many states there are, or come before something breaks, and what breaks: the nearest to the beginning."""
        waiting, came = deque(), set()

        def reach(state, known, heard, *, leaks):
            """Come to a state; if a key `leaks` then, also to those in which it has."""
            sides, locals_, out = state
            for leaked in (out, *(MEMBERS if leaks and out is None else ())):
                keys = [term("secret", f"{kind} {leaked}") for kind in ("signing", "static") if leaked != out]
                if (state := (sides, locals_, leaked)) not in came:
                    came.add(state)
                    waiting.append((state, then := known.with_(*heard, *keys)))
                    if why := self.broken(sides, locals_, then):
                        return why
            return None

        for sides, known in self.beginnings(sessions):
            reach((sides, (Local(),) * len(sides), None), known, (), leaks=True)
        while waiting:
            state, known = waiting.popleft()
            for place, local, heard in self.steps(*state, known):
                after = state[0], (*state[1][:place], local, *state[1][place + 1 :]), state[2]
                if why := reach(after, known, heard, leaks=local.stage == "done"):
                    return len(came), why
        return len(came), None


def meet(side, run, other, its, that):
    """True if the other end is, or can still become, that of the session: who dials is done first."""
    is_whole = (that.th3, its.who) == (run.th3, side.owner) or (its.stage == "answered" and side.dialed is not None)
    return is_whole and that.th2 == run.th2 and (other.dialed is None) != (side.dialed is None)


STOLEN = "the intruder has the keys of a session of A with B"
ATTACKS = {
    "transcript": STOLEN,
    "signature": STOLEN,
    "fresh": STOLEN,
    "fresh responder": "a replay: B has one session twice",
    "dialed key": "A has dialed B and takes M for it",
    "federation": "A and B have a session, and two federations",
    "directions": "A may take other versions for those of B",
    "sealed offer": "A may take other versions for those of B",
    "identity and seal": "A has a session with B, which has none such with A",
}


def test_no_intruder_breaks_the_handshake_in_any_state():
    assert Handshake().explore() == (55_378, None), "docs/decisions/0062-handshake.md says how many"


@pytest.mark.parametrize(("without", "why"), ATTACKS.items())
def test_without_a_defence_the_search_finds_the_attack(without, why):
    handshake = Handshake(*without.split(" and "))
    assert handshake.explore(sessions=2 if without == "fresh responder" else 1)[1] == why


@pytest.mark.parametrize("without", ["identity", "role", "MAC", "seal"])
def test_this_defence_stands_behind_another(without):
    assert Handshake(without).explore(sessions=1) == Handshake().explore(sessions=1)
