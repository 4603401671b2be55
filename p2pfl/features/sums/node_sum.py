"""One node's part in a sum with the others on their machines: `Node.sum`, and what is built on it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from p2pfl.config.federation_id import federation_id
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.sums.arrays import WHERE as TOGETHER
from p2pfl.features.sums.arrays import encoding_of, mistake, read_arrays, refuse_numbers
from p2pfl.features.sums.fixed_point import SpoiledSum
from p2pfl.features.sums.kept import next_life
from p2pfl.features.sums.masks import Words
from p2pfl.features.sums.sessions import open_sums
from p2pfl.features.sums.sum_effects import SumDone
from p2pfl.features.sums.sum_settings import SumSettings, quorum
from p2pfl.features.sums.sum_talk import SumTalk
from p2pfl.reporting.secure_sum import SecureSum
from p2pfl.specs import whole
from p2pfl.storage.disk import lock_folder

notice = logging.getLogger("p2pfl.notice")

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
        vector, terms = encoding.encode(node.name, given), encoding.fixed.terms(label, encoding.shapes)
        with alone(node):
            settings = settings_of(federation, node, sums=SUMS_OF_A_SETUP, **numbers)
            done = await _sum(federation, node, identity, settings, (label, vector, terms))
        sums = encoding.decode(done.total, len(done.members))
    except SpoiledSum as error:
        raise UserError(f"the sum was refused: {error}", file=WHERE) from error
    except UserError as error:
        if error.file in (None, TOGETHER):
            error.file, error.key = WHERE, KEYS.get(error.key or "", error.key)
        raise
    return SecureSum(sums=sums, members=tuple(federation.members[member].name for member in done.members))


def settings_of(federation: FederationConfig, node: NodeConfig, **numbers: int) -> SumSettings:
    """Return the settings of a member's sums in a new life of it. Raises StorageError."""
    return SumSettings(
        federation=federation_id(federation),
        members=tuple(member.key for member in federation.members),
        index=federation.member(node.name).index,
        life=next_life(node.state_dir),
        **numbers,
    )


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
