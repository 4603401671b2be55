"""Pairing: who has the line gets the files, one machine may ask, and nobody else learns or changes anything."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import msgspec
import pytest

from p2pfl.config import load_config, read_invite
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.members import (
    ADMIN_FILE,
    Answer,
    Inviter,
    ask_to_join,
    fetch,
    files_of,
    issue,
    make_folder,
    pack_files,
)
from p2pfl.net import Address, GoneError, dial_websocket, open_browserless

NEW, OTHER = Identity(bytes(31) + b"\1"), Identity(bytes(31) + b"\2")
WAITS = pytest.mark.timeout(60)


@pytest.fixture
def ward(tmp_path, monkeypatch):
    from p2pfl.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("p2pfl.features.members.pairing.PATIENCE_S", 0.0)
    monkeypatch.setattr("p2pfl.features.members.pairing.POLL_S", 0.05)
    with pytest.raises(SystemExit):
        main(["new", "ward", "--nodes", "pi1,pi2", "--admin"])
    return load_config(tmp_path / "ward")


@pytest.fixture
def inviter(ward):
    packed, admin = pack_files(files_of(ward), ward.path.parent), Identity.load(ward.path.parent / ADMIN_FILE)
    return Inviter(federation=ward, invite=issue(ward, "pi4", now=0.0), packed=packed, admin=admin)


@asynccontextmanager
async def waiting(inviter, within_s=30.0):
    """The inviter while it waits; the line as the new machine has it, and what the wait ends with."""
    shown = asyncio.get_running_loop().create_future()
    ends = asyncio.create_task(inviter.wait(within_s, shown.set_result))
    try:
        await asyncio.wait((shown, ends), return_when=asyncio.FIRST_COMPLETED)
        meeting = shown.result()
        yield read_invite(msgspec.structs.replace(inviter.invite, meeting=meeting).line()), ends
    finally:
        ends.cancel()
        await asyncio.gather(ends, return_exceptions=True)


def request_of(invite, folder, identity, ward):
    return make_folder(invite, folder, source=ward.path.parent, address="127.0.0.1:9", identity=identity)[0]


@WAITS
async def test_the_new_machine_gets_the_files_and_its_answer_and_no_other_machine_does(inviter, ward, tmp_path):
    async with waiting(inviter) as (invite, ends):
        files = await fetch(invite, invite.meeting, NEW)
        assert files == {file.name: file.read_bytes() for file in files_of(ward)}
        request = request_of(invite, tmp_path / "there", NEW, ward)
        asks = asyncio.create_task(ask_to_join(invite, invite.meeting, NEW, request))
        assert await ends == request
        other = request_of(invite, tmp_path / "elsewhere", OTHER, ward)
        also = asyncio.create_task(ask_to_join(invite, invite.meeting, OTHER, other))
        await asyncio.sleep(0.3)
        assert not asks.done() and not also.done()  # the person has not answered, and nobody is served
    inviter.answer = Answer("", {"members.toml": b"newer"})
    async with asyncio.timeout(20):
        told = asyncio.create_task(inviter.wait(20.0))
        assert await asks == inviter.answer
        assert await told == request
        told = asyncio.create_task(inviter.wait(1.0))
        assert "has used this line" in (await also).why
        assert await told is None


@WAITS
async def test_the_line_with_another_token_key_or_name_opens_nothing(inviter):
    async with waiting(inviter) as (invite, ends):
        wrong = [
            msgspec.structs.replace(invite, token=os.urandom(16)),
            msgspec.structs.replace(invite, name="pi5"),
            msgspec.structs.replace(invite, code=bytes(32)),
            msgspec.structs.replace(invite, meeting=msgspec.structs.replace(invite.meeting, key=OTHER.public)),
        ]
        for line in wrong:
            with pytest.raises(UserError, match="cannot be reached, or takes this line no more"):
                await fetch(line, line.meeting, NEW)
        assert not ends.done()
        assert await fetch(invite, invite.meeting, NEW)


@WAITS
async def test_who_stands_where_the_inviter_was_cannot_pretend_to_be_it(inviter, ward):
    async with waiting(inviter) as (invite, _):
        pass
    thief = Inviter(federation=ward, invite=inviter.invite, packed=b"evil", admin=OTHER)  # it even has the token
    thief._port = int(invite.meeting.addresses[0].rpartition(":")[2])
    async with waiting(thief) as (stolen, _):
        assert stolen.meeting.addresses == invite.meeting.addresses
        with pytest.raises(UserError, match="cannot be reached"):
            await fetch(invite, invite.meeting, NEW)


@WAITS
async def test_a_recorded_visit_cannot_be_played_again(inviter, monkeypatch):
    sent = []
    from p2pfl.net import WebSocketLine

    push = WebSocketLine._push

    async def record(line, data):
        sent.append(bytes(data))
        await push(line, data)

    async with waiting(inviter) as (invite, _):
        monkeypatch.setattr(WebSocketLine, "_push", record)
        await fetch(invite, invite.meeting, NEW)
        monkeypatch.undo()
        first, *_, third, ask = [each for each in sent if len(each) < 2000][:4]
        assert len(first) == 48
        host, _, port = invite.meeting.addresses[0].rpartition(":")
        async with open_browserless() as http:
            line = await dial_websocket(http, Address(host, int(port)))
            await line.send(first)
            await line.receive()
            with pytest.raises(GoneError):
                await line.send(third)
                await line.send(ask)
                await line.receive()


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/evil", "a/b.py", "..", ".profile", "", "pi4", "a\\b.py", "a\nb", "x" * 65]
)
@WAITS
async def test_a_path_that_leaves_the_folder_is_refused(name, inviter):
    inviter.packed = msgspec.msgpack.encode({"federation.toml": b"", name: b"x"})
    async with waiting(inviter) as (invite, _):
        with pytest.raises(UserError, match="no list of files"):
            await fetch(invite, invite.meeting, NEW)


@WAITS
async def test_files_that_are_too_large_or_too_many_are_refused_at_both_ends(inviter, ward):
    ward.path.with_name("task.py").write_bytes(b"#" * (1 << 20))
    with pytest.raises(UserError, match="too many bytes") as error:
        pack_files(files_of(ward), ward.path.parent)
    assert "--from" in str(error.value)
    inviter.packed = bytes((1 << 20) + 1)
    async with waiting(inviter) as (invite, _):
        with pytest.raises(UserError, match="too many bytes"):
            await fetch(invite, invite.meeting, NEW)
    inviter.packed = msgspec.msgpack.encode({f"f{i}": b"" for i in range(33)})
    async with waiting(inviter) as (invite, _):
        with pytest.raises(UserError, match="no list of files"):
            await fetch(invite, invite.meeting, NEW)


@WAITS
async def test_garbage_and_slow_strangers_neither_end_the_wait_nor_keep_the_new_machine_out(inviter, monkeypatch):
    monkeypatch.setattr("p2pfl.features.members.pairing.PATIENCE_S", 20.0)
    async with waiting(inviter) as (invite, ends):
        host, _, port = invite.meeting.addresses[0].rpartition(":")
        slow = []
        for number in range(150):
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write([b"", b"GET /p2pfl HT", os.urandom(5000)][number % 3])
                slow.append(writer)
        assert await fetch(invite, invite.meeting, NEW)
        assert not ends.done()
        for writer in slow:
            writer.close()


@WAITS
async def test_after_the_time_is_over_nothing_is_handed_over(inviter):
    async with waiting(inviter, 0.05) as (invite, ends):
        assert await ends is None
        with pytest.raises(UserError, match="a new line from `p2pfl invite`"):
            await fetch(invite, invite.meeting, NEW)


@WAITS
async def test_a_request_with_another_key_than_the_visitor_s_uses_nothing_up(inviter, ward, tmp_path):
    async with waiting(inviter) as (invite, ends):
        request = request_of(invite, tmp_path / "there", OTHER, ward)
        for wrong in (request, "p2pfl-request:x", request[:-1]):
            asks = asyncio.create_task(ask_to_join(invite, invite.meeting, NEW, wrong))
            await asyncio.wait([asks], timeout=0.3)
            asks.cancel()
        assert not ends.done()
        assert inviter._first == b""


def test_files_that_the_task_names_come_along_and_no_others(ward):
    beside = ward.path.parent
    (beside / "schema.toml").write_text("")
    (beside / "notes.txt").write_text("")
    task = replace(ward.task, options={"schema": "schema.toml", "other": "none.toml", "depth": 3})
    names = [file.name for file in files_of(replace(ward, task=task))]
    assert names == ["federation.toml", "task.py", "schema.toml", "members.toml"]
