"""A sum over all nodes of one program, each with its own key and sessions with its neighbors: `Federation.sum`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from p2pfl.config.federation_id import federation_id
from p2pfl.config.load import load_node, node_file
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.sums.arrays import WHERE, encoding_of, mistake, read_arrays, refuse_differences, refuse_numbers
from p2pfl.features.sums.fixed_point import SpoiledSum
from p2pfl.features.sums.patience import FIRST_S
from p2pfl.features.sums.sessions import open_sums
from p2pfl.features.sums.sum_effects import Refused, SumDone
from p2pfl.features.sums.sum_settings import SumSettings
from p2pfl.learn.load import resolved
from p2pfl.learn.task import NodeContext
from p2pfl.net.transport import MakeTransport
from p2pfl.reporting.secure_sum import SecureSum

LABEL = "sum"
SUMS_OF_A_SETUP = 2
"""One would be enough, but its end would begin the next set-up."""
SHARE_S = 0.4
"""All nodes share one thread, so each waits longer for the others at first."""
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
        terms = self._encoding.fixed.terms(LABEL, self._encoding.shapes)
        async with AsyncExitStack() as doors, asyncio.TaskGroup() as group:
            asked = []
            for member, identity in zip(federation.members, identities, strict=True):
                settings = SumSettings(
                    federation=federation_id(federation),
                    members=tuple(each.key for each in federation.members),
                    index=member.index,
                    life=1,  # with keys of their own, the nodes of each call have only one
                    colluders=self._colluders,
                    least=self._least,
                    sums=SUMS_OF_A_SETUP,
                )
                listen = member.address or "127.0.0.1:0"
                door = open_sums(
                    federation,
                    settings,
                    identity,
                    listen=listen,
                    transport=transport,
                    first_wait_s=FIRST_S + len(identities) * SHARE_S,
                )
                talk = await doors.enter_async_context(door)
                asked.append(group.create_task(talk.sum(LABEL, self._vectors[member.index], terms)))
            outcomes = [await each for each in asked]
        return self._result(outcomes)

    def _result(self, outcomes: Sequence[SumDone | Refused]) -> SecureSum:
        done = next((each for each in outcomes if isinstance(each, SumDone)), None)
        if done is None:
            reasons = Counter(each.reason for each in outcomes if isinstance(each, Refused))
            raise UserError(f"the sum was refused: {reasons.most_common(1)[0][0]}", file=WHERE)
        try:
            sums = self._encoding.decode(done.total, len(done.members))
        except SpoiledSum as error:
            raise UserError(f"the sum was refused: {error}", file=WHERE) from error
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
