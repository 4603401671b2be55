"""Sums of arrays that a program asks for: one node with the others on their machines (`Node.sum`, and what is built on
it), or all nodes of one program, each with its own key and sessions with its neighbors (`Federation.sum`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.load import load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.sums.arithmetic import FixedPoint, SpoiledSum, Words
from p2pfl.features.sums.messages import Refused, SumDone, SumSettings, quorum
from p2pfl.features.sums.sessions import next_life, open_sums, open_together, settings_of
from p2pfl.features.sums.talk import SumTalk
from p2pfl.learn.load import resolved
from p2pfl.learn.task import NodeContext
from p2pfl.net.transport import MakeTransport
from p2pfl.reporting.report import SecureSum
from p2pfl.specs import whole
from p2pfl.storage.disk import lock_folder

notice = logging.getLogger("p2pfl.notice")

TOGETHER = "Federation.sum"
MOST_ENTRIES = 2**20
MOST_EXACT = 2**53
"""Up to here a double holds each whole number."""
FLOAT_STEPS = 2**32
"""The steps between the bounds where no resolution is given."""

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


def mistake(text: str, key: str, value: object = None, allowed: str | None = None) -> UserError:
    return UserError(text, file=TOGETHER, key=key, value=value, allowed=allowed)


def read_arrays(node: str, made: Any) -> dict[str, NDArray[Any]]:
    """Read the arrays that a program gives for a node. Raises UserError."""
    if not isinstance(made, Mapping) or not made or not all(isinstance(name, str) for name in made):
        allowed = "a dictionary of arrays by name, such as {'patients': 812}"
        raise mistake(f"{node} gave a {type(made).__name__}", "make", allowed=allowed)
    arrays = {}
    for name in sorted(made):
        try:
            array = np.asarray(made[name])
        except (TypeError, ValueError, RuntimeError) as error:
            raise mistake(f"{name!r} of {node} is no array: {error}", "make") from error
        if array.dtype.kind not in "biuf":
            allowed = "whole numbers or floats"
            raise mistake(f"{name!r} of {node} is an array of {array.dtype}", "make", allowed=allowed)
        arrays[name] = array
    entries = sum(array.size for array in arrays.values())
    if not 1 <= entries <= MOST_ENTRIES:
        raise mistake(f"{node} gave {entries} entries", "make", allowed=f"1 to {MOST_ENTRIES} in all arrays")
    return arrays


def refuse_differences(names: Sequence[str], given: Sequence[Arrays]) -> None:
    """Raises UserError: names or shapes differ between nodes."""
    first = {name: array.shape for name, array in given[0].items()}
    for node, arrays in zip(names[1:], given[1:], strict=True):
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != first:
            name = min(name for name in first.keys() | shapes.keys() if first.get(name) != shapes.get(name))
            texts = [f"shape {each[name]}" if name in each else "missing" for each in (shapes, first)]
            text = f"{name!r} differs: {texts[0]} at {node}, {texts[1]} at {names[0]}"
            raise mistake(text, "make", allowed="the same names and shapes at all nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How the arrays of all nodes become vectors. `whole` names the arrays that have whole numbers at every node."""

    shapes: Mapping[str, tuple[int, ...]]
    whole: frozenset[str]
    fixed: FixedPoint

    def encode(self, node: str, arrays: Arrays) -> Words:
        """Raises UserError: an entry is not finite, or out of bounds."""
        try:
            return self.fixed.encode(arrays)
        except ValueError as error:
            raise mistake(f"{node}: {error}", "within") from None

    def terms(self, label: str) -> bytes:
        return self.fixed.terms(label, self.shapes)

    def decode(self, total: Words, members: int) -> dict[str, NDArray[Any]]:
        """The sums by name: whole numbers where all summands are, and the resolution leaves no doubt.

        Raises SpoiledSum.
        """
        fixed = self.fixed
        found: dict[str, NDArray[Any]] = dict(fixed.decode(total, members, self.shapes))
        if float(fixed.resolution) == 1.0 and float(fixed.low).is_integer():
            exact, start = total.astype(np.int64) + members * int(fixed.low), 0
            for name in sorted(found):
                if name in self.whole:
                    found[name] = exact[start : start + found[name].size].reshape(self.shapes[name])
                start += found[name].size
        elif members * fixed.resolution < 1:
            found |= {name: np.rint(found[name]).astype(np.int64) for name in self.whole}
        return found


