"""One site's decision: its `[stats]`, its log, and what it has answered before."""

from __future__ import annotations

import json
import os

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pfl.errors import StorageError
from p2pfl.features.stats import MOST_REASON, MOST_REFUSALS, hashed
from p2pfl.storage import storage_errors
from tests.stats.desks import POLICY, Clock, cells_of, desk_of, made_ward, write_table
from tests.stats.stats_world import hospitals

AGE = ("age",)


def log_of(place, site):
    text = (place / site / "state" / "stats.log").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("policy", "asker", "columns", "by", "refusal"),
    [
        (None, "north", AGE, None, "it offers no columns"),
        ({"columns": ["age"]}, "north", AGE, None, "north may not ask it"),
        ({"columns": ["age"], "to": "north"}, "west", AGE, None, "west may not ask it"),
        ({"columns": ["age"], "to": "north"}, "", AGE, None, "it answers only members that it names"),
        (POLICY, "north", ("age", "ward", "sex"), None, "it does not offer ward, sex"),
        (POLICY, "north", AGE, "ward", "it does not let groups be formed by ward, only by sex"),
        ({"columns": ["age"], "to": "*"}, "west", AGE, "sex", "it does not let groups be formed by sex"),
        ({"columns": ["weight"], "to": "*"}, "west", ("weight",), None, "its table cannot be read"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_in_words_and_logged(  # noqa: PLR0917 - a table of cases
    tmp_path, policy, asker, columns, by, refusal
):
    place = made_ward(tmp_path, east=policy)
    found = desk_of(place, "east").answer(asker, 1, columns, by)
    assert found.table is None
    assert refusal in found.refusal
    (line,) = log_of(place, "east")
    assert (line["asker"], line["columns"], line["by"], line["answer"]) == (asker, list(columns), by, "refused")
    assert line["reason"] == found.refusal


@pytest.mark.parametrize("policy", [{"columns": ["age"], "to": "*"}, {"columns": ["age"], "to": ["west", "north"]}])
def test_what_it_allows_is_answered(tmp_path, policy):
    desk = desk_of(made_ward(tmp_path, east=policy), "east")
    assert desk.answer("north", 1, AGE, None).table is not None
    assert desk.answer("east", 2, AGE, None).table is not None


def test_only_so_many_questions_a_day_are_answered_to_each_also_after_a_restart(tmp_path):
    clock = Clock()
    place = made_ward(tmp_path, policy={"columns": ["age"], "to": "*", "a_day": 2})
    for serial in (1, 2):
        assert not desk_of(place, "east", clock).answer("north", serial, AGE, None).refusal
    clock.pass_by(hours=23)
    again = desk_of(place, "east", clock)
    assert again.answer("north", 3, AGE, None).refusal.startswith("it has answered 2 questions within a day")
    assert not again.answer("west", 1, AGE, None).refusal
    clock.pass_by(hours=2)
    assert not again.answer("north", 4, AGE, None).refusal


def test_a_serial_never_repeats_and_a_lost_log_does_not_bring_one_back(tmp_path):
    clock = Clock()
    place = made_ward(tmp_path)
    desk = desk_of(place, "east", clock)
    first = desk.next_serial()
    desk.answer("east", first, AGE, None)
    assert desk.next_serial() == first + 1
    desk.answer("north", 7, AGE, None)
    assert [desk.is_new("north", serial) for serial in (6, 7, 8)] == [False, False, True]
    assert not desk_of(place, "east", clock).is_new("north", 7)
    (place / "east" / "state" / "stats.log").unlink()
    clock.pass_by(seconds=1)
    assert desk_of(place, "east", clock).next_serial() == first + 1


def test_a_member_that_asks_in_vain_again_and_again_does_not_fill_the_log(tmp_path):
    desk = desk_of(made_ward(tmp_path), "east", Clock())
    for serial in range(1, MOST_REFUSALS + 1):
        assert desk.is_new("west", serial)
        desk.answer("west", serial, AGE, None)
    assert not desk.is_new("west", MOST_REFUSALS + 1)
    assert desk.is_new("north", 1)


def test_a_refused_question_of_many_long_names_is_short_in_the_log(tmp_path):
    place = made_ward(tmp_path)
    names = tuple(f"{number:02}" + "\x00" * 198 for number in range(64))
    found = desk_of(place, "east").answer("north", 1, names, None)
    (line,) = log_of(place, "east")
    assert line["columns"] == [names[0], "..."]
    assert line["reason"] == found.refusal
    assert len(found.refusal) == MOST_REASON
    assert (place / "east" / "state" / "stats.log").stat().st_size < 4000


def test_more_answers_a_day_than_refusals_are_counted_too(tmp_path):
    place = made_ward(tmp_path, policy={"columns": ["age"], "to": "*", "a_day": MOST_REFUSALS + 2})
    desk = desk_of(place, "east", Clock())
    refusals = [desk.answer("north", serial, AGE, None).refusal for serial in range(1, MOST_REFUSALS + 4)]
    assert [bool(refusal) for refusal in refusals] == [False] * (MOST_REFUSALS + 2) + [True]


def test_nothing_is_answered_that_cannot_be_logged(tmp_path, monkeypatch):
    place = made_ward(tmp_path)
    desk = desk_of(place, "east")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError), storage_errors(place):
        desk.answer("north", 1, AGE, None)


def test_a_line_that_a_crash_cut_off_was_never_answered_and_a_damaged_one_is_an_error(tmp_path):
    place = made_ward(tmp_path)
    desk_of(place, "east").answer("north", 1, AGE, None)
    file = place / "east" / "state" / "stats.log"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    assert desk_of(place, "east").is_new("north", 2)
    assert file.read_bytes() == whole
    file.write_bytes(b"oh\n" + whole)
    with pytest.raises(StorageError, match=r"stats\.log:1 is damaged"):
        desk_of(place, "east")


def test_what_a_site_keeps_has_no_cells_of_its_table(tmp_path):
    place = made_ward(tmp_path)
    write_table(tmp_path, "east", [[20, f"{200 + row}.4375", "f", "a", "no"] for row in range(40)])
    assert desk_of(place, "east").answer("north", 1, ("chol",), None).table is not None
    kept = b"".join(file.read_bytes() for file in (place / "east" / "state").iterdir())
    assert kept
    assert b".4375" not in kept


def changed(tmp_path, change):
    """Return whether the same question is refused after a change of east's rows."""
    place, rows = made_ward(tmp_path), list(cells_of(hospitals()[1]))
    clock = Clock()
    assert not desk_of(place, "east", clock).answer("north", 1, ("age", "chol"), "sex").refusal
    write_table(tmp_path, "east", change(rows))
    found = desk_of(place, "east", clock).answer("north", 2, ("age", "chol"), "sex")
    assert "has changed since an earlier question by fewer than 10 rows" in found.refusal or not found.refusal
    return bool(found.refusal)


def row(place, sex, chol=200):
    return [20 + place, chol, sex, "a", "no"]


def updated(rows, place=1, by=0.5):
    """Another chol, or another of these columns, in all rows that have one."""
    return [[*one[:place], one[place] if one[place] == "" else one[place] + by, *one[place + 1 :]] for one in rows]


CHANGES = {
    "same": (lambda rows: rows, False),
    "order": (lambda rows: rows[::-1], False),
    "one less": (lambda rows: rows[1:], True),
    "one more": (lambda rows: [*rows, row(0, "f")], True),
    "one changed": (lambda rows: [row(0, "f"), *rows[1:]], True),
    "ten more": (lambda rows: [*rows, *(row(place, "f") for place in range(10))], False),
    "ten and another": (lambda rows: [*rows, *(row(place, "f") for place in range(10)), row(10, "m")], True),
    "twin": (lambda rows: [*rows, rows[0]], True),
    "all updated": (updated, False),
    "all updated, one more": (lambda rows: [*updated(rows), row(0, "f")], True),
    "all updated in both columns, one more": (lambda rows: [*updated(updated(rows), 0, 1), row(0, "f")], True),
    "all updated, one changed": (lambda rows: updated([[99, *rows[0][1:]], *rows[1:]]), True),
    "all updated, ten more": (lambda rows: [*updated(rows), *(row(place, "f") for place in range(10))], False),
    "ten more, of nine no chol": (
        lambda rows: [*rows, *(row(place, "f", "") for place in range(9)), row(9, "f")],
        True,
    ),
    "eleven more, of one no chol": (lambda rows: [*rows, row(0, "f", ""), *(row(at, "f") for at in range(10))], False),
}


@pytest.mark.parametrize(("change", "is_refused"), CHANGES.values(), ids=CHANGES)
def test_a_table_that_has_changed_by_a_few_rows_is_not_answered_about(tmp_path, change, is_refused):
    assert changed(tmp_path, change) == is_refused


@example(comes=1, lacks=0, changes={"age", "chol"}, by=None)
@given(
    comes=st.integers(0, 30),
    lacks=st.integers(0, 30),
    changes=st.sets(st.sampled_from(["age", "chol", "ward", "ill"])),
    by=st.sampled_from([None, "sex"]),
)
def test_whatever_else_has_changed_no_few_rows_and_no_few_values_are_told(comes, lacks, changes, by):
    before = hospitals()[1]
    new = {name: np.ones(comes) for name in before} | {"chol": np.where(np.arange(comes) < lacks, np.nan, 200.0)}
    after = {name: np.append(column + 1000 * (name in changes), new[name]) for name, column in before.items()}
    one, other = (hashed(columns, by, b"key", ("age", "chol")) for columns in (before, after))
    assert other.is_near(one, 10) == (0 < comes < 10 or 0 < comes - lacks < 10)


def test_each_column_that_was_asked_about_is_kept_and_a_file_of_the_version_before_is_read(tmp_path):
    place, rows = made_ward(tmp_path), list(cells_of(hospitals()[1]))
    file = place / "east" / "state" / "stats.rows"

    def refused(serial, column):
        return bool(desk_of(place, "east", Clock()).answer("north", serial, (column,), None).refusal)

    assert not refused(1, "age")
    file.write_bytes(msgspec.msgpack.encode([table[:2] for table in msgspec.msgpack.decode(file.read_bytes())]))
    assert not refused(2, "age")
    assert not refused(3, "chol")
    assert len(msgspec.msgpack.decode(file.read_bytes())) == 1
    elsewhere = [[*one[:3], {"a": "b", "b": "a"}[one[3]], one[4]] for one in rows]
    write_table(tmp_path, "east", [[99, *elsewhere[0][1:]], *elsewhere[1:]])
    assert refused(4, "age")
    assert not refused(5, "chol")


def test_numbers_that_cannot_be_summed_are_refused(tmp_path):
    place = made_ward(tmp_path)
    write_table(tmp_path, "east", [[1e80, 200, "f", "a", "no"]] * 12)
    assert desk_of(place, "east").answer("north", 1, AGE, None).refusal == "a number in age is too large to be summed"


def test_under_privacy_nothing_is_answered(tmp_path):
    place = made_ward(tmp_path)
    file = place / "federation.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("[gossip]", "[privacy]\nepsilon = 8\ndelta = 1e-4\n\n[gossip]"), encoding="utf-8")
    assert (
        desk_of(place, "east").answer("north", 1, AGE, None).refusal.startswith("under [privacy] nothing is answered")
    )


def test_why_a_table_cannot_be_read_is_an_error_in_the_site_s_own_log_alone(tmp_path, caplog):
    place = made_ward(tmp_path)
    write_table(tmp_path, "east", [])
    found = desk_of(place, "east").answer("north", 1, AGE, None)
    assert found.refusal == "its table cannot be read: its log says why"
    assert [(line.levelname, "east.csv" in line.message) for line in caplog.records] == [("ERROR", True)]


def test_a_question_about_too_many_categories_in_groups_is_refused(tmp_path, monkeypatch):
    """Which counts are to be hidden takes a time and a memory that grow with the square of their number."""
    monkeypatch.setattr("p2pfl.features.stats.query_policy.MOST_CELLS", 11)
    desk = desk_of(made_ward(tmp_path), "east")
    assert desk.answer("north", 1, ("age", "ill"), None).table is not None
    found = desk.answer("north", 2, ("age", "ill"), "sex")
    assert found.refusal == "categories times groups are more than 11"
