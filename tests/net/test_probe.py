"""Anybody who has the federation file can ask who answers at an address, and disturbs nobody."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from p2pfl.crypto.identity import Identity
from p2pfl.features.lan import AnswerKind, Prober
from p2pfl.net import parse_address


@pytest.fixture
def ask(federation, other_binding):
    """What is found where member 1 should be."""

    async def ask(address, *, ignored=frozenset(), binding=None):
        keys = [identity.public for identity in federation.identities]
        async with Prober(keys, binding or other_binding, ignored=ignored) as prober:
            return await prober.ask(parse_address(address, "address"), 1)

    return ask


async def test_a_member_proves_that_it_is_there_and_in_what_its_file_differs(federation, ask):
    async with federation.node(1) as node:
        answer = await ask(node.address())
        assert (answer.kind, answer.differences) == (AnswerKind.MEMBER, ("training.rounds",))
        again = await ask(node.address(), ignored=frozenset({"training.rounds"}))
        assert (again.kind, again.differences) == (AnswerKind.MEMBER, ())


async def test_no_session_is_opened_or_ended(federation, ask):
    async with federation.node(1) as b, federation.node(0, {1: b.address()}) as a:
        await b.until(lambda: a.open and b.open)
        assert (await ask(b.address())).kind is AnswerKind.MEMBER
        assert a.kinds() == b.kinds() == ["open"]


async def test_a_stranger_that_asks_is_no_alarm(federation, ask, caplog):
    async with federation.node(1) as node:
        await ask(node.address())
        assert not node.alarms
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_another_member_in_its_place_is_recognized(federation, ask):
    async with federation.node(3) as node:
        answer = await ask(node.address())
    assert (answer.kind, answer.detail) == (AnswerKind.OTHER_MEMBER, "3")


async def test_a_node_of_another_federation_is_one_all_the_same(federation, ask):
    federation.identities[1] = Identity(b"x" * 32)
    stranger = federation.new(1)
    federation.identities[1] = Identity(bytes([2]) * 32)
    async with stranger.links:
        assert (await ask(stranger.address())).kind is AnswerKind.OTHER_NODE


@asynccontextmanager
async def mail_server(greeting):
    writers = []

    def greet(_, writer):
        writers.append(writer)
        writer.write(greeting)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in writers:
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize("greeting", [b"220 mail\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"])
async def test_a_server_of_mail_or_of_the_web_is_no_node(ask, greeting):
    async with mail_server(greeting) as address:
        assert (await ask(address)).kind is AnswerKind.NO_NODE


async def test_a_port_without_a_server_is_told_from_one_that_is_silent(ask, monkeypatch):
    assert (await ask("127.0.0.1:1")).kind is AnswerKind.REFUSED
    monkeypatch.setattr("p2pfl.features.lan.doctor.CONNECT_S", 0.1)
    async with mail_server(b"") as address:
        assert (await ask(address)).kind is AnswerKind.SILENT


async def test_a_name_that_nobody_knows_is_said_so(ask, monkeypatch):
    async def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    answer = await ask("nobody.invalid:8470")
    assert (answer.kind, answer.detail) == (AnswerKind.SILENT, "the name nobody.invalid is unknown")
