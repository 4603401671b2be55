"""The file members.toml says what was signed; a change by hand is one clear error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from charter_kit import SECOND_ADMIN, STRANGER, added, after, first, key_of, sign, ward

from p2pfl.config import MOST_MEMBERS, Member, Mistakes, members_text, read_members_file, successor, without_member
from p2pfl.crypto.identity import public_text
from p2pfl.errors import UserError


@pytest.fixture
def read(tmp_path):
    """The charter in a text, and the mistakes found there."""

    def read(text, federation=None):
        path = tmp_path / "members.toml"
        path.write_text(text, encoding="utf-8")
        mistakes = Mistakes(path)
        charter = read_members_file(path, federation or ward(), mistakes)
        return charter, [(found.key, str(found)) for found in mistakes.errors]

    return read


WARD = ward()
CHARTERS = [
    first(WARD),
    added(after(WARD, first(WARD)), 3),
    sign(without_member(after(WARD, first(WARD)), "pi1")),
    sign(replace(successor(WARD), rounds=None)),
    sign(successor(WARD), SECOND_ADMIN),
]


@pytest.mark.parametrize("charter", CHARTERS)
def test_what_is_written_is_what_is_read(charter, read):
    assert read(members_text(charter, "ward")) == (charter, [])


def test_a_schedule_is_written_too(read):
    four = ward(4, topology="base:k=1")
    charter = first(four)
    assert charter.schedule
    assert read(members_text(charter, "ward"), four) == (charter, [])


TEXT = members_text(CHARTERS[1], "ward")
CHANGES = [
    ("version = 2", "version = 3", "signature", "changed after it was signed"),
    ("version = 2", "version = 0", "version", "from 1"),
    ("version = 2", "version = 2\ncolour = 1", "colour", "unknown key"),
    ('name = "pi1"', 'name = "pi0"', "member[1].name", "member[0] has that name"),
    ('"10.0.0.1:8470"', '"10.0.0.1"', "member[1].address", "host:port"),
    (public_text(key_of(1).public), public_text(key_of(0).public), "member[1].key", "have the same key"),
    (public_text(key_of(1).public), "B" * 43, "member[1].key", "pi1: not a valid key: it looks mistyped"),
    ("[0, 1]", "[0, 9]", "edges", "not an edge between two members"),
    ("[0, 1]", "[0, 1.5]", "edges", "pairs"),
    ('signature = "', 'signature = "A', "signature", "64 bytes"),
    ('address = "10.0.0.3:8470"', "retired = 1", "member[3].retired", "true or false"),
]


@pytest.mark.parametrize(("right", "wrong", "key", "reason"), CHANGES)
def test_a_change_by_hand_is_named(right, wrong, key, reason, read):
    assert right in TEXT
    charter, found = read(TEXT.replace(right, wrong, 1))
    assert charter is None
    assert key in [one for one, _ in found]
    assert any(reason in text for _, text in found), found


def test_a_file_of_another_signer_or_federation_is_refused(read):
    assert "federation.admin" in read(members_text(sign(successor(WARD), STRANGER), "ward"))[1][0][1]
    assert "another federation" in read(members_text(first(ward(name="other")), "other"))[1][0][1]


def test_a_federation_that_is_full_takes_nobody_more(monkeypatch):
    monkeypatch.setattr("p2pfl.config.writing.MOST_MEMBERS", 4)
    full = after(WARD, added(after(WARD, first(WARD)), 3))
    with pytest.raises(UserError, match="too many members") as caught:
        added(full, 4)
    assert caught.value.allowed == "at most 4"


@pytest.mark.long
def test_ten_thousand_members_fit_and_many_more_edges_do_not(read):
    """A file of the largest charter is still one that is read."""
    charter = first(WARD)
    more = [
        Member(
            index=index, name=f"pi{index}", key=key_of(index).public, address=f"10.0.{index >> 8}.{index & 255}:8470"
        )
        for index in range(3, MOST_MEMBERS)
    ]
    ring = tuple((index, index + 1) for index in range(MOST_MEMBERS - 1))
    large = sign(replace(charter, members=(*charter.members, *more), edges=ring))
    assert read(members_text(large, "ward")) == (large, [])
    dense = tuple((i, j) for i in range(600) for j in range(i + 1, 600))
    with pytest.raises(UserError, match="too many members or edges"):
        members_text(sign(replace(large, edges=dense)), "ward")
