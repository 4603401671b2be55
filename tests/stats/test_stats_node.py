"""Nodes that answer and one that asks, over sessions in one event loop; and real processes."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from p2pfl.config import load_config, load_node, node_file
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.relay import Admissions, ListedFederation, RelayServer, Switchboard, make_token, read_token
from p2pfl.features.stats import (
    CHANNEL,
    MOST_REFUSALS,
    NONE,
    AtQuestion,
    MemberStatement,
    Question,
    QuestionSums,
    SiteAnswer,
    Statements,
    in_words,
    node,
    open_stats,
    question_id,
    sign,
    verified,
)
from p2pfl.features.sums import Farewell, talk
from p2pfl.net import Address, Counters, Limits, Refusals, WebSocketTransport
from tests.memory_kit import MemoryNetwork
from tests.stats.desks import POLICY, made_ward
from tests.stats.stats_world import asked, hospitals, surveyed
from tests.stats.test_desk import log_of

THREE = ("north", "east", "south")


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(talk, "LAST_S", 0.02)


def parts_of(place, site):
    federation = load_config(place)
    node = load_node(node_file(federation, site), federation, site)
    return federation, node, Identity.load(node.key_file)


def putter(queue):
    return lambda *end: queue.put_nowait(end)


@asynccontextmanager
async def answering(place, sites, transport, ends):
    """Nodes that answer; `ends` has a queue of how questions ended at each."""
    async with AsyncExitStack() as doors:
        running = []
        for site in sites:
            door = open_stats(*parts_of(place, site), transport=transport, on_end=putter(ends[site]))
            found = await doors.enter_async_context(door)
            running.append(asyncio.create_task(found.run()))
        yield
        for one in running:
            assert not one.done()
            one.cancel()


async def ask(place, site, transport, *columns, by=None):
    async with open_stats(*parts_of(place, site), transport=transport) as stats:
        return await stats.ask(columns, by)


async def test_two_questions_one_after_the_other_are_answered_refused_and_logged_at_all(tmp_path):
    place = made_ward(tmp_path, THREE, south=POLICY | {"columns": ["age"], "least_rows": 12})
    transport, ends = MemoryNetwork().transport, {site: asyncio.Queue() for site in THREE[1:]}
    async with answering(place, THREE[1:], transport, ends):
        found = await ask(place, "north", transport, "age", by="sex")
        assert found == surveyed(asked("age", by="sex", least_rows=12), hospitals()[:3])
        with pytest.raises(UserError, match="south refuses: it does not offer chol"):
            await ask(place, "north", transport, "chol")
        async with asyncio.timeout(60):
            for site in THREE[1:]:
                assert (await ends[site].get())[2] is None
                assert "south refuses" in (await ends[site].get())[2]
    assert [line["answer"] for line in log_of(place, "south")] == ["answered", "refused"]
    assert [line["asker"] for line in log_of(place, "north")] == ["north", "north"]


@pytest.mark.parametrize(
    ("least_rows", "text"),
    [(2**52, f"south refuses: least_rows {2**52} is above 1000"), (300, "all sites together have fewer than 300 rows")],
)
async def test_a_member_that_asks_for_too_many_rows_blocks_one_question_and_no_later_one(tmp_path, least_rows, text):
    place, transport = made_ward(tmp_path, THREE), MemoryNetwork().transport
    ends = {site: asyncio.Queue() for site in THREE[1:]}
    federation, node, identity = parts_of(place, "south")
    node = replace(node, stats=replace(node.stats, least_rows=least_rows))
    async with answering(place, ("east",), transport, ends):
        async with open_stats(federation, node, identity, transport=transport) as south:
            running = asyncio.create_task(south.run())
            with pytest.raises(UserError, match=text):
                await ask(place, "north", transport, "age")
            running.cancel()
        async with answering(place, ("south",), transport, ends):
            assert await ask(place, "north", transport, "age") == surveyed(asked("age"), hospitals()[:3])


async def test_sites_that_open_no_port_answer_through_a_relay(tmp_path):
    place, ends = made_ward(tmp_path, THREE), {site: asyncio.Queue() for site in THREE[1:]}
    make_token(tmp_path / "relay.token")
    parts = []
    async with relay_for_token(read_token(tmp_path / "relay.token")) as url, AsyncExitStack() as doors:
        for site in THREE:
            federation, node, identity = parts_of(place, site)
            node = replace(node, relays=(url,), relay_token=tmp_path / "relay.token")
            nowhere = replace(federation, members=tuple(replace(one, address=None) for one in federation.members))
            on_end = putter(ends[site]) if site in ends else lambda *_: None
            door = open_stats(nowhere, node, identity, transport=MemoryNetwork().transport, on_end=on_end)
            found = await doors.enter_async_context(door)
            running = asyncio.create_task(found.run())
            doors.callback(running.cancel)
            parts.append(found)
        assert await parts[0].ask(("age",), None) == surveyed(asked("age"), hospitals()[:3])


@asynccontextmanager
async def relay_for_token(token):
    """A relay over real sockets; yields its URL."""
    refusals = Refusals(Counters.of(()), logging.getLogger("tests"), lambda *_: None)
    transport = WebSocketTransport(Limits(), refusals, logging.getLogger("tests"))
    transport.expect(8)
    server = RelayServer(Admissions([ListedFederation(name="ward", token=token)]), Switchboard(), refusals)
    await transport.open(Address("127.0.0.1", 0), server.meet)
    running = asyncio.create_task(server.run())
    yield f"ws://127.0.0.1:{transport.port}/p2pfl"
    running.cancel()
    await transport.close()


async def test_a_flood_of_questions_before_any_is_decided_is_not_logged_beyond_the_limit(tmp_path):
    place, transport, ends = made_ward(tmp_path, THREE), MemoryNetwork().transport, asyncio.Queue()
    async with open_stats(*parts_of(place, "east"), transport=transport, on_end=putter(ends)) as east:
        for serial in range(1, MOST_REFUSALS + 30):
            asked_for = Question(serial=serial, columns=("ward",), by=None)
            east._statements.hear(0, signed(place, "north", asked_for))
        running = asyncio.create_task(east.run())
        async with asyncio.timeout(60):
            for _ in range(MOST_REFUSALS):
                await ends.get()
        assert east._coming.empty()
        assert not running.done()
        running.cancel()
    assert len(log_of(place, "east")) == MOST_REFUSALS


async def test_who_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "ANSWERS_S", 0.1)
    monkeypatch.setattr(node, "SAY_AGAIN_S", 0.1)
    place, transport = made_ward(tmp_path, THREE), MemoryNetwork().transport
    with pytest.raises(UserError, match="no answer from east, south"):
        await ask(place, "north", transport, "age")


async def test_a_node_that_does_not_offer_its_own_column_asks_nobody(tmp_path):
    place, transport = made_ward(tmp_path, THREE), MemoryNetwork().transport
    with pytest.raises(UserError, match="north refuses: it does not offer ward"):
        await ask(place, "north", transport, "ward")


class Board:
    """The statements of one node, with what it says and asks."""

    def __init__(self, place, site):
        self.federation, node, self.identity = parts_of(place, site)
        self.said, self.questions, self.last = [], [], 0
        index = self.federation.member(node.name).index
        self.statements = Statements(
            self.federation,
            index,
            self.identity,
            lambda peer, channel, message: self.said.append((peer, channel.unpack(channel.pack(message).body))),
            is_new=lambda _, serial: serial > self.last,
            on_question=self.questions.append,
        )


def signed(place, site, statement, author=None):
    federation, node, identity = parts_of(place, site)
    body, signature = sign(federation, identity, statement)
    index = federation.member(node.name).index if author is None else author
    return MemberStatement(author=index, body=body, signature=signature)


async def test_what_a_member_did_not_sign_is_its_neighbor_s_fault_and_a_replay_is_dropped(tmp_path):
    place = made_ward(tmp_path, THREE)
    board = Board(place, "south")
    question = signed(place, "north", Question(serial=7, columns=("age",), by=None))
    wrong = (
        signed(place, "east", Question(serial=9, columns=("age",), by=None), author=0),
        MemberStatement(author=0, body=question.body + b"x", signature=question.signature),
        MemberStatement(author=77, body=question.body, signature=question.signature),
        signed(place, "north", AtQuestion(question=NONE)),
    )
    for statement in wrong:
        with pytest.raises(PeerFault):
            board.statements.hear(1, statement)
    board.statements.opened(0)
    board.statements.opened(1)
    for _ in range(2):
        board.statements.hear(1, question)
    board.statements.hear(1, signed(place, "north", Question(serial=6, columns=("age",), by=None)))
    assert [one.question.serial for one in board.questions] == [7]
    assert board.said == [(0, question)]
    board.last = 8
    board.statements.hear(0, signed(place, "north", Question(serial=8, columns=("age",), by=None)))
    assert len(board.questions) == 1


async def test_answers_reach_all_and_later_neighbors_and_the_most_of_least_rows_counts(tmp_path):
    place = made_ward(tmp_path, THREE)
    board = Board(place, "south")
    question = signed(place, "north", Question(serial=7, columns=("age",), by="sex"))
    name = question_id(0, question.body)
    early = signed(place, "east", SiteAnswer(question=name, least_rows=3, refusal=""))
    board.statements.hear(0, early)  # without its question it is of no use
    board.statements.hear(0, question)
    (found,) = board.questions
    board.statements.answer(found, 20, "")
    board.statements.hear(0, signed(place, "north", SiteAnswer(question=name, least_rows=10, refusal="")))
    assert not found.decided.is_set()
    board.statements.hear(0, early)
    assert found.decided.is_set()
    assert (found.least_rows, found.refusals, found.lacking) == (20, {}, frozenset())
    board.statements.opened(1)
    assert [peer for peer, _ in board.said] == [1, 1, 1, 1]
    board.statements.hear(0, signed(place, "east", SiteAnswer(question=name, least_rows=3, refusal="no")))
    assert found.refusals == {}


def test_a_statement_of_another_federation_does_not_count(tmp_path):
    (tmp_path / "other").mkdir()
    here, there = made_ward(tmp_path, THREE), made_ward(tmp_path / "other", THREE)
    file = there / "federation.toml"
    file.write_text(file.read_text(encoding="utf-8").replace('"federation"', '"other"'), encoding="utf-8")
    statement = signed(there, "north", Question(serial=7, columns=("age",), by=None))
    with pytest.raises(PeerFault):
        verified(load_config(here), 0, statement.body, statement.signature)


def test_names_of_a_peer_do_not_reach_the_terminal_as_they_are():
    assert in_words(("a\x1b[31m", "b"), "c\n") == "a?[31m, b by c?"


class FakeTalk:
    def __init__(self):
        self.events = []

    def opened(self, peer):
        self.events.append(("opened", peer))

    def closed(self, peer):
        self.events.append(("closed", peer))

    def hear(self, peer, message):
        self.events.append(("heard", peer))

    def close(self):
        self.events.append(("over",))


async def test_who_moves_from_question_to_question_without_end_is_at_fault():
    """Each move begins its credit anew."""
    sums = QuestionSums(lambda *_: True)
    sums.opened(1)
    for number in range(64):
        sums.hear(1, AtQuestion(question=bytes([number % 2])))
    with pytest.raises(PeerFault, match="from question to question"):
        sums.hear(1, AtQuestion(question=b"a"))


async def test_two_ends_sum_together_only_while_both_are_at_the_same_question():
    said, talk = [], FakeTalk()
    sums = QuestionSums(lambda peer, _, message: said.append((peer, message.question)))
    sums.opened(1)
    sums.opened(2)
    sums.hear(1, AtQuestion(question=b"a"))
    sums.hear(1, Farewell())
    sums.begin(b"a", talk)
    sums.hear(2, Farewell())
    sums.hear(2, AtQuestion(question=b"b"))
    sums.hear(2, AtQuestion(question=b"a"))
    sums.hear(2, Farewell())
    sums.hear(2, AtQuestion(question=b"b"))
    sums.closed(1)
    sums.opened(3)
    sums.end()
    sums.hear(3, AtQuestion(question=b"a"))
    expected = [("opened", 1), ("opened", 2), ("heard", 2), ("closed", 2), ("closed", 1), ("over",)]
    assert talk.events == expected
    assert said == [(1, b"a"), (2, b"a"), (3, b"a"), (2, NONE), (3, NONE)]


def test_a_statement_of_many_long_names_fits_its_channel(tmp_path):
    names = tuple(f"{place:02}" + "n" * 198 for place in range(64))
    place = made_ward(tmp_path, THREE)
    statement = signed(place, "north", Question(serial=2**52, columns=names, by="b" * 200))
    assert CHANNEL.pack(statement).body


@pytest.mark.long
@pytest.mark.timeout(300)
def test_real_processes_answer_and_one_asks(tmp_path):
    place = made_ward(tmp_path, THREE)
    command = [sys.executable, "-m", "p2pfl", "stats", str(place), "--node"]
    answering = [
        subprocess.Popen([*command, site, "--answer"], stdout=subprocess.PIPE, text=True) for site in THREE[1:]
    ]
    try:
        for process in answering:
            assert process.stdout.readline().endswith("answers\n")
        asks = [*command, "north", "--format", "json", "--columns"]
        for columns in ("age", "age,chol"):
            done = subprocess.run([*asks, columns], capture_output=True, text=True, timeout=200, check=True)
            found = json.loads(done.stdout)
            assert found["nodes"] == list(THREE)
            assert found["figures"][0]["n"] == sum(len(site["age"]) for site in hospitals()[:3])
        said = [[process.stdout.readline() for _ in range(2)] for process in answering]
        for process in answering:
            process.terminate()
            process.communicate(timeout=100)
    finally:
        for process in answering:
            process.kill()
    assert [process.returncode for process in answering] == [0, 0]
    assert all("north asks for age, chol: answered" in lines[1] for lines in said)
