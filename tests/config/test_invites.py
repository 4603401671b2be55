"""The lines that people carry: short, whole or refused, and good for what they were made for."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from charter_kit import key_of, ward
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.config import (
    INVITE,
    REQUEST,
    JoinRequest,
    _check,
    code_digest,
    federation_id,
    invite_of,
    read_invite,
    read_request,
    request_line,
    require_current,
    to_text,
)
from p2pfl.errors import UserError
from p2pfl.features.members import require_same

TOKEN = bytes(range(16))
NEWCOMER = key_of(77)


def make_request(**changes):
    told = {"name": "pi4", "key": NEWCOMER.public, "address": "10.0.0.4:8470", "token": TOKEN}
    return JoinRequest(federation=federation_id(ward()), **(told | changes))


INVITED = invite_of(ward(40), "pi99", TOKEN)
LINE = INVITED.line()
ANSWER = request_line(make_request(), NEWCOMER.sign)


def test_an_invite_is_short_and_says_all_that_a_new_machine_needs():
    assert len(LINE) < 1000
    assert LINE.startswith("p2pfl:")
    found = read_invite(f"  {LINE}\n")
    assert found == INVITED
    assert found.admin == ward().admin
    assert found.federation == federation_id(ward(40))
    assert [contact.address for contact in found.contacts] == [f"10.0.0.{i}:8470" for i in range(3)]


def test_an_invite_holds_until_its_end():
    ends = msgspec.structs.replace(INVITED, until=1000)
    assert read_invite(ends.line()).until == 1000
    require_current(ends, 1000.0)
    with pytest.raises(UserError, match="the invite ended"):
        require_current(ends, 1001.0)


def test_an_invite_that_names_no_end_is_of_another_version():
    raw = msgspec.msgpack.encode(msgspec.to_builtins(INVITED, builtin_types=(bytes,))[:-2])
    with pytest.raises(UserError, match="a line of another version"):
        read_invite(INVITE + to_text(_check(INVITE, raw) + raw))


def test_a_request_says_who_asks():
    assert read_request(ANSWER) == make_request()
    assert len(ANSWER) < 500


@given(st.integers(0, len(LINE) - 1), st.integers(0, len(ANSWER) - 1))
def test_a_line_that_was_cut_is_refused(invite_end, request_end):
    with pytest.raises(UserError):
        read_invite(LINE[:invite_end])
    with pytest.raises(UserError):
        read_request(ANSWER[:request_end])


@given(st.integers(0, len(ANSWER) - 1), st.characters(codec="ascii"))
def test_a_line_that_was_mistyped_is_refused(place, letter):
    for line, read in ((LINE, read_invite), (ANSWER, read_request)):
        here = place % len(line)
        if letter != line[here] and line[:here] + letter + line[here + 1 :] != line:
            wrong = line[:here] + letter + line[here + 1 :]
            with pytest.raises(UserError):
                read(wrong)


@pytest.mark.parametrize("text", ["", "p2pfl:", INVITE * 3, ANSWER, "p2pfl:" + "A" * 5000, "p2pfl:????"])
def test_anything_else_is_no_invite(text):
    with pytest.raises(UserError):
        read_invite(text)


@pytest.mark.parametrize("text", ["", REQUEST, LINE, REQUEST + "AAAA"])
def test_anything_else_is_no_request(text):
    with pytest.raises(UserError):
        read_request(text)


def test_nobody_can_ask_for_a_key_that_is_not_its_own():
    with pytest.raises(UserError, match="not signed by the key"):
        read_request(request_line(make_request(key=key_of(3).public), NEWCOMER.sign))


@pytest.mark.parametrize(("key", "value"), [("name", "../up"), ("name", "a\x1b[2J"), ("address", "nowhere")])
def test_a_signed_request_with_an_impossible_value_is_refused(key, value):
    with pytest.raises(UserError):
        read_request(request_line(make_request(**{key: value}), NEWCOMER.sign))


def test_a_name_that_is_taken_is_invited_as_a_replacement_alone():
    with pytest.raises(UserError, match="taken"):
        invite_of(ward(), "pi1", TOKEN)
    with pytest.raises(UserError, match="no such member"):
        invite_of(ward(), "pi9", TOKEN, replacing=True)
    assert len(invite_of(ward(), "pi1", TOKEN, replacing=True).contacts) == 2


def test_other_files_than_those_of_the_invite_are_found(tmp_path):
    (tmp_path / "task.py").write_text("task = 1\n", encoding="utf-8")
    here = replace(ward(), path=tmp_path / "federation.toml", task=replace(ward().task, name="task.py:task"))
    invite = invite_of(here, "pi4", TOKEN)
    require_same(here, invite)
    assert code_digest(here) == invite.code
    (tmp_path / "task.py").write_text("task = 2\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"not the code .*: task\.py"):
        require_same(here, invite)
    other = replace(here, training=replace(here.training, learning_rate=0.5))
    with pytest.raises(UserError, match="not the federation file"):
        require_same(other, invite)
