"""Pairing: who has the line gets the files, one machine may ask, and nobody else learns or changes anything."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import msgspec
import pytest

from p2pfl.cli.main import main
from p2pfl.config import load_config, read_invite
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features import members
from p2pfl.net import Address, GoneError, WebSocketLine, dial_websocket, open_browserless

NEW, OTHER = Identity(bytes(31) + b"\1"), Identity(bytes(31) + b"\2")
PAIRING = "p2pfl.features.members.pairing"


@pytest.fixture
def ward(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"{PAIRING}.PATIENCE_S", 0.0)
    monkeypatch.setattr(f"{PAIRING}.POLL_S", 0.05)
    with pytest.raises(SystemExit):
        main(["new", "ward", "--nodes", "pi1,pi2", "--admin"])
    return load_config(tmp_path / "ward")


@pytest.fixture
def inviter(ward):
    beside = ward.path.parent
    packed, admin = members.pack_files(members.files_of(ward), beside), Identity.load(beside / "admin.key")
    return members.Inviter(federation=ward, invite=members.issue(ward, "pi4", now=0.0), packed=packed, admin=admin)


@asynccontextmanager
async def waiting(inviter, within_s=30.0):
    """The inviter while it waits; the line as the new machine has it, and what the wait ends with."""
    shown = asyncio.get_running_loop().create_future()
    ends = asyncio.create_task(inviter.wait(within_s, shown.set_result))
    try:
        await asyncio.wait((shown, ends), return_when=asyncio.FIRST_COMPLETED)
        yield read_invite(msgspec.structs.replace(inviter.invite, meeting=shown.result()).line()), ends
    finally:
        ends.cancel()
        await asyncio.gather(ends, return_exceptions=True)


def fetch(invite, **changes):
    invite = msgspec.structs.replace(invite, **changes)
    return members.fetch(invite, invite.meeting, NEW)


def ask(invite, identity, request):
    return asyncio.create_task(members.ask_to_join(invite, invite.meeting, identity, request))


def request_of(invite, folder, identity, ward, port=9):
    source, address = ward.path.parent, f"127.0.0.1:{port}"
    return members.make_member(invite, folder, source=source, address=address, identity=identity)[0]


def place_of(invite):
    host, _, port = invite.meeting.addresses[0].rpartition(":")
    return host, int(port)


async def test_one_machine_gets_the_files_and_its_answer_and_no_other_asks(inviter, ward, tmp_path):
    async with waiting(inviter) as (invite, ends):
        assert await fetch(invite) == {file.name: file.read_bytes() for file in members.files_of(ward)}
        request = request_of(invite, tmp_path / "there", NEW, ward)
        asks = ask(invite, NEW, request)
        assert await ends == request
    also = ask(invite, OTHER, request_of(invite, tmp_path / "elsewhere", OTHER, ward))
    assert not (await asyncio.wait((asks, also), timeout=0.3))[0]  # while the person is asked
    inviter.answer = members.Answer("", {"members.toml": b"newer"})
    told = asyncio.create_task(inviter.wait(20.0))
    assert await asyncio.wait_for(asks, 20) == inviter.answer
    assert await told == request
    told = asyncio.create_task(inviter.wait(1.0))
    assert "has used this line" in (await asyncio.wait_for(also, 20)).why
    assert await told is None


async def test_the_line_with_another_token_key_or_name_opens_nothing(inviter):
    async with waiting(inviter) as (invite, ends):
        other = msgspec.structs.replace(invite.meeting, key=OTHER.public)
        for wrong in ({"token": os.urandom(16)}, {"name": "pi5"}, {"code": bytes(32)}, {"meeting": other}):
            with pytest.raises(UserError, match="cannot be reached, or takes this line no more"):
                await fetch(invite, **wrong)
        assert not ends.done()
        assert await fetch(invite)


async def test_who_has_the_line_and_stands_where_the_inviter_was_cannot_pretend_to_be_it(inviter):
    async with waiting(inviter) as (invite, _):
        pass
    thief = replace(inviter, packed=b"evil", admin=OTHER, _own=Identity.generate())
    async with waiting(thief) as (stolen, _):
        assert stolen.meeting.addresses == invite.meeting.addresses
        with pytest.raises(UserError, match="cannot be reached"):
            await fetch(invite)


async def test_a_recorded_visit_cannot_be_played_again(inviter, monkeypatch):
    sent, push = [], WebSocketLine._push

    async def record(line, data):
        sent.append(bytes(data))
        await push(line, data)

    async with waiting(inviter) as (invite, ends):
        monkeypatch.setattr(WebSocketLine, "_push", record)
        await fetch(invite)
        monkeypatch.undo()
        first, _, third, ask = sent[:4]
        async with open_browserless() as http:
            line = await dial_websocket(http, Address(*place_of(invite)))
            await line.send(first)
            await line.receive()
            await line.send(third)
            with pytest.raises(GoneError):
                await line.send(ask) or await line.receive()
        assert not ends.done()


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "a/b.py", "..", ".profile", "", "pi4", "a\\b", "a\nb"])
async def test_a_path_that_leaves_the_folder_is_refused(name, inviter):
    inviter.packed = msgspec.msgpack.encode({"federation.toml": b"", name: b"x"})
    async with waiting(inviter) as (invite, _):
        with pytest.raises(UserError, match="no list of files"):
            await fetch(invite)


async def test_files_that_are_too_large_or_too_many_are_refused_at_both_ends(inviter, ward):
    ward.path.with_name("task.py").write_bytes(b"#" * (1 << 20))
    with pytest.raises(UserError, match=r"too many bytes .* --from"):
        members.pack_files(members.files_of(ward), ward.path.parent)
    many = msgspec.msgpack.encode({f"f{i}": b"" for i in range(33)})
    for packed, why in ((bytes((1 << 20) + 1), "too many bytes"), (many, "no list"), (b"\xc1", "no list")):
        inviter.packed = packed
        async with waiting(inviter) as (invite, _):
            with pytest.raises(UserError, match=why):
                await fetch(invite)


async def test_garbage_and_slow_strangers_neither_end_the_wait_nor_keep_the_new_machine_out(inviter, monkeypatch):
    monkeypatch.setattr(f"{PAIRING}.PATIENCE_S", 20.0)
    async with waiting(inviter) as (invite, ends):
        strangers = []
        for number in range(150):
            with suppress(OSError):
                strangers.append((await asyncio.open_connection(*place_of(invite)))[1])
                strangers[-1].write([b"", b"GET /p2pfl HT", os.urandom(5000)][number % 3])
        assert await fetch(invite)
        assert not ends.done()
        for writer in strangers:
            writer.close()


async def test_after_the_time_is_over_nothing_is_handed_over(inviter):
    async with waiting(inviter, 0.05) as (invite, ends):
        assert await ends is None
        with pytest.raises(UserError, match="a new line from `p2pfl invite`"):
            await fetch(invite)


async def test_a_request_with_another_key_than_the_visitor_s_uses_nothing_up(inviter, ward, tmp_path):
    async with waiting(inviter) as (invite, ends):
        request = request_of(invite, tmp_path / "there", OTHER, ward)
        asking = [ask(invite, NEW, wrong) for wrong in (request, "p2pfl-request:x", request[:-1])]
        await asyncio.wait([*asking, ends], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        assert not ends.done()
        assert inviter._first == b""
        for task in asking:
            task.cancel()


def test_files_that_the_task_names_come_along_and_no_others(ward):
    for name in ("schema.toml", "notes.txt"):
        ward.path.with_name(name).touch()
    task = replace(ward.task, options={"schema": "schema.toml", "other": "none.toml", "depth": 3})
    names = [file.name for file in members.files_of(replace(ward, task=task))]
    assert names == ["federation.toml", "task.py", "schema.toml", "members.toml"]


def test_a_secret_key_is_never_handed_over_and_a_long_text_is_no_file(ward):
    text = ward.path.read_text().replace("[task]", f'[task]\nprompt = "{"x" * 5000}"\nmore = "admin.key"')
    ward.path.write_text(text)
    named = members.files_of(load_config(ward.path))
    with pytest.raises(UserError, match=r"admin.key: this file cannot be handed over"):
        members.pack_files(named, ward.path.parent)


def test_a_file_that_is_huge_or_missing_is_one_clear_error_before_it_fills_the_memory(ward):
    huge = ward.path.with_name("rows.csv")
    huge.touch()
    os.truncate(huge, 1 << 40)
    for file, why in ((huge, "too large"), (huge.with_name("none.py"), "cannot be read")):
        with pytest.raises(UserError, match=why):
            members.pack_files([file], huge.parent)


def test_two_terminals_that_ask_at_once_both_add_their_machine(ward, tmp_path, monkeypatch):
    def asked(name, identity, port):
        return request_of(members.issue(ward, name, now=time.time()), tmp_path / name, identity, ward, port)

    def admit(request, *, yes):
        return members.admit(ward.path, request, None, yes=yes, offline=True)

    requests = asked("pi4", NEW, 8), asked("pi5", OTHER, 9)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: admit(requests[1], yes=True))
    assert admit(requests[0], yes=False)
    assert [member.name for member in load_config(ward.path).present] == ["pi1", "pi2", "pi5", "pi4"]


async def test_one_that_was_signed_in_before_an_interrupt_is_told_so(inviter, ward, tmp_path, monkeypatch):
    """Its key is in the list from then on: told no, it would delete that key."""

    async def interrupted(*_):
        raise KeyboardInterrupt

    def show(_, __, made, **___):
        request = request_of(made, tmp_path / "there", NEW, ward)
        loop.call_soon_threadsafe(told.set_result, (made, request))

    loop, told = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    monkeypatch.setattr("p2pfl.features.members.joining._show_line", show)
    monkeypatch.setattr("p2pfl.features.members.changes.hand", interrupted)
    monkeypatch.setattr("click.confirm", lambda *_, **__: True)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)

    def invites():
        with pytest.raises(SystemExit):
            main(["invite", "ward", "pi4"])

    person = asyncio.create_task(asyncio.to_thread(invites))
    made, request = await told
    answer = await ask(made, NEW, request)
    await person
    assert not answer.why
    assert answer.files["members.toml"] == ward.path.with_name("members.toml").read_bytes()
