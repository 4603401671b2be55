"""What shared noise cannot do is one clear error, and `p2pfl check` says what it costs and who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from p2pfl import Federation, UserError
from p2pfl.cli import cli
from p2pfl.config import Mistakes, PrivacyConfig, federation_mistakes, load_config, refuse_broken_promises
from p2pfl.core import Facts, Phase, SessionOpened
from p2pfl.features.sums import SummedRounds
from p2pfl.learn.privacy import SPARE, planned_rounds
from sim import scene_of, simulate

SHARED = {"epsilon": 3, "noise": "shared", "delta": 1e-5}

WRONG = [
    ({"epsilon": None}, {}, "privacy.epsilon", "is missing"),
    ({"delta": None}, {}, "privacy.delta", "is missing"),
    ({}, {"nodes": 2}, "nodes", "of the sum of two"),
    ({"least": 2}, {}, "privacy.least", "3"),
    ({"least": 9}, {}, "privacy.least", "3 to 8"),
    ({"colluders": 0}, {}, "privacy.colluders", "1"),
    ({"least": 5, "colluders": 4}, {}, "privacy.colluders", "1 to 3"),
    ({"colluders": 7}, {}, "privacy.colluders", "1 to 6"),
    ({"rate": 0}, {}, "privacy.rate", "above 0"),
    ({"rate": 1.5}, {}, "privacy.rate", "up to 1"),
    ({"noise": "share"}, {}, "privacy.noise", 'or "shared"'),
    ({"noise": None, "rate": 0.2}, {}, "privacy.rate", 'noise = "shared"'),
    ({"noise": None, "least": 3}, {}, "privacy.least", 'noise = "shared"'),
    ({"noise": None, "colluders": 2}, {}, "privacy.colluders", 'noise = "shared"'),
    ({"noise": 1.0, "epsilon": None, "colluders": 2}, {}, "privacy.colluders", 'noise = "shared"'),
    ({}, {"rule": "trimmed-mean:b=1"}, "gossip.rule", "mean"),
    ({}, {"method": "kgt"}, "training.method", "plain"),
    ({}, {"share": ["0.*"]}, "gossip.share", "own"),
    ({"rounds": 9}, {"rounds": None, "time_s": 60}, "training.time_s", "training.rounds"),
    ({"test_set": "public"}, {"stop": "no improvement of accuracy in 9 rounds"}, "training.stop", "training.rounds"),
    ({}, {"schedule": "cosine:time_s=60"}, "training.schedule", "training.rounds"),
    ({"unit": "member", "delta": 0.5}, {}, "privacy.delta", "at most"),
]


@pytest.mark.parametrize(("changed", "other", "key", "allowed"), WRONG)
def test_a_mistake_is_one_error_that_names_what_is_allowed(changed, other, key, allowed):
    keywords = {"nodes": 8, "topology": "ring", "privacy": SHARED | changed} | other
    with pytest.raises(UserError) as caught:
        Federation(**keywords)
    assert caught.value.key == (key if key.startswith("privacy.") else key.rpartition(".")[2])
    assert allowed in f"{caught.value}"


def test_a_file_with_several_mistakes_names_each_once(tmp_path):
    folder = Federation(nodes=8, topology="ring", privacy=SHARED).save(tmp_path / "ward")
    file = folder / "federation.toml"
    text = file.read_text().replace("colluders = 1", "colluders = 7").replace("[gossip]", '[gossip]\nrule = "median"')
    file.write_text(text)
    assert sorted(error.key for error in federation_mistakes(file)) == ["gossip.rule", "privacy.colluders"]


def test_what_is_usual_is_accepted_and_a_saved_folder_has_it_too(tmp_path):
    keywords = {"rule": "mean", "method": "plain", "share": ["*"], "schedule": "cosine:rounds=9"}
    made = Federation(nodes=8, topology="ring", privacy=SHARED | {"rate": 1, "least": 4}, **keywords)
    assert made.config.privacy == load_config(made.save(tmp_path / "a")).privacy
    assert made.config.privacy == PrivacyConfig(epsilon=3.0, noise="shared", delta=1e-5, rate=1.0, least=4)
    assert Federation(nodes=8, privacy=SHARED).config.method == "plain"


def test_removed_members_count_among_those_who_must_sign():
    federation = Federation(nodes=8, topology="ring", privacy=SHARED | {"least": 3}).config
    for removed, is_refused in ((3, False), (4, True)):
        members = tuple(replace(one, retired=one.index < removed) for one in federation.members)
        mistakes = Mistakes(federation.path)
        refuse_broken_promises(replace(federation, members=members), mistakes)
        assert [(one.key, one.value) for one in mistakes.errors] == [("node", 4)] * is_refused


@pytest.mark.parametrize(
    ("members", "colluders", "least"), [(3, 1, 3), (4, 1, 3), (5, 1, 4), (16, 1, 14), (16, 13, 15), (16, 14, 16)]
)
def test_without_least_an_eighth_may_be_missing_and_one_of_four(members, colluders, least):
    assert PrivacyConfig(epsilon=1.0, noise="shared", delta=1e-5, colluders=colluders).least_of(members) == least


def test_the_budget_is_planned_for_some_sums_more_than_rounds():
    assert planned_rounds(Federation(nodes=4, rounds=100, privacy=SHARED).config) == 100 + 100 // SPARE
    assert planned_rounds(Federation(nodes=4, rounds=100, privacy=SHARED | {"rounds": 100}).config) == 100
    own = {"epsilon": 3, "delta": 1e-5}
    assert planned_rounds(Federation(nodes=4, rounds=100, privacy=own).config) == 100
    assert planned_rounds(Federation(nodes=4, rounds=100, closing="train", privacy=own).config) == 110


def test_simulator_and_audit_refuse_it(tmp_path):
    federation = Federation(nodes=4, topology="ring", rounds=2, privacy=SHARED)
    with pytest.raises(UserError, match="is not simulated") as caught:
        simulate(federation.config)
    assert caught.value.key == "privacy.noise"
    with pytest.raises(UserError, match="is not attacked here"):
        scene_of(federation.save(tmp_path / "ward") / "federation.toml")


async def test_a_model_that_is_too_large_for_a_sum_is_refused_before_anything_is_written(
    shared_ward, start, monkeypatch
):
    monkeypatch.setattr("p2pfl.features.shared_noise.rounds.MOST_ENTRIES", 15)
    field = shared_ward()
    (node,) = start(field, 0)
    with pytest.raises(UserError, match="too large for shared noise") as caught:
        await node.result()
    assert (caught.value.key, caught.value.value, caught.value.allowed) == (
        "task.name",
        "16",
        "at most 15 trained numbers",
    )
    assert not list((field.folder / "node0" / "state").glob("*"))


# -- check ------------------------------------------------------------------------------------------------------------


def check(folder, *options):
    result = CliRunner().invoke(cli, ["check", str(folder), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_check_says_what_a_round_costs_who_may_collude_and_who_waits_for_whom(tmp_path):
    folder = Federation(
        task="digits", nodes=8, topology="ring", rounds=20, privacy=SHARED | {"accountant": "rdp", "colluders": 2}
    ).save(tmp_path / "ward")
    brief = " ".join(check(folder).split())
    for words in (
        "one step: each row of all nodes is in it with probability 0.2",
        "sent by each node",
        "of a sum of 7 or more of 8 nodes; 2 may work together against another",
        "the budget pays for 21 sums",
        "a round waits for 7 nodes; with fewer nothing is learned until they are back",
        "one of them can spoil every sum, unnoticed",
    ):
        assert words in brief


@pytest.mark.parametrize(
    ("nodes", "waits", "differs"),
    [(3, "all 3 nodes: they are one group", False), (6, "4 nodes and for a whole group", True)],
)
def test_check_says_by_what_sums_of_hidden_models_differ_if_they_can(tmp_path, nodes, waits, differs):
    folder = Federation(task="digits", nodes=nodes, rounds=20, privacy={"hide": "models"}).save(tmp_path / "ward")
    brief = " ".join(check(folder).split())
    assert f"a round waits for {waits}" in brief
    assert ("two sums differ by whole groups" in brief) == differs


def test_check_warns_of_a_delta_above_one_in_the_rows_of_all_nodes(tmp_path):
    """Each node has some 180 of 1,437 rows, for which .001 would do."""
    folder = Federation(
        task="digits", nodes=8, topology="ring", rounds=20, privacy=SHARED | {"accountant": "rdp", "delta": 1e-3}
    ).save(tmp_path / "ward")
    assert "exceeds one in the 1,437 rows of all nodes together" in " ".join(check(folder).split())


# -- what the driver sees ---------------------------------------------------------------------------------------------


def test_a_course_of_sums_shows_sessions_and_misses_nobody_once_it_is_through():
    course = SummedRounds(None, Facts(degree=2, samples=1.0), (1, 2))
    assert course.handle(SessionOpened(peer=1, session=4), 0.0) == []
    assert (list(course.connected), list(course.peers), course.ended_by) == ([1], [1, 2], None)
    assert not course.may_miss(2)
    course.facts.done = True
    assert course.may_miss(2)
    course.halted_by = "its budget is spent"
    assert course.ended_by == "its budget is spent"
    assert not course.is_over
    course.finish()
    assert (course.is_over, course.phase) == (True, Phase.FINISHED)
