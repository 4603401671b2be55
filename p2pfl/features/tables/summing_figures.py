"""The secure sum of all nodes' figures, once all names are known. All members must be in it; else it is refused, and
asked for again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.features.sums.arithmetic import SpoiledSum
from p2pfl.features.sums.asking import encoding_of, names_of
from p2pfl.features.sums.messages import Refused, SumDone, SumSettings
from p2pfl.features.sums.sessions import next_life, settings_of
from p2pfl.features.sums.talk import SumTalk
from p2pfl.features.tables.agreement import COLLUDERS, Agreement
from p2pfl.learn.table.figure_sums import WITHIN

notice = logging.getLogger("p2pfl.notice")

LABEL = "schema"
AGAIN_S = 1.0
SUMS_OF_A_SETUP = 4
FIGURES = "figures"


class Talk(Protocol):
    """What the sum needs of the exchange of names, and gives to it: sums, or a failure."""

    agreement: Agreement
    named: asyncio.Event
    digest: bytes
    failure: Exception | None
    changed: asyncio.Event

    def take_sums(self, sums: bytes) -> None: ...
    def refused(self) -> None: ...


def sum_settings(federation: FederationConfig, node: NodeConfig) -> SumSettings:
    """Return the settings of this sum, which is of all members. Raises StorageError."""
    least = len(federation.present)
    index, life = federation.member(node.name).index, next_life(node.state_dir)
    return settings_of(federation, index, life=life, least=least, colluders=COLLUDERS, sums=SUMS_OF_A_SETUP)


@asynccontextmanager
async def summing(talk: Talk, sums: SumTalk) -> AsyncIterator[None]:
    """Sum in the background, and give `talk` the sums; a failure is given to it too."""

    async def work() -> None:
        try:
            await _sum(talk, sums)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for the agreement
            talk.failure = error
            talk.changed.set()

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        sums.close()


async def _sum(talk: Talk, sums: SumTalk) -> None:
    await talk.named.wait()
    agreement, layout = talk.agreement, talk.agreement.layout
    figures = layout.figures(agreement.statistics)
    if not layout.size:
        talk.take_sums(b"")
        return
    encoding = encoding_of([{FIGURES: figures}], WITHIN, 1, len(agreement.federation.members))
    vector = encoding.encode("this node", {FIGURES: figures})
    terms = encoding.terms(f"{LABEL} {layout.digest}")
    while not talk.digest:
        outcome = await sums.sum(LABEL, vector, terms)
        if isinstance(outcome, SumDone):
            try:
                total = encoding.decode(outcome.total, len(outcome.members))[FIGURES]
            except SpoiledSum as error:
                notice.warning("agreeing on a schema: %s", error)
            else:
                talk.take_sums(total.astype("<i8").tobytes())
                return
        else:
            _say(agreement.federation, outcome)
            talk.refused()
        await asyncio.sleep(AGAIN_S)


def _say(federation: FederationConfig, refused: Refused) -> None:
    if refused.differ:
        text = "agreeing on a schema: %s has since signed other names: restart all nodes"
        notice.warning(text, names_of(federation, refused.differ))
    else:
        notice.info("agreeing on a schema: no sum yet, trying again: %s", refused.reason)
