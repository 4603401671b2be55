"""`p2pfl stats` and `check`, in one program with all nodes' folders."""

from __future__ import annotations

import json
import shutil

import pytest

from p2pfl.config import load_config, load_node, node_file
from p2pfl.features.stats import StatsCheck
from p2pfl.node import Inspected
from tests.stats.desks import POLICY, cells_of, made_ward, write_table
from tests.stats.stats_world import hospitals, pooled

THREE = ("north", "east", "south")
OPEN = POLICY | {"to": "*", "a_day": 100}


@pytest.fixture
def ward(tmp_path):
    return made_ward(tmp_path, THREE, OPEN)


def refused(outcome):
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome
    return outcome.err


def test_one_program_asks_all_sites_and_prints_a_table(p2pfl, ward):
    outcome = p2pfl("stats", ward, "--columns", "age,ill", "--by", "sex")
    assert outcome.code == 0, outcome.err
    ages = pooled(hospitals()[:3], "age")[pooled(hospitals()[:3], "sex") == 0]
    assert f"{ages.mean():.4g}" in outcome.out
    assert "north, east, south" in outcome.out
    assert "ill, sex = f" in outcome.out
    line = json.loads((ward / "east" / "state" / "stats.log").read_text(encoding="utf-8"))
    assert (line["asker"], line["columns"], line["answer"]) == ("", ["age", "ill"], "answered")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--columns: is missing; allowed: names of columns"),
        (("--columns", " , "), "--columns: no column"),
        (("--columns", "agee"), "--columns: the schema has no such column (found 'agee'); allowed: age, chol"),
        (("--columns", "age,age"), "--columns: this column appears twice"),
        (("--columns", "age", "--by", "chol"), "--by: not a categorical column of the schema (found 'chol')"),
        (("--columns", "sex", "--by", "sex"), "--by: is in --columns too"),
        (("--columns", "ward"), "north refuses: it does not offer ward; east refuses: it does not offer ward; south"),
        (("--answer",), "--node: is missing; allowed: the node that answers"),
        (("--node", "coast", "--columns", "age"), "no such node"),
    ],
)
def test_a_wrong_question_is_one_clear_error(p2pfl, ward, arguments, text):
    assert text in refused(p2pfl("stats", ward, *arguments))


def test_another_bound_for_the_same_table_is_refused(p2pfl, ward):
    """The bins would be others, and both histograms together could tell of few rows."""
    assert p2pfl("stats", ward, "--columns", "age").code == 0
    file = ward / "east" / "node.toml"
    before = file.read_text()
    file.write_text(before.replace("[stats]\n", "[stats]\nleast_rows = 12\n"))
    text = "least_rows was 10 in an earlier question about the same table"
    assert text in refused(p2pfl("stats", ward, "--columns", "age"))
    assert text in refused(p2pfl("stats", ward, "--columns", "age", "--by", "sex"))
    file.write_text(before)
    assert p2pfl("stats", ward, "--columns", "age", "--by", "sex").code == 0


def test_a_bound_under_which_nothing_was_shown_binds_nobody(p2pfl, tmp_path, ward):
    """Neither one that all rows are below, nor one that another site refuses."""
    file = ward / "east" / "node.toml"
    before = file.read_text()
    for bound, text in ((300, "nothing can be shown"), (12, "least_rows was 10 in an earlier question")):
        file.write_text(before.replace("[stats]\n", f"[stats]\nleast_rows = {bound}\n"))
        assert text in refused(p2pfl("stats", ward, "--columns", "age"))
        file.write_text(before)
        assert p2pfl("stats", ward, "--columns", "age").code == 0
        write_table(tmp_path, "north", list(cells_of(hospitals()[0])) * 2)
    file.write_text(before.replace("[stats]\n", "[stats]\nleast_rows = 1001\n"))
    assert "allowed: a whole number from 3 to 1000" in refused(p2pfl("stats", ward, "--columns", "age"))


def test_a_site_that_is_not_here_or_admits_only_some_is_named(p2pfl, tmp_path):
    ward = made_ward(tmp_path, THREE, OPEN, south=POLICY)
    text = refused(p2pfl("stats", ward, "--columns", "age"))
    assert "south refuses: it answers only members that it names" in text
    shutil.rmtree(ward / "east")
    assert "not on this machine: east; allowed: the folders of all nodes, or --node" in refused(
        p2pfl("stats", ward, "--columns", "age")
    )


def test_two_sites_and_other_tasks_have_no_statistics(p2pfl, tmp_path):
    two = made_ward(tmp_path, THREE[:2], OPEN)
    assert "of two, each would learn the other's part" in refused(p2pfl("stats", two, "--columns", "age"))
    p2pfl("new", "digits")
    assert "only for the task csv" in refused(p2pfl("stats", "digits", "--columns", "age"))


def findings_in(ward):
    """Return what `check` finds about statistics alone, without loading a model."""
    federation = load_config(ward)
    inspected = Inspected(federation, [])
    inspected.here = {
        member.index: load_node(node_file(federation, member.name), federation) for member in federation.members
    }
    StatsCheck().of_files(inspected)
    return inspected


def test_check_says_what_is_offered_to_whom_and_finds_mistakes(tmp_path):
    wrong = {"columns": ["age", "agee"], "to": ["north", "nroth"], "by": "chol"}
    inspected = findings_in(made_ward(tmp_path, THREE, OPEN, south=wrong, east=POLICY))
    text = "north offers age, chol, ill to all members; 2 more nodes too: [stats] in their node.toml"
    assert inspected.brief == {"statistics": text}
    assert [str(mistake).partition("node.toml: ")[2] for mistake in inspected.mistakes] == [
        "stats.to: not a member (found 'nroth'); allowed: north, east, south, or \"*\"",
        "stats.columns: the schema has no such column (found 'agee'); allowed: age, chol, sex, ward, ill",
        "stats.by: not a categorical column of the schema (found 'chol'); allowed: sex, ward, ill",
    ]


def test_where_nothing_is_offered_check_says_nothing(tmp_path):
    inspected = findings_in(made_ward(tmp_path, THREE, None))
    assert (inspected.brief, inspected.mistakes) == ({}, [])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("columns = 3", "stats.columns: impossible value (found 3)"),
        ('to = ["no such name!"]', "stats.to"),
        ("a_day = 0", "stats.a_day"),
        ("least_rows = 2", "stats.least_rows"),
        ('column = ["age"]', "stats.column: unknown key; did you mean 'columns'?"),
        ('columns = ["age", "age"]', "one of them appears twice"),
    ],
)
def test_a_mistake_in_the_table_is_an_error_that_names_it(p2pfl, ward, line, text):
    file = ward / "east" / "node.toml"
    head = file.read_text(encoding="utf-8").split("[stats]")[0]
    file.write_text(f"{head}[stats]\n{line}\n", encoding="utf-8")
    assert text in refused(p2pfl("stats", ward, "--columns", "age"))
