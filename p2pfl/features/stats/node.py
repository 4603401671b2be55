"""One site's part in questions: over its sessions, or all sites in one program; and what the command does with that.

Nodes that take part answer yes with a signature. When all members have, each sums with the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from p2pfl.config.charter import HASH_BYTES
from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import StorageError, UserError
from p2pfl.features import import_declared
from p2pfl.features.lan.discovery import discovery_of
from p2pfl.features.relay.transport import through_relays
from p2pfl.features.stats.query_policy import (
    PROGRAM,
    WITHHELD,
    PolicyAnswer,
    QueryPolicy,
    SiteTable,
    check_bound,
    check_question,
    keep_bound,
    schema_at,
)
from p2pfl.features.stats.statements import (
    CHANNEL,
    SUMS_CHANNEL,
    OpenQuestion,
    Question,
    QuestionSums,
    Statements,
    in_words,
)
from p2pfl.features.stats.survey import (
    STAGES,
    WITHIN,
    Arrays,
    Conversation,
    Statistics,
    Sums,
    SurveyAsked,
    TooFew,
    survey,
)
from p2pfl.features.sums.arithmetic import SpoiledSum, numbers_of
from p2pfl.features.sums.messages import SumDone, SumSettings
from p2pfl.features.sums.sessions import MOST_BODY_BYTES, KeptSums, alone, names_of, settings_of, sum_talk
from p2pfl.features.sums.talk import SumTalk
from p2pfl.foreign import printable
from p2pfl.net.extensions import HandledChannel
from p2pfl.net.links import Links
from p2pfl.net.transport import MakeTransport
from p2pfl.net.websocket import transport_of
from p2pfl.node.assembly import load_identity
from p2pfl.node.current_federation import links_of_phase
from p2pfl.node.folders import newest_here
from p2pfl.node.shutdown import shutdown_on_request

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

COLLUDERS = 1


def settings_for(federation: FederationConfig, index: int, question: bytes = b"") -> SumSettings:
    """Return the settings of the sums of one question, each of which is of all present members.

    Raises UserError: they are too few.
    """
    count = len(federation.present)
    if count < COLLUDERS + 2:
        text = "too few nodes for statistics: of two, each would learn the other's part"
        raise UserError(text, file=federation.path, key="nodes", value=count, allowed="3 or more")
    # A member that starts anew takes no part in a question of before; the end of the last sum would begin a set-up.
    settings = settings_of(federation, index, least=count, colluders=COLLUDERS, sums=STAGES + 1)
    return replace(settings, federation=settings.federation + question)


def carried_on(conversation: Conversation, sums: Sums | None) -> Arrays | Statistics:
    """Return the arrays of the next stage, or the figures. Raises UserError: the sums make no sense, or of few rows."""
    try:
        return next(conversation) if sums is None else conversation.send(sums)
    except StopIteration as end:
        statistics: Statistics = end.value
        return statistics
    except TooFew as few:
        raise UserError(f"nothing can be shown: {few}") from None
    except (ValueError, ArithmeticError, LookupError) as error:
        raise UserError(f"the sums make no sense, so some site has lied: {error}") from error


async def summed(
    conversation: Conversation,
    talk: SumTalk,
    federation: FederationConfig,
    *,
    label: str,
    data: bytes,
    on_counted: Callable[[], object],
) -> Statistics:
    """Sum stage by stage with the others; `on_counted` is called before anything leaves but counts of rows.

    Raises UserError: a sum was refused, or as above.
    """
    stage = carried_on(conversation, None)
    while not isinstance(stage, Statistics):
        numbers = numbers_of(stage, *WITHIN, len(federation.members))
        outcome = await talk.sum(label, numbers.encode(stage), numbers.terms(label), data=data)
        if not isinstance(outcome, SumDone):
            lacking = outcome.differ or outcome.missing
            names = f" ({names_of(federation, lacking)})" if lacking else ""
            raise UserError(f"a sum was refused: {outcome.reason}{names}")
        try:
            sums = numbers.decode(outcome.total, len(outcome.members))
        except SpoiledSum as error:
            raise UserError(f"the sums make no sense, so some site has lied: {error}") from error
        stage = carried_on(conversation, sums)
        on_counted()
    return stage


def survey_here(sites: Sequence[SiteTable], asked: SurveyAsked) -> Statistics:
    """Add up the parts of sites whose tables are in this program. Raises UserError: too few rows."""
    conversations = [survey(asked, site.schema, site.columns) for site in sites]
    sums: Arrays | None = None
    while True:
        parts = [carried_on(conversation, sums) for conversation in conversations]
        if isinstance(parts[0], Statistics):
            return parts[0]
        arrays = [part for part in parts if not isinstance(part, Statistics)]
        sums = {name: np.sum([part[name] for part in arrays], axis=0) for name in arrays[0]}


ANSWERS_S = 120.0
"""The longest wait for the answers of all sites."""
SAY_AGAIN_S = 15.0
FIRST_WAIT_S = 10.0
"""Before anything was measured: all sites have answered just now, so that none is waited for longer."""
BUSY = "it takes part in another question at this moment: ask again soon"


OnEnd = Callable[[str, str, str | None], object]
"""Called with the asker of a question, the question in words, and why it failed; None: the sums were made."""


class StatsNode:
    """`run` answers others until it is cancelled; `on_end` is called with each of their questions."""

    def __init__(
        self,
        federation: FederationConfig,
        node: NodeConfig,
        identity: Identity,
        links: Links,
        *,
        on_end: OnEnd = lambda *_: None,
    ) -> None:
        """Raises StorageError: what was kept is damaged, or the disk refuses."""
        self._federation, self._node, self._identity = federation, node, identity
        self._index = federation.member(node.name).index
        self._on_end = on_end
        self.policy = QueryPolicy(federation, node, identity)
        self._kept = KeptSums(node.state_dir, [member.key for member in federation.members])
        self._coming: asyncio.Queue[OpenQuestion] = asyncio.Queue()
        self._waiting = Counter[int]()
        """The questions of each member that are not decided yet."""
        self._statements = Statements(
            federation,
            self._index,
            identity,
            links.extensions.say,
            is_new=lambda member, serial: self.policy.is_new(self._name(member), serial, self._waiting[member]),
            on_question=self._come,
        )
        self._sums = QuestionSums(links.extensions.say)
        self._deciding = asyncio.Lock()
        self._is_busy = False
        links.extensions.add(HandledChannel(channel=CHANNEL, handler=self._statements))
        links.extensions.add(HandledChannel(channel=SUMS_CHANNEL, handler=self._sums))

    async def run(self) -> NoReturn:
        """Take questions."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._take(await self._coming.get()))

    async def ask(self, columns: tuple[str, ...], by: str | None) -> Statistics:
        """Ask all sites, this one first. Raises UserError: one refuses or does not answer, or the sums fail."""
        asked = Question(serial=self.policy.next_serial(), columns=columns, by=by)
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
        self._statements.answer(question, answer.least_rows, answer.refusal)
        failure = None
        try:
            await self._take_part(question, answer)
        except (UserError, StorageError) as error:
            failure = error.message if isinstance(error, UserError) else str(error)
        self._on_end(asker, in_words(asked.columns, asked.by), failure)

    async def _decide(self, asker: str, asked: Question) -> PolicyAnswer:
        """Decide on a question. A site whose disk refuses to log it does not take part."""
        async with self._deciding:
            busy = BUSY if self._is_busy else ""
            try:
                answer = await asyncio.to_thread(
                    self.policy.answer, asker, asked.serial, asked.columns, asked.by, busy=busy
                )
            except StorageError as error:
                log.error("%s", error)  # noqa: TRY400 - one line says all
                answer = PolicyAnswer(least_rows=self._node.stats.least_rows, refusal="its log cannot be written")
            self._is_busy |= answer.table is not None
            return answer

    async def _take_part(self, question: OpenQuestion, answer: PolicyAnswer) -> Statistics:
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
        bound = (self._node.state_dir, data, question.least_rows)
        check_bound(*bound)
        asked = SurveyAsked(columns=question.question.columns, by=question.question.by, least_rows=question.least_rows)
        talk = sum_talk(
            settings_for(self._federation, self._index, question.id),
            self._identity,
            self._kept,
            self._sums.say,
            first_wait_s=FIRST_WAIT_S,
            alarm=lambda kind, peer, text: _say(self._federation, kind, peer, text),
        )
        conversation = survey(asked, table.schema, table.columns)
        self._sums.begin(question.id, talk)
        try:
            label = f"statistics {asked.least_rows}"
            statistics = await summed(
                conversation, talk, self._federation, label=label, data=data, on_counted=lambda: keep_bound(*bound)
            )
            await talk.farewell([member.index for member in self._federation.present])
            return statistics
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
    on_end: OnEnd = lambda *_: None,
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
        stats_node = StatsNode(federation, node, identity, links, on_end=on_end)
        async with links, AsyncExitStack() as doors:
            if node.discovery:
                await doors.enter_async_context(discovery_of(member, node, lambda: federation, links))
            yield stats_node


