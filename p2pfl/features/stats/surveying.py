"""Secure sums for one site's part in a survey: with the others over sessions, or all sites in one program."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from p2pfl.config.federation_id import federation_id
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.stats.site_table import SiteTable
from p2pfl.features.sums.arithmetic import SpoiledSum
from p2pfl.features.sums.asking import encoding_of, names_of
from p2pfl.features.sums.messages import SumDone, SumSettings
from p2pfl.features.sums.sessions import open_sums
from p2pfl.features.sums.setup import FIRST_S
from p2pfl.features.sums.talk import SumTalk
from p2pfl.learn.statistics.site import WITHIN
from p2pfl.learn.statistics.survey import STAGES, Conversation, survey
from p2pfl.learn.statistics.survey_figures import Statistics, SurveyAsked, TooFew
from p2pfl.net.address import free_ports
from p2pfl.net.in_memory import MemoryNetwork

COLLUDERS = 1
SHARE_S = 0.4
"""All nodes share one thread, so each waits longer for the others at first."""


def settings_for(federation: FederationConfig, index: int, question: bytes = b"") -> SumSettings:
    """Return the settings of the sums of one question, each of which is of all present members.

    Raises UserError: they are too few.
    """
    count = len(federation.present)
    if count < COLLUDERS + 2:
        text = "too few nodes for statistics: of two, each would learn the other's part"
        raise UserError(text, file=federation.path, key="nodes", value=count, allowed="3 or more")
    return SumSettings(
        federation=federation_id(federation) + question,
        members=tuple(member.key for member in federation.members),
        index=index,
        life=1,  # a member that starts anew takes no part in a question of before
        least=count,
        colluders=COLLUDERS,
        sums=STAGES + 1,  # the end of the last would begin another set-up
    )


async def carried_on(
    conversation: Conversation, talk: SumTalk, federation: FederationConfig, *, label: str, data: bytes | None = None
) -> Statistics:
    """Sum stage by stage. Raises UserError: a sum was refused or makes no sense, or all sites have too few rows."""
    arrays, members = next(conversation), len(federation.members)
    while True:
        encoding = encoding_of([arrays], WITHIN, 1, members)
        vector = encoding.encode("this node", arrays)
        outcome = await talk.sum(label, vector, encoding.fixed.terms(label, encoding.shapes), data=data)
        if not isinstance(outcome, SumDone):
            lacking = outcome.differ or outcome.missing
            names = f" ({names_of(federation, lacking)})" if lacking else ""
            raise UserError(f"a sum was refused: {outcome.reason}{names}")
        try:
            arrays = conversation.send(encoding.decode(outcome.total, len(outcome.members)))
        except StopIteration as end:
            found: Statistics = end.value
            return found
        except TooFew as few:
            raise UserError(f"nothing can be shown: {few}") from None
        except (SpoiledSum, ValueError, ArithmeticError, LookupError) as error:
            raise UserError(f"the sums make no sense, so some site has lied: {error}") from error


async def survey_together(federation: FederationConfig, sites: Sequence[SiteTable], asked: SurveyAsked) -> Statistics:
    """Sum over all present nodes in this program, with keys and sessions made for it. Raises UserError."""
    identities = [Identity.generate() for _ in federation.members]
    ports, transport = free_ports(len(identities)), MemoryNetwork().transport
    members = tuple(
        replace(member, key=identity.public, address=f"127.0.0.1:{port}")
        for member, identity, port in zip(federation.members, identities, ports, strict=True)
    )
    among = replace(federation, members=members)
    first_wait_s = FIRST_S + len(identities) * SHARE_S
    async with AsyncExitStack() as doors:
        parts = []
        for member, identity, site in zip(among.members, identities, sites, strict=True):
            settings, listen = settings_for(among, member.index), member.address or ""
            door = open_sums(among, settings, identity, listen=listen, transport=transport, first_wait_s=first_wait_s)
            talk = await doors.enter_async_context(door)
            conversation = survey(asked, site.schema, site.columns)
            parts.append(carried_on(conversation, talk, among, label="statistics"))
        outcomes = await asyncio.gather(*parts, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return next(one for one in outcomes if isinstance(one, Statistics))
