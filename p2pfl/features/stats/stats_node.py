"""One node's part in questions, over its sessions: it decides on those of others, and asks its own.

Nodes that take part answer yes with a signature. When all members have, each sums with the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from p2pfl.config.federation_id import HASH_BYTES
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import StorageError, UserError
from p2pfl.features.lan.announcing import discovery_of
from p2pfl.features.relay.credentials import through_relays
from p2pfl.features.stats.answered_bounds import keep_bound
from p2pfl.features.stats.desk import Desk, DeskAnswer
from p2pfl.features.stats.question import MOST_REASON, Question, in_words
from p2pfl.features.stats.question_sums import CHANNEL as SUMS_CHANNEL
from p2pfl.features.stats.question_sums import QuestionSums
from p2pfl.features.stats.site_table import SiteTable
from p2pfl.features.stats.statements import CHANNEL, OpenQuestion, Statements
from p2pfl.features.stats.surveying import carried_on, settings_for
from p2pfl.features.sums.asking import alone, names_of
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.sessions import MOST_BODY_BYTES, KeptSums
from p2pfl.features.sums.talk import SumTalk
from p2pfl.foreign import printable
from p2pfl.learn.statistics.survey import survey
from p2pfl.learn.statistics.survey_figures import Statistics, SurveyAsked
from p2pfl.net.links import Links
from p2pfl.net.side import Feeding
from p2pfl.net.transport import MakeTransport
from p2pfl.net.websocket import transport_of
from p2pfl.node.phase_links import links_of_phase

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

ANSWERS_S = 120.0
"""The longest wait for the answers of all sites."""
SAY_AGAIN_S = 15.0
FIRST_WAIT_S = 10.0
"""Before anything was measured: all sites have answered just now, so that none is waited for longer."""
BUSY = "it takes part in another question at this moment: ask again soon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a question of a member ended at this node. `failure` None: the sums were made."""

    asker: str
    words: str
    failure: str | None = None


