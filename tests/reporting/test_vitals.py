"""A row of vitals: small, signed for its purpose, and nothing but what its schema says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.crypto.identity import SIGNATURE_BYTES, Identity
from p2pfl.errors import PeerFault
from p2pfl.learn import LOSS, Measure
from p2pfl.reporting import (
    MOST_ROW_BYTES,
    Vitals,
    bitmap,
    figure,
    members_of,
    prove,
    read,
    scores,
    shortened,
    sign,
    word,
)

KEY, OTHER_KEY = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
REALM, OTHER_REALM = bytes(32), bytes([1]) * 32
TYPICAL = Vitals(
    member=3,
    counter=5000,
    life=2**52,
    phase="training",
    rounds=4000,
    accuracy=0.9667,
    loss=0.1234,
    distance=0.01234,
    staleness=0.5,
    bytes_sent=123_456_789,
    bytes_received=123_456_789,
    exchanges=12_000,
    live=bitmap([2, 4]),
    alarms=3,
    standing=("neighbor-lost",),
    charter=2,
    software="0.1.0",
)


def test_what_was_signed_is_read_and_proven():
    raw = sign(TYPICAL, KEY, REALM)
    assert read(raw) == TYPICAL
    prove(raw, KEY.public, REALM)
    assert len(raw) <= 220


@pytest.mark.parametrize(
    ("key", "realm"), [(OTHER_KEY.public, REALM), (KEY.public, OTHER_REALM)], ids=["another key", "another federation"]
)
def test_a_signature_holds_for_one_member_of_one_federation(key, realm):
    with pytest.raises(PeerFault, match="not signed by its member"):
        prove(sign(TYPICAL, KEY, REALM), key, realm)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_is_found(place, change):
    raw = bytearray(sign(TYPICAL, KEY, REALM))
    raw[place % len(raw)] ^= change
    with pytest.raises(PeerFault):
        prove(bytes(raw), KEY.public, REALM)


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": float("nan")},
        {"loss": float("inf")},
        {"rounds": -1},
        {"rounds": 2**53},
        {"bytes_sent": 2**53},
        {"period_s": -1},
        {"member": -1},
        {"phase": "<script>"},
        {"phase": "x" * 33},
        {"standing": ("a",) * 7},
        {"live": bytes(129)},
        {"software": "1\n2"},
    ],
)
def test_what_no_page_should_show_is_refused_on_both_sides(change):
    bad = msgspec.structs.replace(TYPICAL, **change)
    with pytest.raises(ValueError, match="cannot be encoded"):
        sign(bad, KEY, REALM)
    with pytest.raises(PeerFault):
        read(msgspec.msgpack.encode(bad) + bytes(SIGNATURE_BYTES))


def test_the_longest_row_still_travels():
    longest = msgspec.structs.replace(
        TYPICAL, live=bytes([255]) * 64, standing=("nothing-exchanged", "too-few-neighbors", "federation-differs")
    )
    assert len(sign(longest, KEY, REALM)) <= MOST_ROW_BYTES


COUNTS = ("counter", "rounds", "bytes_sent", "bytes_received", "exchanges", "alarms", "charter")
WIDEST = dict.fromkeys(COUNTS, 2**53 - 1)


@pytest.mark.parametrize("live", [0, 16, 128])
@pytest.mark.parametrize("words", [0, 1, 6])
def test_what_is_too_long_for_a_row_is_told_without_some_alarms(live, words):
    said = {"phase": "p" * 32, "software": "s" * 32, "live": bytes([255]) * live, "standing": ("a" * 32,) * words}
    full = msgspec.structs.replace(TYPICAL, **said, **WIDEST)
    told = read(sign(shortened(full), KEY, REALM))
    assert msgspec.structs.replace(told, standing=full.standing) == full
    assert len(told.standing) == min(words, {0: 4, 16: 3, 128: 0}[live])


def test_what_fits_is_told_whole():
    assert shortened(TYPICAL) == TYPICAL


def test_fields_of_a_later_version_are_left_out():
    row = msgspec.msgpack.encode([*msgspec.structs.astuple(TYPICAL), "more", 7])
    raw = row + KEY.sign(REALM + row)
    prove(raw, KEY.public, REALM)
    assert read(raw) == TYPICAL


@given(st.text())
def test_any_text_becomes_a_word(text):
    assert read(sign(msgspec.structs.replace(TYPICAL, phase=word(text)), KEY, REALM)).phase == word(text)


def test_figures_have_four_digits_or_are_not_known():
    assert [figure(value) for value in (0.123456, None, float("nan"), float("inf"))] == [0.1235, None, None, None]


@given(st.sets(st.integers(0, 1000)))
def test_a_bitmap_names_its_members(members):
    assert members_of(bitmap(members)) == sorted(members)


RMSE, R2 = Measure("rmse", "RMSE", higher_is_better=False), Measure("r2", "R²", higher_is_better=True)


def test_the_tasks_own_metrics_and_the_test_loss_travel_in_an_order_that_all_members_know():
    said = msgspec.structs.replace(TYPICAL, metrics=(0.5, 0.9, 2.5))
    found = scores(read(sign(said, KEY, REALM)), [RMSE, R2, LOSS])
    assert found == {"rmse": 2.5, "r2": 0.9, "loss": 0.5}
    assert next(iter(found)) == "rmse"


def test_a_row_of_a_member_that_tells_no_metrics_is_read():
    old = msgspec.msgpack.encode(msgspec.structs.astuple(TYPICAL)[:-2])
    assert read(old + bytes(SIGNATURE_BYTES)) == TYPICAL
    assert scores(TYPICAL, [RMSE, LOSS]) == {"rmse": None, "loss": None}
    assert scores(TYPICAL, []) == {"accuracy": TYPICAL.accuracy}
    assert scores(msgspec.structs.replace(TYPICAL, accuracy=None), []) == {"loss": TYPICAL.loss}


def test_what_is_spent_of_a_budget_travels_and_rows_without_one_are_as_they_were_before_there_was_any():
    for said in ({"epsilon": 2.31}, {"budget": 9, "begun": 1, "paid": 40}):
        private = msgspec.structs.replace(TYPICAL, **said)
        assert read(sign(private, KEY, REALM)) == private
    fields = msgspec.msgpack.decode(sign(TYPICAL, KEY, REALM)[:-SIGNATURE_BYTES])
    assert len(fields) == TYPICAL.__struct_fields__.index("epsilon")