def _say(federation: FederationConfig, kind: str, peer: int | None, text: str) -> None:
    name = "" if peer is None else f"{federation.members[peer].name}: "
    log.warning("%s%s: %s", name, kind, text)


ELSEWHERE = (
    "the folders of all nodes, or --node NAME, while each other site runs `p2pfl stats FOLDER --node ITS --answer`"
)


def ask(
    folder: Path, name: str | None, columns: tuple[str, ...], by: str | None
) -> tuple[FederationConfig, Statistics]:
    """Ask all sites as one of them. Without a name their folders are on this machine; the `[stats]` of each decides.

    Raises UserError: some are not here or refuse, the node runs, or the question or a file is wrong; StorageError.
    """
    if name is None:
        federation = newest_here(load_config(folder))
        nodes = _nodes_here(federation)
    else:
        federation, node = _node(folder, name)
        nodes = [node]
    if federation.privacy is not None:
        raise UserError(WITHHELD, file=federation.path, key="privacy")
    settings_for(federation, federation.present[0].index)
    check_question(schema_at(federation, nodes[0]), columns, by, federation.path)
    try:
        if name is None:
            statistics = _ask_here(federation, nodes, columns, by)
        else:
            statistics = asyncio.run(_ask_others(federation, nodes[0], columns, by))
    except UserError as error:
        if error.file is None:
            error.file, error.key = str(federation.path), "--columns"
        raise
    return federation, statistics