class StatsNode:
    """`run` answers others until it is cancelled; `on_end` is called with each of their questions."""

    def __init__(
        self,
        federation: FederationConfig,
        node: NodeConfig,
        identity: Identity,
        links: Links,
        *,
        on_end: Callable[[Ended], object] = lambda _: None,
    ) -> None:
        """Raises StorageError: what was kept is damaged, or the disk refuses."""
        self._federation, self._node, self._identity = federation, node, identity
        self._index = federation.member(node.name).index
        self._on_end = on_end
        self.desk = Desk(federation, node, identity)
        self._kept = KeptSums(node.state_dir, [member.key for member in federation.members])
        self._coming: asyncio.Queue[OpenQuestion] = asyncio.Queue()
        self._waiting = Counter[int]()
        """The questions of each member that are not decided yet."""
        self._statements = Statements(
            federation,
            self._index,
            identity,
            links.sides.say,
            is_new=lambda member, serial: self.desk.is_new(self._name(member), serial, self._waiting[member]),
            on_question=self._come,
        )
        self._sums = QuestionSums(links.sides.say)
        self._deciding = asyncio.Lock()
        self._is_busy = False
        links.sides.add(Feeding(channel=CHANNEL, handler=self._statements))
        links.sides.add(Feeding(channel=SUMS_CHANNEL, handler=self._sums))

    async def run(self) -> NoReturn:
        """Take questions."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._take(await self._coming.get()))

    async def ask(self, columns: tuple[str, ...], by: str | None) -> Statistics:
        """Ask all sites, this one first. Raises UserError: one refuses or does not answer, or the sums fail."""
        asked = Question(serial=self.desk.next_serial(), columns=columns, by=by)
        answer = await self._decide(self._node.name, asked)
        if answer.table is None:
            raise UserError(f"{self._node.name} refuses: {answer.refusal}")
        question = self._statements.ask(asked)
        self._statements.answer(question, answer.least_rows, "")
        return await self._take_part(question, answer)

    def _come(self, question: OpenQuestion) -> None:
        self._waiting[question.asker] += 1
        self._coming.put_nowait(question)

    async def _take(self, question: OpenQuestion) -> None:
        """Answer a question of another member, take part in it if the answer is yes, and tell how it ended."""
        asker, asked = self._name(question.asker), question.question
        answer = await self._decide(asker, asked)
        self._waiting[question.asker] -= 1
        self._statements.answer(question, answer.least_rows, answer.refusal[:MOST_REASON])
        failure = None
        try:
            await self._take_part(question, answer)
        except (UserError, StorageError) as error:
            failure = error.message if isinstance(error, UserError) else str(error)
        self._on_end(Ended(asker=asker, words=in_words(asked.columns, asked.by), failure=failure))

    async def _decide(self, asker: str, asked: Question) -> DeskAnswer:
        """Decide on a question. A site whose disk refuses to log it does not take part."""
        async with self._deciding:
            busy = BUSY if self._is_busy else ""
            try:
                found = await asyncio.to_thread(
                    self.desk.answer, asker, asked.serial, asked.columns, asked.by, busy=busy
                )
            except StorageError as error:
                log.error("%s", error)  # noqa: TRY400 - one line says all
                found = DeskAnswer(least_rows=self._node.stats.least_rows, refusal="its log cannot be written")
            self._is_busy |= found.table is not None
            return found

    async def _take_part(self, question: OpenQuestion, answer: DeskAnswer) -> Statistics:
        """Raises UserError: some site refuses or does not answer, or the sums fail; StorageError."""
        if answer.table is None:
            self._refuse(question)
        try:
            await self._wait_for_answers(question)
            if question.refusals:
                self._refuse(question)
            return await self._survey(question, answer.table, answer.data)
        finally:
            self._is_busy = False

    async def _wait_for_answers(self, question: OpenQuestion) -> None:
        """Raises UserError: some members have not answered."""
        began = asyncio.get_running_loop().time()
        while not question.decided.is_set():
            try:
                async with asyncio.timeout(SAY_AGAIN_S):
                    await question.decided.wait()
            except TimeoutError:
                lacking = names_of(self._federation, question.lacking)
                if asyncio.get_running_loop().time() - began > ANSWERS_S:
                    text = f"no answer from {lacking}"
                    allowed = "`p2pfl stats FOLDER --node NAME --answer` at each site, while its node does not run"
                    raise UserError(text, allowed=allowed) from None
                notice.info("waiting for an answer from %s", lacking)

    def _refuse(self, question: OpenQuestion) -> NoReturn:
        """Raises UserError, which names who refuses, and why."""
        refusals = question.refusals.items()
        raise UserError("; ".join(f"{self._name(member)} refuses: {printable(why)}" for member, why in refusals))

    async def _survey(self, question: OpenQuestion, table: SiteTable, data: bytes) -> Statistics:
        keep_bound(self._node.state_dir, data, question.least_rows)
        asked = SurveyAsked(columns=question.question.columns, by=question.question.by, least_rows=question.least_rows)
        sums = Sums(
            settings_for(self._federation, self._index, question.id),
            self._identity,
            draw=os.urandom,
            past=self._kept.past,
            first_wait_s=FIRST_WAIT_S,
        )
        talk = SumTalk(
            sums,
            self._sums.say,
            keep=self._kept.add,
            alarm=lambda kind, peer, text: _say(self._federation, kind, peer, text),
        )
        conversation = survey(asked, table.schema, table.columns)
        self._sums.begin(question.id, talk)
        try:
            label = f"statistics {asked.least_rows}"
            found = await carried_on(conversation, talk, self._federation, label=label, data=data)
            await talk.farewell([member.index for member in self._federation.present])
            return found
        finally:
            self._sums.end()

    def _name(self, member: int) -> str:
        return self._federation.members[member].name


@asynccontextmanager
async def open_stats(
    federation: FederationConfig,
    node: NodeConfig,
    identity: Identity,
    *,
    transport: MakeTransport | None = None,
    on_end: Callable[[Ended], object] = lambda _: None,
) -> AsyncIterator[StatsNode]:
    """This node's part in questions, while its sessions are open.

    Raises UserError: the members are too few, the node runs, or it cannot listen; StorageError.
    """
    settings_for(federation, federation.member(node.name).index)
    member = federation.member(node.name)
    usual = transport or transport_of(node)
    with alone(node):
        links = links_of_phase(
            federation,
            member.index,
            identity,
            hashlib.blake2b(b"statistics 1", digest_size=HASH_BYTES, person=b"p2pfl-stats").digest(),
            listen=node.listen,
            max_body_bytes=MOST_BODY_BYTES,
            on_alarm=lambda kind, peer, text: _say(federation, kind, peer, text),
            transport=through_relays(federation, node, identity, usual),
        )
        found = StatsNode(federation, node, identity, links, on_end=on_end)
        async with links, AsyncExitStack() as doors:
            if node.discovery:
                await doors.enter_async_context(discovery_of(member, node, lambda: federation, links))
            yield found


def _say(federation: FederationConfig, kind: str, peer: int | None, text: str) -> None:
    name = "" if peer is None else f"{federation.members[peer].name}: "
    log.warning("%s%s: %s", name, kind, text)
