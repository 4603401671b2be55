"""What opens a relay: tickets and tokens, their files, and everything that does not fit."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from msgspec import structs

from p2pfl.config import realm_named
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.relay import (
    PREFIX,
    VERSION,
    Admissions,
    Challenge,
    FrameKind,
    ListedFederation,
    Refusal,
    RefusedError,
    Registration,
    Ticket,
    credentials_here,
    make_token,
    pack_struct,
    read_listed,
    read_token,
    register,
    struct_in,
    token_id,
    unpack,
)

ADMIN, MEMBER, STRANGER = (Identity(bytes([number]) * 32) for number in (1, 2, 3))
REALM = realm_named("ward", 0)
NONCE, NAME, NOW = b"n" * 32, "relay.example.org:8443/p2pfl", 1_000
CHALLENGE = Challenge(version=VERSION, nonce=NONCE, clock_s=NOW)
TICKET = Ticket.sign(ADMIN, realm=REALM, key=MEMBER.public, until=NOW + 10)
TOKEN = b"s" * 32
LISTED = (
    ListedFederation(name="ward", realm=REALM, admin=(ADMIN.public,)),
    ListedFederation(name="yard", token=TOKEN),
)


def judged(registration: Registration, *, now=NOW, nonce=NONCE, listed=LISTED) -> Refusal | str:
    try:
        return Admissions(listed).admit(registration, nonce, now)[0].name
    except RefusedError as refused:
        return refused.reason


def answer(identity=MEMBER, ticket=TICKET, name=NAME, token=b"") -> Registration:
    return register(identity, CHALLENGE, relay=name, ticket=b"" if ticket is None else ticket.packed(), token=token)


def test_a_member_with_its_ticket_or_the_token_is_let_in():
    assert judged(answer()) == "ward"
    assert judged(answer(STRANGER, None, token=TOKEN)) == "yard"


@pytest.mark.parametrize(
    ("registration", "expected"),
    [
        (answer(STRANGER), Refusal.FORGED),
        (answer(ticket=None), Refusal.NO_TICKET),
        (answer(ticket=Ticket.sign(STRANGER, realm=REALM, key=MEMBER.public, until=NOW + 9)), Refusal.UNLISTED),
        (answer(ticket=Ticket.sign(ADMIN, realm=bytes(32), key=MEMBER.public, until=NOW + 9)), Refusal.UNLISTED),
        (answer(ticket=Ticket.sign(ADMIN, realm=REALM, key=MEMBER.public, until=NOW - 1)), Refusal.EXPIRED),
        (answer(ticket=replace(TICKET, until=NOW + 99)), Refusal.FORGED),
        (answer(ticket=replace(TICKET, key=STRANGER.public)), Refusal.FORGED),
        (answer(token=b"another token".ljust(32)), Refusal.UNLISTED),
        (structs.replace(answer(), version=VERSION + 1), Refusal.VERSION),
        (structs.replace(answer(), signature=bytes(64)), Refusal.FORGED),
        (structs.replace(answer(), ticket=b"?"), Refusal.FORGED),
        (structs.replace(answer(), relay="evil.example.org/p2pfl"), Refusal.FORGED),
        (structs.replace(answer(STRANGER, None, token=TOKEN), token_proof=bytes(32)), Refusal.FORGED),
        (structs.replace(answer(ticket=None), token_id=token_id(TOKEN)), Refusal.FORGED),
    ],
)
def test_everything_else_is_refused_with_its_reason(registration, expected):
    assert judged(registration) is expected


def test_an_answer_serves_once():
    assert judged(answer(), nonce=b"m" * 32) is Refusal.FORGED


def test_a_registration_comes_through_as_it_was_sent():
    found = struct_in(unpack(pack_struct(FrameKind.REGISTER, answer())), FrameKind.REGISTER, Registration)
    assert found == answer()
    with pytest.raises(PeerFault, match="in place of"):
        struct_in(unpack(pack_struct(FrameKind.REGISTER, answer())), FrameKind.CHALLENGE, Challenge)


@pytest.mark.parametrize("line", ["x", PREFIX, f"{PREFIX}AAAA", f"{PREFIX}ä"])
def test_a_line_that_is_no_ticket_is_named(tmp_path, line):
    file = tmp_path / "tickets.toml"
    file.write_text(f'tickets = ["{line}"]\n', encoding="utf-8")
    with pytest.raises(UserError, match="not a ticket"):
        credentials_here(SimpleNamespace(path=tmp_path / "federation.toml"))


def test_a_token_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    file = tmp_path / "relay.token"
    make_token(file)
    assert len(read_token(file)) == 32
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="cannot be created"):
        make_token(file)
    file.chmod(0o644)
    with pytest.raises(UserError, match=r"others may read this secret.*chmod 600"):
        read_token(file)


@pytest.mark.parametrize("content", ["", "p2pfl-relay-token-1:short", "x" * 300])
def test_what_is_no_token_is_said_and_not_shown(tmp_path, content):
    file = tmp_path / "relay.token"
    file.write_text(content, encoding="utf-8")
    file.chmod(0o600)
    with pytest.raises(UserError, match="not a token") as wrong:
        read_token(file)
    assert "xxx" not in str(wrong.value)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UserError, match="not a regular file"):
        read_token(tmp_path / "pipe")


def test_the_relay_lists_what_it_is_given_and_says_what_is_wrong_with_it(tmp_path):
    file = tmp_path / "federation.toml"
    file.write_text('[federation]\nname = "ward"\n[task]\nname = "none of its business"\n', encoding="utf-8")
    with pytest.raises(UserError, match="names no admin key"):
        read_listed([file], [])
    file.write_text(f'[federation]\nname = "ward"\nadmin = ["{public_text(ADMIN.public)}"]\n', encoding="utf-8")
    assert read_listed([tmp_path], []) == [LISTED[0]]
    with pytest.raises(UserError, match="the same federation"):
        read_listed([file, tmp_path], [])


def test_a_relay_that_was_restarted_refuses_whom_its_members_file_names_as_removed(tmp_path):
    head = f'[federation]\nname = "ward"\nadmin = ["{public_text(ADMIN.public)}"]\n'
    (tmp_path / "federation.toml").write_text(head, encoding="utf-8")
    row = f'[[member]]\nname = "b"\nkey = "{public_text(ADMIN.public)}"\n'
    row += f'[[member]]\nname = "a"\nkey = "{public_text(MEMBER.public)}"\n'
    (tmp_path / "members.toml").write_text(row, encoding="utf-8")
    assert judged(answer(), listed=read_listed([tmp_path], [])) == "ward"
    (tmp_path / "members.toml").write_text(row + "retired = true\n", encoding="utf-8")
    assert judged(answer(), listed=read_listed([tmp_path], [])) is Refusal.REMOVED
    (tmp_path / "members.toml").write_text("member = [1]", encoding="utf-8")
    with pytest.raises(UserError, match=r"members\.toml: member: must be a list of tables"):
        read_listed([tmp_path], [])