def encoding_of(given: Sequence[Arrays], within: Any, resolution: Any, members: int) -> Encoding:
    """`given` are the arrays of one node or more, `members` the nodes that may be in a sum.

    `resolution` None is 1 for whole numbers, else the 2^32nd part of the bounds. Raises UserError.
    """
    low, high = _bounds(within)
    whole = frozenset(name for name in given[0] if all(arrays[name].dtype.kind != "f" for arrays in given))
    if resolution is None:
        if whole == given[0].keys():
            low, high, resolution = math.ceil(low), math.floor(high), 1
        else:
            resolution = (high - low) / FLOAT_STEPS
    elif isinstance(resolution, bool) or not isinstance(resolution, int | float | np.number):
        raise mistake("impossible value", "resolution", resolution, "a number above 0")
    try:
        fixed = FixedPoint(low=low, high=high, resolution=float(resolution), members=members)
    except ValueError as error:
        raise mistake(str(error), "within") from None
    if max(abs(low), abs(high)) / fixed.resolution > MOST_EXACT:
        text = f"bounds of {max(abs(low), abs(high)):g} in steps of {fixed.resolution:g}"
        raise mistake(text, "within", allowed="at most 2^53 steps from 0, as a double holds no more")
    return Encoding(shapes={name: array.shape for name, array in given[0].items()}, whole=whole, fixed=fixed)


def _bounds(within: Any) -> tuple[float, float]:
    allowed = "(low, high): two finite numbers, the lower first"
    try:
        low, high = (float(each) for each in within)
    except (TypeError, ValueError):
        raise mistake("impossible value", "within", within, allowed) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise mistake("impossible value", "within", within, allowed)
    return low, high


def refuse_numbers(count: int, least: int, colluders: int) -> None:
    """Raises UserError: no sum of `count` nodes is private with these numbers."""
    if count < 3:
        text = "too few nodes for a secure sum: of two, each knows the other's part"
        raise mistake(text, "nodes", count, "3 or more")
    if least > count:
        raise mistake("more than there are nodes", "least", least, f"3 to {count}")
    if colluders > least - 2:
        why = f"a sum may have as few as least = {least} members, and two of them must be honest: raise least for more"
        raise mistake("too many", "colluders", colluders, f"1 to {least - 2}, as {why}")


WHERE = "Node.sum"
KEYS = {"make": "arrays"}
"""The names that keywords of `Federation.sum` have here."""
FIRST_WAIT_S = 60.0
"""People start the nodes by hand: when enough are there, the others have this long and twice as long as it took so far.
Without enough, a node waits 16 times as long.
"""
SAY_AGAIN_S = 15.0
SUMS_OF_A_SETUP = 2
"""One would be enough, but its end would begin the next set-up."""
MOST_NAMED = 8


async def sum_at_node(
    federation: FederationConfig,
    node: NodeConfig,
    identity: Identity,
    arrays: Any,
    *,
    label: str = "sum",
    within: Any,
    resolution: Any = None,
    least: Any = 3,
    colluders: Any = 1,
) -> SecureSum:
    """Sum arrays with the other members, who ask for the same; `label` says what for.

    Raises UserError: an argument is wrong, this node runs, or the sum was refused; StorageError.
    """
    try:
        numbers = {"least": _count("least", least, 3), "colluders": _count("colluders", colluders, 1)}
        refuse_few(federation, **numbers)
        given = read_arrays(node.name, arrays)
        encoding = encoding_of([given], within, resolution, len(federation.members))
        vector, terms = encoding.encode(node.name, given), encoding.terms(label)
        with alone(node):
            index, life = federation.member(node.name).index, next_life(node.state_dir)
            settings = settings_of(federation, index, life=life, sums=SUMS_OF_A_SETUP, **numbers)
            done = await _sum(federation, node, identity, settings, (label, vector, terms))
        sums = encoding.decode(done.total, len(done.members))
    except SpoiledSum as error:
        raise UserError(f"the sum was refused: {error}", file=WHERE) from error
    except UserError as error:
        if error.file in (None, TOGETHER):
            error.file, error.key = WHERE, KEYS.get(error.key or "", error.key)
        raise
    return SecureSum(sums=sums, members=tuple(federation.members[member].name for member in done.members))


def refuse_few(federation: FederationConfig, *, least: int, colluders: int) -> None:
    """Raises UserError: the members are too few for a sum with these numbers."""
    count = len(federation.members)
    refuse_numbers(count, least, colluders)
    if len(federation.present) < max(least, quorum(count, colluders)):
        text = (
            f"{count - len(federation.present)} of {count} members were removed, and the others are too few for a sum"
        )
        raise mistake(text, "nodes", len(federation.present), f"{max(least, quorum(count, colluders))} or more")


def names_of(federation: FederationConfig, members: Iterable[int]) -> str:
    names = [federation.members[member].name for member in sorted(members)]
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


async def _sum(
    federation: FederationConfig,
    node: NodeConfig,
    identity: Identity,
    settings: SumSettings,
    asked: tuple[str, Words, bytes],
) -> SumDone:
    """Raises UserError: the sum was refused."""
    others: set[int] = set()
    door = open_sums(
        federation,
        settings,
        identity,
        listen=node.listen,
        folder=node.state_dir,
        first_wait_s=FIRST_WAIT_S,
        finder=node,
        on_other=others.add,
    )
    async with door as talk:
        async with _saying_who_lacks(federation, talk):
            outcome = await talk.sum(*asked)
        await talk.farewell(outcome.members if isinstance(outcome, SumDone) else ())
    if isinstance(outcome, SumDone):
        return outcome
    if outcome.differ:
        text = f"{names_of(federation, outcome.differ)} did not give the same names, shapes, within and resolution"
        text += " as this node, or numbers of another kind (whole, float)"
    elif lacking := _lacking(federation, talk):
        text = f"{outcome.reason}; {names_of(federation, lacking)} did not come"
        if busy := others & lacking:
            text += f" ({names_of(federation, busy)}: learns now, or sums with another least or colluders)"
    else:
        text = outcome.reason
    raise UserError(f"the sum was refused: {text}")


