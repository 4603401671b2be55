"""A charter says what its signer signed, for one federation, in one way to write it; everything else is refused."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import pytest
from charter_kit import ADMIN, SECOND_ADMIN, STRANGER, added, after, first, key_of, sign, ward
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.config import (
    SIGNED,
    CharterError,
    Member,
    checked,
    compacted,
    contradiction,
    edition_of,
    federation_id,
    flaws,
    keys,
    realm_of,
    signed,
    successor,
    unpack,
    with_member,
    with_replacement,
    with_settings,
    without_member,
)
from p2pfl.errors import UserError
from p2pfl.limits import MOST_CHARTER_BYTES

WARD = ward()
CHARTER = first(WARD)
RAW = CHARTER.packed()


def opened(raw, federation=WARD):
    return unpack(raw, admin=federation.admin, realm=realm_of(federation))


def test_what_was_signed_is_what_is_read():
    assert opened(RAW) == CHARTER
    assert opened(RAW).packed() == RAW
    assert edition_of(RAW) == CHARTER.edition


@pytest.mark.parametrize("admin", [ADMIN, SECOND_ADMIN])
def test_any_admin_key_may_sign_and_both_mean_the_same_charter(admin):
    again = sign(successor(WARD), admin)
    assert opened(again.packed()).edition == CHARTER.edition


@given(st.integers(0, len(RAW) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused(place, flip):
    changed = RAW[:place] + bytes([RAW[place] ^ flip]) + RAW[place + 1 :]
    with pytest.raises(CharterError):
        opened(changed)


@given(st.integers(0, len(RAW) - 1))
def test_a_cut_charter_is_refused(size):
    with pytest.raises(CharterError):
        opened(RAW[:size])


def test_a_charter_of_somebody_else_or_for_another_federation_is_refused():
    with pytest.raises(CharterError, match=r"not one of federation\.admin"):
        opened(sign(successor(WARD), STRANGER).packed())
    with pytest.raises(CharterError, match="another federation"):
        opened(first(ward(seed=1)).packed())
    with pytest.raises(CharterError, match="another federation"):
        opened(first(ward(name="other")).packed())


def test_a_signature_over_something_else_is_none():
    """What an admin signs in a handshake begins otherwise: neither fits the other."""
    with pytest.raises(CharterError, match="signature"):
        opened(signed(CHARTER, ADMIN.public, lambda statement: ADMIN.sign(statement[1:])).packed())


def test_another_spelling_of_the_same_is_refused_even_if_an_admin_has_signed_it():
    """Else one charter would have several digests."""
    statement = CHARTER.statement.replace(b"\x99\x01", b"\x99\xcc\x01", 1)
    assert statement != CHARTER.statement
    signature = ADMIN.sign(SIGNED + blake2b(statement, digest_size=32, person=b"p2pfl-charter").digest())
    with pytest.raises(CharterError, match="canonical"):
        opened(ADMIN.public + signature + statement)


def test_too_large_a_charter_is_refused_before_it_is_read():
    with pytest.raises(CharterError, match=str(MOST_CHARTER_BYTES)):
        opened(RAW + bytes(MOST_CHARTER_BYTES))


MEMBERS = CHARTER.members
FLAWS = {
    "member[1].name": replace(CHARTER, members=(MEMBERS[0], replace(MEMBERS[1], name="pi0"), MEMBERS[2])),
    "member[2].key": replace(CHARTER, members=(*MEMBERS[:2], replace(MEMBERS[2], key=MEMBERS[0].key))),
    "member[0].address": replace(CHARTER, members=(replace(MEMBERS[0], address="no port"), *MEMBERS[1:])),
    "member[0].name": replace(CHARTER, members=(replace(MEMBERS[0], name="../pi0"), *MEMBERS[1:])),
    "member[0].key": replace(CHARTER, members=(replace(MEMBERS[0], key=bytes(32)), *MEMBERS[1:])),
    "member": replace(CHARTER, members=tuple(replace(one, retired=True) for one in MEMBERS), edges=()),
    "edges": replace(CHARTER, edges=((0, 1), (0, 3))),
    "edges ": replace(CHARTER, edges=((1, 0),)),
    "edges  ": replace(CHARTER, edges=((0, 2), (0, 1))),
    "edges   ": replace(CHARTER, members=(replace(MEMBERS[0], retired=True), *MEMBERS[1:])),
    "schedule[0]": replace(CHARTER, edges=((0, 1),), schedule=(((1, 2),), ((0, 1),))),
    "previous": replace(CHARTER, previous=b"short"),
    "topology": replace(CHARTER, topology="ring\x1b[2J"),
}


@pytest.mark.parametrize(("key", "charter"), FLAWS.items(), ids=[key.strip() for key in FLAWS])
def test_what_contradicts_itself_is_refused_even_if_an_admin_has_signed_it(key, charter):
    assert key.strip() in [flaw.key for flaw in flaws(charter)]
    with pytest.raises(CharterError):
        opened(sign(charter).packed())


def test_a_removed_member_leaves_its_name_to_others_and_its_key_to_nobody():
    federation = after(WARD, CHARTER)
    federation = after(federation, sign(without_member(federation, "pi1")))
    assert [member.name for member in federation.present] == ["pi0", "pi2"]
    back = with_member(federation, name="pi1", key=key_of(9).public, address=None)
    assert back.members[3] == Member(index=3, name="pi1", key=key_of(9).public, address=None)
    with pytest.raises(UserError, match="does not come back"):
        with_member(federation, name="pi7", key=key_of(1).public, address=None)


# --- what may follow ----------------------------------------------------------------------------------------------


def test_indices_of_the_files_own_members_are_theirs_for_ever():
    swapped = tuple(replace(MEMBERS[1 - index], index=index) for index in (0, 1))
    charter = replace(CHARTER, version=7, members=(*swapped, MEMBERS[2]))
    assert "member[0]" in contradiction(WARD, sign(charter))
    with pytest.raises(CharterError, match=r"member\[0\]"):
        checked(sign(charter).packed(), WARD)
    shorter = replace(CHARTER, members=MEMBERS[:2], edges=((0, 1),))
    assert "member[2]" in contradiction(WARD, sign(shorter))


def test_the_next_charter_keeps_every_row_and_takes_nobody_back():
    four = after(WARD, CHARTER, added(after(WARD, CHARTER), 3))
    five = added(four, 4)
    assert contradiction(four, five) is None
    other = replace(five, members=(*five.members[:3], replace(five.members[3], key=key_of(8).public), five.members[4]))
    assert "another member" in contradiction(four, sign(other))
    gone = after(four, sign(without_member(four, "pi3")))
    back = replace(successor(gone), members=four.members, edges=four.edges)
    assert "removed" in contradiction(gone, sign(back))


def test_one_that_skips_a_version_is_only_held_to_the_file():
    """Where one version was signed twice, the winner may have given an index to somebody else."""
    three = after(WARD, CHARTER)
    mine, theirs = after(three, added(three, 3)), after(three, added(three, 4))
    later = added(theirs, 5)
    assert contradiction(mine, later) is None
    assert contradiction(mine, added(mine, 5)) is None


def test_the_order_is_version_then_digest():
    three = after(WARD, CHARTER)
    mine, theirs = added(three, 3), added(three, 4)
    assert mine.version == theirs.version == 2
    assert (mine.edition < theirs.edition) == (mine.digest < theirs.digest)
    assert max(mine.edition, theirs.edition) < added(after(three, mine), 5).edition


# --- what a federation becomes --------------------------------------------------------------------------------------


def test_an_amended_federation_has_the_charters_members_graph_and_rounds():
    charter = sign(with_settings(after(WARD, CHARTER), rounds=99, topology="path", addresses=[("pi1", "10.9.9.9:1")]))
    federation = after(WARD, charter)
    assert (federation.edges, federation.topology, federation.training.rounds) == (((0, 1), (1, 2)), "path", 99)
    assert federation.member("pi1").address == "10.9.9.9:1"
    assert federation.edition == charter.edition
    assert opened(federation.charter) == charter


def test_a_replacement_has_the_edges_of_the_one_that_it_replaces():
    five = ward(5, topology="path")
    charter = with_replacement(five, name="pi1", key=key_of(20).public, address=None)
    assert charter.edges == ((0, 5), (2, 3), (2, 5), (3, 4))
    assert charter.members[1].retired
    assert charter.members[5] == Member(index=5, name="pi1", key=key_of(20).public, address="10.0.0.1:8470")
    assert next(flaws(charter), None) is None


def test_a_schedule_moves_with_its_members():
    four = ward(4, topology="base:k=1")
    assert four.schedule
    charter = with_replacement(four, name="pi0", key=key_of(20).public, address=None)
    assert next(flaws(charter), None) is None
    assert len(charter.schedule) == len(four.schedule)
    assert next(flaws(added(after(four, sign(charter)), 6)), None) is None


def test_compacted_counts_only_those_who_are_there():
    federation = after(WARD, sign(without_member(after(WARD, CHARTER), "pi1")))
    small = compacted(federation)
    assert [(member.index, member.name) for member in small.members] == [(0, "pi0"), (1, "pi2")]
    assert (federation.edges, small.edges) == (((0, 2),), ((0, 1),))
    assert compacted(WARD) is WARD


# --- what two nodes must agree on -----------------------------------------------------------------------------------


def test_what_a_charter_may_change_does_not_count_and_the_admins_do():
    federation = after(WARD, added(after(WARD, CHARTER), 3))
    other = after(federation, sign(with_settings(federation, rounds=7, topology="path")))
    assert federation_id(WARD) == federation_id(federation) == federation_id(other)
    assert keys(WARD) == keys(other)
    assert federation_id(replace(WARD, admin=WARD.admin[:1])) != federation_id(WARD)
    assert federation_id(replace(WARD, admin=WARD.admin[::-1])) == federation_id(WARD)


def test_without_admin_keys_members_graph_and_rounds_count():
    plain = replace(WARD, admin=())
    names = {name for name, _ in keys(plain)}
    assert {"node", "edges", "training.rounds"} <= names
    assert "federation.admin" not in names
