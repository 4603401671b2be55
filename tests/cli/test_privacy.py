"""`p2pfl privacy`: words for nodes that are here, and what their ledgers say."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from p2pfl.cli.main import main
from p2pfl.config import load_config
from p2pfl.engine import NodeState, image
from p2pfl.features.privacy import LedgerFile, permission_file, read_permission
from p2pfl.learn.privacy import Ledger, Promise, Spend
from p2pfl.storage import State, Store

PRIVACY = "\n[privacy]\nepsilon = 8.0\ndelta = 1e-4\n"


@pytest.fixture
def p2pfl(p2pfl):
    return partial(p2pfl, "privacy")


@pytest.fixture
def ward(tmp_path, capsys):
    folder = tmp_path / "ward"
    with pytest.raises(SystemExit):
        main(["new", str(folder), "--nodes", "3", "--task", "digits"])
    capsys.readouterr()
    with (folder / "federation.toml").open("a") as file:
        file.write(PRIVACY)
    return folder


def words(folder):
    return sorted(path.parent.name for path in folder.glob("*/node.budget"))


def test_begin_gives_each_node_here_a_word_or_those_that_are_named(p2pfl, ward):
    code, out, _ = p2pfl("begin", ward, "--node", "node2")
    assert (code, words(ward)) == (0, ["node2"])
    assert "node2: its budget starts when the node starts" in out
    assert p2pfl("begin", ward)[0] == 0
    assert words(ward) == ["node0", "node1", "node2"]
    rows = json.loads(p2pfl("show", ward, "--format", "json")[1])
    assert [(row["node"], row["state"], row["waiting"], row["epsilon"]) for row in rows] == [
        (f"node{index}", "missing", True, None) for index in range(3)
    ]


class OpenPlan:
    """Asks no accountant: it has room for whatever there is."""

    unit, epsilon, delta, noise, rounds, shared_rate = "record", 8.0, 1e-4, 1.0, 7, None

    def spend(self, samples):
        return Spend(1.0, 0.1, 1)

    def allows(self, spent, cost):
        return True

    def spent(self, spent):
        return 0.0

    def rounds_left(self, spent, samples):
        return 1


@pytest.fixture
def _unaccounted(monkeypatch):
    monkeypatch.setattr("p2pfl.features.privacy.checks.plan_of", lambda *_: OpenPlan())


def leave_state(folder, **changes):
    """What a node keeps that has trained seven rounds."""
    state = NodeState.new(np.ones(4, np.float32), 100, ())
    state.rounds = 7
    for name, value in changes.items():
        setattr(state, name, value)
    picture = image(state, with_replicas=True)
    with closing(Store.open(folder / "state", durability="exchange")) as store:
        store.load()
        header = picture.header | {"compressor": "q4", "compressors": {}}
        store.checkpoint(State(header=header, arrays=picture.arrays, blobs=picture.blobs))


PERMITTED = Promise("record", 8.0, 1e-4)


@pytest.mark.usefixtures("_unaccounted")
def test_a_budget_that_has_begun_is_begun_again_only_on_purpose(p2pfl, ward):
    leave_state(ward / "node1", ledger=Ledger(unit="record", word="w"))
    code, _, err = p2pfl("begin", ward)
    assert code == 2
    assert "has begun at node1" in err
    assert "--again" in err
    assert words(ward) == [], "nothing is half made"
    assert p2pfl("begin", ward, "--again")[0] == 0
    assert words(ward) == ["node0", "node1", "node2"]
    assert read_permission(ward / "node1" / "node.key").promise == PERMITTED


@pytest.mark.usefixtures("_unaccounted")
def test_a_larger_epsilon_than_permitted_is_shown_and_a_wiped_node_has_what_stands_beside_its_key(p2pfl, ward):
    leave_state(ward / "node1", ledger=Ledger(unit="record", word="w", promise=PERMITTED._replace(epsilon=4.0)))
    for name in ("node0", "node1"):
        file = LedgerFile(ward / name / "node.key", load_config(ward).name, name)
        file.write(Ledger(unit="record", word="w", promise=PERMITTED._replace(epsilon=4.0)))
    rows = json.loads(p2pfl("show", ward, "--format", "json")[1])
    assert [(row["state"], row["epsilon"]) for row in rows] == [("wiped", 0.0), ("unpermitted", 0.0), ("missing", None)]
    assert "has begun at node0, node1" in p2pfl("begin", ward)[2]


@pytest.mark.usefixtures("_unaccounted")
def test_a_budget_of_another_unit_has_begun_too(p2pfl, ward):
    leave_state(ward / "node1", ledger=Ledger(unit="member", word="w", spent=(Spend(20.0, 1.0, 3),)))
    code, _, err = p2pfl("begin", ward)
    assert code == 2
    assert "has begun at node1" in err
    assert p2pfl("begin", ward, "--again")[0] == 0


@pytest.mark.usefixtures("_unaccounted")
@pytest.mark.parametrize("found", [None, Ledger(unit="record", word="w")])
def test_a_model_that_was_trained_without_a_budget_gets_none_and_shows_no_epsilon(p2pfl, ward, capsys, found):
    """The report said "at most 0" of a model without noise. A ledger is one that began after those rounds."""
    leave_state(ward / "node1", ledger=found, unpaid=7)
    for options in ((), ("--again",)):
        code, _, err = p2pfl("begin", ward, *options)
        assert code == 2
        assert f"{ward}/node1/state: privacy: the model was trained for 7 rounds without a privacy budget" in err
        assert "remove this folder" in err
    assert words(ward) == []
    row = json.loads(p2pfl("show", ward, "--format", "json")[1])[1]
    assert (row["state"], row["epsilon"], row["rounds_left"]) == ("unprotected", None, 0)
    for command in ("launch", "check"):
        code, err = called(capsys, command, ward)
        assert code == 2, command
        assert f"{ward}/node1/state: privacy: the model was trained for 7 rounds without" in err
    (ward / "node1" / "state").rename(ward / "elsewhere")
    assert p2pfl("begin", ward)[0] == 0


@pytest.mark.usefixtures("_unaccounted")
def test_a_node_that_only_mixed_may_begin(p2pfl, ward):
    """A newcomer counts from its neighbors' round, and has told nothing of its own rows."""
    leave_state(ward / "node1")
    assert p2pfl("begin", ward)[0] == 0
    assert words(ward) == ["node0", "node1", "node2"]


