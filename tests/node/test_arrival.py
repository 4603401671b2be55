"""What a newcomer's folder must be like before it asks anybody."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from charter_kit import after, first, key_of, sign, ward

from p2pfl.config import Contact, NewMember, federation_text, invite_of, load_config, members_text, with_member
from p2pfl.crypto.identity import public_text
from p2pfl.errors import UserError
from p2pfl.features.members import _ask, arrive, wait_for_charter
from p2pfl.net import OneShotClient, UnreachableError

NEWCOMER = key_of(40)


@pytest.fixture
def folder(tmp_path):
    """A federation of three, and the folder of the newcomer pi9; `listed`: there is a charter that has it."""

    def folder(*, listed):
        federation = ward(3)
        members = [
            NewMember(name=one.name, key=public_text(one.key), address=one.address or "") for one in federation.members
        ]
        text = federation_text(name="ward", topology="keyed-rings", task="digits", members=members)
        admin = ", ".join(f'"{public_text(key)}"' for key in federation.admin)
        (tmp_path / "federation.toml").write_text(text.replace("seed = 0", f"seed = 0\nadmin = [{admin}]"), "utf-8")
        here = load_config(tmp_path)
        (tmp_path / "pi9").mkdir(mode=0o700)
        NEWCOMER.save(tmp_path / "pi9" / "node.key")
        (tmp_path / "pi9" / "invite").write_text(invite_of(here, "pi9", bytes(16)).line(), encoding="ascii")
        if listed:
            here = after(here, first(here))
            charter = sign(with_member(here, name="pi9", key=NEWCOMER.public, address=None))
            (tmp_path / "members.toml").write_text(members_text(charter, "ward"), encoding="utf-8")
        return tmp_path

    return folder


def edit(folder):
    file = folder / "federation.toml"
    file.write_text(file.read_text("utf-8").replace("learning_rate = 0.2", "learning_rate = 0.3"), "utf-8")


def test_who_is_listed_goes_on(folder):
    assert arrive(load_config(folder(listed=True)), "pi9").member("pi9").key == NEWCOMER.public


@pytest.mark.parametrize("listed", [True, False])
def test_other_files_than_those_of_the_invite_are_refused_at_the_first_start(folder, listed):
    there = folder(listed=listed)
    edit(there)
    with pytest.raises(UserError, match="not the federation file"):
        arrive(load_config(there), "pi9")


def test_a_member_may_change_its_files_later_like_every_other_node(folder):
    there = folder(listed=True)
    edit(there)
    (there / "pi9" / "state").mkdir()
    assert arrive(load_config(there), "pi9").training.learning_rate == 0.3


THREE = after(ward(3), first(ward(3)))
SECOND = sign(with_member(THREE, name="pi9", key=NEWCOMER.public, address=None))
TWO = after(THREE, SECOND)


@pytest.mark.parametrize(
    ("known", "answer", "expected"),
    [
        (THREE, SECOND, TWO),
        (TWO, first(ward(3)), TWO),
        (TWO, sign(replace(SECOND, rounds=77)), TWO),
        (TWO, None, TWO),
    ],
    ids=["newer", "older", "the same version", "none"],
)
def test_what_a_member_answers_is_taken_only_if_it_is_newer(known, answer, expected, tmp_path, monkeypatch):
    """A member that lags, or lies, must not bring a newcomer back to an older list."""
    asked = []

    async def ask(_self, address, key, version):
        asked.append((address, key, version))
        return None if answer is None else answer.packed()

    monkeypatch.setattr("p2pfl.net.websocket.OneShotClient.ask", ask)
    there = Contact(known.members[0].key, "10.0.0.0:8470")
    found = asyncio.run(_ask(known, OneShotClient.of(known, NEWCOMER), there, tmp_path / "state"))
    assert found == expected
    assert asked == [(there.address, there.key, known.edition.version)]
    assert (tmp_path / "state").exists() == (found is not known)


def test_both_addresses_of_a_member_are_asked_and_the_log_says_why_neither_helps(tmp_path, monkeypatch, caplog):
    """The file here may be the one of a trial on one machine, with everybody on loopback; the invite is newer."""
    monkeypatch.setattr("p2pfl.features.members.arriving.PAUSE_S", (0.0, 0.0))
    caplog.set_level("INFO", "p2pfl.notice")
    member, asked = THREE.members[0], []
    invite = invite_of(THREE, "pi9", bytes(16))
    stale = replace(THREE, members=tuple(replace(one, address=f"127.0.0.1:{one.index + 1}") for one in THREE.members))

    async def ask(_self, address, key, _version):
        asked.append(address)
        if len(asked) > 6 and (address, key) == (member.address, member.key):
            return SECOND.packed()
        raise UnreachableError("No route to host")

    monkeypatch.setattr("p2pfl.net.websocket.OneShotClient.ask", ask)
    stale = replace(stale, relays=("ws://relay:1",))
    found = asyncio.run(asyncio.wait_for(wait_for_charter(stale, NEWCOMER, invite, tmp_path / "state"), 10.0))
    assert found.edition == SECOND.edition
    assert asked[:6] == [f"10.0.0.{k}:8470" for k in range(3)] + [f"127.0.0.1:{k + 1}" for k in range(3)]
    (said,) = [record.getMessage() for record in caplog.records if record.name == "p2pfl.notice"]
    assert public_text(NEWCOMER.public) in said
    assert "copy members.toml and tickets.toml here" in said
    assert "pi0 at 10.0.0.0:8470: No route to host" in said
    assert "pi1 at 127.0.0.1:2: No route to host" in said


def test_a_damaged_invite_is_one_clear_error(folder):
    there = folder(listed=False)
    (there / "pi9" / "invite").write_text("p2pfl:AAAA", encoding="ascii")
    with pytest.raises(UserError, match="cut or mistyped"):
        arrive(load_config(there), "pi9")