def _lacking(federation: FederationConfig, talk: SumTalk) -> set[int]:
    return {member.index for member in federation.present} - talk.came


@asynccontextmanager
async def _saying_who_lacks(federation: FederationConfig, talk: SumTalk) -> AsyncIterator[None]:
    """Log now and then which members have not come yet."""

    async def say() -> None:
        while True:
            await asyncio.sleep(SAY_AGAIN_S)
            if lacking := _lacking(federation, talk):
                notice.info("a sum waits for %s", names_of(federation, lacking))

    saying = asyncio.create_task(say())
    try:
        yield
    finally:
        saying.cancel()


@contextmanager
def alone(node: NodeConfig) -> Iterator[None]:
    """Hold the node's state folder. Raises UserError: a process has it, or it cannot be used."""
    try:
        held = lock_folder(node.state_dir)
    except UserError as error:
        if "in use" in error.message:
            text = f"{node.name} runs, or sums, at this moment"
            raise UserError(text, allowed="one sum at a time, of a node that does not run") from error
        raise
    try:
        yield
    finally:
        os.close(held)


def _count(key: str, value: Any, least: int) -> int:
    kind = whole(least)
    try:
        return int(kind.read(value))
    except ValueError:
        raise mistake("impossible value", key, value, kind.allowed) from None


LABEL = "sum"
MOST_NODES = 64
"""As many as one process runs at all. In a ring of 64 one thread takes half a minute for their messages."""

Make = Callable[[NodeContext], Any]


class SumTogether:
    """All nodes' arrays, checked. `run` sums them.

    Raises UserError: an argument has an impossible value, `make` raises, or what it returns cannot be summed.
    """

    def __init__(
        self,
        federation: FederationConfig,
        make: Make,
        *,
        within: Any,
        resolution: Any,
        least: int,
        colluders: int,
    ) -> None:
        self._least, self._colluders = least, colluders
        count = len(federation.members)
        if count > MOST_NODES:
            raise mistake("too many nodes for a secure sum in one program", "nodes", count, f"3 to {MOST_NODES}")
        refuse_numbers(count, least, colluders)
        self._names = tuple(member.name for member in federation.members)
        given = [read_arrays(name, _made(make, _context(federation, name))) for name in self._names]
        refuse_differences(self._names, given)
        self._encoding = encoding_of(given, within, resolution, len(given))
        self._vectors = [self._encoding.encode(name, arrays) for name, arrays in zip(self._names, given, strict=True)]

    async def run(
        self, federation: FederationConfig, identities: Sequence[Identity], transport: MakeTransport
    ) -> SecureSum:
        """Sum over the sessions of this federation, whose keys and addresses are those of this run.

        Raises UserError: the sum was refused.
        """
        terms = self._encoding.terms(LABEL)
        numbers = {"least": self._least, "colluders": self._colluders, "sums": SUMS_OF_A_SETUP}

        def settings(index: int) -> SumSettings:
            return settings_of(
                federation, index, **numbers
            )  # of one life: the nodes of each call have keys of their own

        async with open_together(federation, identities, transport, settings) as talks, asyncio.TaskGroup() as group:
            parts = zip(talks, self._vectors, strict=True)
            asked = [group.create_task(talk.sum(LABEL, vector, terms)) for talk, vector in parts]
            outcomes = [await each for each in asked]
        done = next((each for each in outcomes if isinstance(each, SumDone)), None)
        if done is None:
            reasons = Counter(each.reason for each in outcomes if isinstance(each, Refused))
            raise UserError(f"the sum was refused: {reasons.most_common(1)[0][0]}", file=TOGETHER)
        try:
            sums = self._encoding.decode(done.total, len(done.members))
        except SpoiledSum as error:
            raise UserError(f"the sum was refused: {error}", file=TOGETHER) from error
        return SecureSum(sums=sums, members=tuple(self._names[member] for member in done.members))


def _context(federation: FederationConfig, name: str) -> NodeContext:
    """The same as for the data of a task, with the node's own `[data]` where there is a node file."""
    own = load_node(node_file(federation, name), federation, name) if federation.path.is_file() else None
    local = {} if own is None else {key: resolved(key, value, own.path.parent) for key, value in own.data.items()}
    return NodeContext(
        node=federation.member(name).index,
        nodes=len(federation.members),
        name=name,
        seed=federation.seed,
        base_dir=federation.path.parent,
        options=federation.task.options,
        local=local,
    )


def _made(make: Make, context: NodeContext) -> Any:
    try:
        return make(context)
    except UserError:
        raise
    except Exception as error:
        raise mistake(f"{context.name} raised {type(error).__name__}: {error}", "make") from error
