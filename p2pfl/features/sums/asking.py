"""Sums of arrays that a program asks for, with the others on their machines: `Node.sum`, and what is built on it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.sums.arithmetic import FixedPoint, SpoiledSum, Words
from p2pfl.features.sums.messages import SumDone, SumSettings, quorum
from p2pfl.features.sums.sessions import next_life, open_sums, settings_of
from p2pfl.features.sums.talk import SumTalk
from p2pfl.reporting.report import SecureSum
from p2pfl.specs import whole
from p2pfl.storage.disk import lock_folder

notice = logging.getLogger("p2pfl.notice")

WHERE = "Node.sum"
MOST_ENTRIES = 2**20
MOST_EXACT = 2**53
"""Up to here a double holds each whole number."""
FLOAT_STEPS = 2**32
"""The steps between the bounds where no resolution is given."""


def mistake(text: str, key: str, value: object = None, allowed: str | None = None) -> UserError:
    return UserError(text, file=WHERE, key=key, value=value, allowed=allowed)


def read_arrays(node: str, made: Any) -> dict[str, NDArray[Any]]:
    """Read the arrays that a program gives for a node. Raises UserError."""
    if not isinstance(made, Mapping) or not made or not all(isinstance(name, str) for name in made):
        allowed = "a dictionary of arrays by name, such as {'patients': 812}"
        raise mistake(f"{node} gave a {type(made).__name__}", "arrays", allowed=allowed)
    arrays = {}
    for name in sorted(made):
        try:
            array = np.asarray(made[name])
        except (TypeError, ValueError, RuntimeError) as error:
            raise mistake(f"{name!r} of {node} is no array: {error}", "arrays") from error
        if array.dtype.kind not in "biuf":
            allowed = "whole numbers or floats"
            raise mistake(f"{name!r} of {node} is an array of {array.dtype}", "arrays", allowed=allowed)
        arrays[name] = array
    entries = sum(array.size for array in arrays.values())
    if not 1 <= entries <= MOST_ENTRIES:
        raise mistake(f"{node} gave {entries} entries", "arrays", allowed=f"1 to {MOST_ENTRIES} in all arrays")
    return arrays


def encoding_of(given: Mapping[str, NDArray[Any]], within: Any, resolution: Any, members: int) -> FixedPoint:
    """Return how such arrays become vectors. `members` are the nodes that may be in a sum.

    `resolution` None is 1 for whole numbers, else the 2^32nd part of the bounds. Raises UserError.
    """
    low, high = _bounds(within)
    whole_numbers = frozenset(name for name, array in given.items() if array.dtype.kind != "f")
    if resolution is None:
        if whole_numbers == given.keys():
            low, high, resolution = math.ceil(low), math.floor(high), 1
        else:
            resolution = (high - low) / FLOAT_STEPS
    elif isinstance(resolution, bool) or not isinstance(resolution, int | float | np.number):
        raise mistake("impossible value", "resolution", resolution, "a number above 0")
    shapes = {name: array.shape for name, array in given.items()}
    try:
        fixed = FixedPoint(
            low=low, high=high, resolution=float(resolution), members=members, shapes=shapes, whole=whole_numbers
        )
    except ValueError as error:
        raise mistake(str(error), "within") from None
    if max(abs(low), abs(high)) / fixed.resolution > MOST_EXACT:
        text = f"bounds of {max(abs(low), abs(high)):g} in steps of {fixed.resolution:g}"
        raise mistake(text, "within", allowed="at most 2^53 steps from 0, as a double holds no more")
    return fixed


def _bounds(within: Any) -> tuple[float, float]:
    allowed = "(low, high): two finite numbers, the lower first"
    try:
        low, high = (float(each) for each in within)
    except (TypeError, ValueError):
        raise mistake("impossible value", "within", within, allowed) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise mistake("impossible value", "within", within, allowed)
    return low, high


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
    numbers = {"least": _count("least", least, 3), "colluders": _count("colluders", colluders, 1)}
    refuse_few(federation, **numbers)
    given = read_arrays(node.name, arrays)
    encoding = encoding_of(given, within, resolution, len(federation.members))
    try:
        vector = encoding.encode(given)
    except ValueError as error:
        raise mistake(f"{node.name}: {error}", "within") from None
    with alone(node):
        index, life = federation.member(node.name).index, next_life(node.state_dir)
        settings = settings_of(federation, index, life=life, sums=SUMS_OF_A_SETUP, **numbers)
        done = await _sum(federation, node, identity, settings, (label, vector, encoding.terms(label)))
    try:
        sums = encoding.decode(done.total, len(done.members))
    except SpoiledSum as error:
        raise UserError(f"the sum was refused: {error}", file=WHERE) from error
    return SecureSum(sums=sums, members=tuple(federation.members[member].name for member in done.members))


def refuse_few(federation: FederationConfig, *, least: int, colluders: int) -> None:
    """Raises UserError: no sum of these members is private with these numbers, or they are too few to sign one."""
    count, present = len(federation.members), len(federation.present)
    if count < 3:
        text = "too few nodes for a secure sum: of two, each knows the other's part"
        raise mistake(text, "nodes", count, "3 or more")
    if least > count:
        raise mistake("more than there are nodes", "least", least, f"3 to {count}")
    if colluders > least - 2:
        why = f"a sum may have as few as least = {least} members, and two of them must be honest: raise least for more"
        raise mistake("too many", "colluders", colluders, f"1 to {least - 2}, as {why}")
    if present < (needed := max(least, quorum(count, colluders))):
        text = f"{count - present} of {count} members were removed, and the others are too few for a sum"
        raise mistake(text, "nodes", present, f"{needed} or more")


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
    raise UserError(f"the sum was refused: {text}", file=WHERE)


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
            raise UserError(text, file=WHERE, allowed="one sum at a time, of a node that does not run") from error
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