def _nodes_here(federation: FederationConfig) -> list[NodeConfig]:
    """Raises UserError: some nodes' folders are elsewhere."""
    names = [member.name for member in federation.present]
    if lacking := [name for name in names if not node_file(federation, name).is_file()]:
        text = f"not on this machine: {', '.join(lacking)}"
        raise UserError(text, file=federation.path, key="--node", allowed=ELSEWHERE)
    return [load_node(node_file(federation, name), federation, name) for name in names]


def _ask_here(
    federation: FederationConfig, nodes: Sequence[NodeConfig], columns: tuple[str, ...], by: str | None
) -> Statistics:
    """Raises UserError: a node refuses, or runs, or too few rows; StorageError."""
    least_rows, sites, refusals, digests = 0, list[SiteTable](), list[str](), list[bytes]()
    with ExitStack() as held:
        for node in nodes:
            held.enter_context(alone(node))
        for node in nodes:
            policy = QueryPolicy(federation, node, load_identity(federation, node))
            answer = policy.answer(PROGRAM, policy.next_serial(), columns, by)
            least_rows = max(least_rows, answer.least_rows)
            if answer.table is None:
                refusals.append(f"{node.name} refuses: {answer.refusal}")
            else:
                sites.append(answer.table)
                digests.append(answer.data)
        if refusals:
            raise UserError("; ".join(refusals))
        bounds = [(node.state_dir, data, least_rows) for node, data in zip(nodes, digests, strict=True)]
        for bound in bounds:
            check_bound(*bound)
        statistics = survey_here(sites, SurveyAsked(columns=columns, by=by, least_rows=least_rows))
        for bound in bounds:
            keep_bound(*bound)
    return statistics


async def _ask_others(
    federation: FederationConfig, node: NodeConfig, columns: tuple[str, ...], by: str | None
) -> Statistics:
    async with open_stats(federation, node, load_identity(federation, node)) as stats:
        return await stats.ask(columns, by)


async def answer_others(folder: Path, name: str, *, on_start: Callable[[], object], on_end: OnEnd) -> None:
    """Answer questions until a signal comes. Raises UserError, StorageError."""
    federation, node = _node(folder, name)
    schema_at(federation, node)
    stop = asyncio.Event()
    async with open_stats(federation, node, load_identity(federation, node), on_end=on_end) as stats:
        running = asyncio.create_task(stats.run())
        async with shutdown_on_request(stop.set, launched=False):
            on_start()
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if running.done():
            await running
        running.cancel()


def _node(folder: Path, name: str) -> tuple[FederationConfig, NodeConfig]:
    """Raises UserError: a file is wrong, or there is no such node."""
    federation = load_config(folder)
    for arrive in import_declared("ARRIVE"):
        federation = arrive(federation, name, None)
    return federation, load_node(node_file(federation, name), federation, name)