@pytest.mark.usefixtures("_unaccounted")
def test_begin_says_what_adds_to_the_new_budget_and_what_is_not_known(p2pfl, ward, monkeypatch):
    monkeypatch.setattr(OpenPlan, "spent", lambda _, spent: 2.5 if spent else 0.0)
    paid = Ledger(unit="record", word="w", spent=(Spend(1.0, 0.1, 3),), promise=PERMITTED)
    leave_state(ward / "node1", ledger=paid)
    leave_state(ward / "node2", ledger=replace(paid, unit="member"))
    for name, ledger in (("node1", paid), ("node2", replace(paid, unit="member"))):
        LedgerFile(ward / name / "node.key", load_config(ward).name, name).write(ledger)
    lines = p2pfl("begin", ward, "--again")[1].splitlines()
    assert [line.partition("; it adds to what was spent before, ")[2] for line in lines] == [
        "",
        "epsilon 2.5",
        "an amount unknown here",
    ]
    leave_state(ward / "node1", ledger=replace(paid, is_whole=False))
    line = p2pfl("begin", ward, "--again", "--node", "node1")[1].strip()
    assert line.endswith("; it adds to what was spent before, of which the records lack a part (epsilon 2.5)")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--node", "nobody"), "no such node"),
        (("--node", "node1"), "no folder here for node1"),
    ],
)
def test_words_are_for_members_with_a_folder_here(p2pfl, ward, arguments, said):
    (ward / "node1").rename(ward / "elsewhere")
    for command in ("begin", "show"):
        code, _, err = p2pfl(command, ward, *arguments)
        assert code == 2
        assert said in err
    assert words(ward) == []
    assert p2pfl("begin", ward)[0] == 0
    assert words(ward) == ["node0", "node2"]


def test_a_budget_that_went_on_with_larger_figures_is_gone_and_says_what_to_use(p2pfl, ward):
    code, _, err = p2pfl("begin", ward, "--raise")
    assert code == 2
    assert "--raise is gone: use --again" in err


def test_where_nothing_is_promised_there_is_no_budget(p2pfl, ward):
    file = ward / "federation.toml"
    file.write_text(file.read_text().replace(PRIVACY, ""))
    code, _, err = p2pfl("begin", ward)
    assert code == 2
    assert "no privacy is promised here" in err
    assert words(ward) == []


def test_launch_does_not_begin_where_no_node_would_train(ward, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["launch", str(ward)])
    assert ended.value.code == 2
    assert f"p2pfl privacy begin {ward}" in capsys.readouterr().err
    assert not list(ward.glob("*/state"))
    assert permission_file(ward / "node0" / "node.key").name == "node.budget"


def called(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    told = capsys.readouterr()
    return ended.value.code, told.out + told.err
