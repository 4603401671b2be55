"""A new federation works at once, and a failed attempt leaves nothing behind."""

from __future__ import annotations

import json
import re
import shutil
import stat
from dataclasses import replace

import pytest

from p2pfl.config import HideConfig, load_config, load_node, node_file
from p2pfl.crypto.identity import Identity


def test_every_node_has_a_folder_a_secret_key_and_its_place_in_the_file(p2pfl, tmp_path):
    assert p2pfl("new", "ward", "--nodes", "4", "--base-port", "9000").code == 0
    federation = load_config(tmp_path / "ward")
    assert [member.address for member in federation.members] == [f"127.0.0.1:{port}" for port in range(9000, 9004)]
    for member in federation.members:
        node = load_node(node_file(federation, member.name), federation)
        assert Identity.load(node.key_file).public == member.key
        assert stat.S_IMODE(node.key_file.stat().st_mode) == 0o600


def test_nodes_of_a_lan_have_no_addresses_find_each_other_and_listen_to_other_machines(p2pfl, tmp_path):
    assert p2pfl("new", "ward", "--nodes", "pi1,pi2,pi3", "--lan", "--admin").code == 0
    federation = load_config(tmp_path / "ward")
    assert federation.discovery
    assert [member.address for member in federation.members] == [None] * 3
    assert load_node(node_file(federation, "pi1"), federation).listen == "0.0.0.0:0"
    assert "address" not in p2pfl("check", "ward").out


def test_its_own_task_learns_at_once(p2pfl, tmp_path):
    p2pfl("new", "ward")
    outcome = p2pfl("check", "ward", "--format", "json")
    report = json.loads(outcome.out)
    assert (outcome.code, report["mistakes"]) == (0, [])
    assert report["federation"]["task"] == "task.py:task"
    assert report["traffic"]["parameters"] == 2_410
    assert sum(member["samples"] for member in report["members"]) == 1_437


def test_the_built_in_task_needs_no_file(p2pfl, tmp_path):
    p2pfl("new", "other", "--task", "digits")
    assert not (tmp_path / "other" / "task.py").exists()
    federation = load_config(tmp_path / "other")
    assert (federation.task.name, federation.name) == ("digits", "other")


@pytest.mark.parametrize("options", [(), ("--task", "digits", "--admin")])
def test_models_are_hidden_by_a_word_and_what_is_shown_as_a_default_is_one(p2pfl, tmp_path, options):
    assert p2pfl("new", "ward", "--hide-models", *options).code == 0
    file = tmp_path / "ward" / "federation.toml"
    before = load_config(file)
    assert (before.in_step_by, before.hides, before.gossip.rule) == ("hidden models", HideConfig(), "mean")
    file.write_text(re.sub(r"(?m)^# (?=[a-z_]+ = )", "", file.read_text(encoding="utf-8")), encoding="utf-8")
    assert file.read_text(encoding="utf-8").count("[privacy]") == 1, "a second table is no TOML, and no hint"
    assert load_config(file).hides == before.hides
    assert load_config(file).training == replace(before.training, method="plain")


def test_a_graph_file_is_copied(p2pfl, tmp_path):
    (tmp_path / "mine.edges").write_text("node0 node1\nnode1 node2\n", encoding="utf-8")
    assert p2pfl("new", "ward", "--topology", "mine.edges").code == 0
    (tmp_path / "mine.edges").unlink()
    assert load_config(tmp_path / "ward").edges == ((0, 1), (1, 2))


@pytest.mark.parametrize(
    ("rule", "written", "protects"),
    [
        ("mean", "mean", "trusts every neighbor"),
        ("median", "median:b=1", "if one neighbor lies to a node; it needs 3 or more"),
        ("nnm+median:b=2", "nnm+median:b=2", "if 2 neighbors lie to a node; it needs 5 or more"),
        ('my"own.py:rule', 'my"own.py:rule,b=1', "if one neighbor lies"),
    ],
)
def test_the_rule_is_written_with_what_it_protects_from_in_its_line(p2pfl, tmp_path, rule, written, protects):
    assert p2pfl("new", "ward", "--rule", rule).code == 0
    assert load_config(tmp_path / "ward").gossip.rule == written
    training = load_config(tmp_path / "ward").training
    assert (training.closing, training.momentum) == (("mix", 0.0) if rule == "mean" else ("train", 0.5))
    lines = (tmp_path / "ward" / "federation.toml").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("rule = "))
    assert protects in line


@pytest.mark.parametrize("topology", ["one-peer-hypercube", "base:k=1", "random-matchings:rounds=8"])
def test_a_schedule_is_checked_and_written(p2pfl, tmp_path, topology):
    assert p2pfl("new", "ward", "--nodes", "8", "--topology", topology).code == 0
    federation = load_config(tmp_path / "ward")
    assert federation.topology == topology
    assert {edge for edges in federation.schedule for edge in edges} == set(federation.edges)
    assert max(map(len, federation.schedule)) == 4


def test_an_empty_folder_is_filled(p2pfl, tmp_path):
    (tmp_path / "ward").mkdir()
    assert p2pfl("new", "ward").code == 0
    assert (tmp_path / "ward" / "federation.toml").exists()


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--nodes", "1"], 2, "2<=x"),
        (["--nodes", "north"], 2, "'north': write a number from 2 to 1000, or different names such as pi1,pi2,pi3"),
        *((["--nodes", names], 2, "different names") for names in ("pi1,", "pi1,pi1", "a/b,c", "pi1,.x", "x,")),
        (["--topology", "rng"], 2, "did you mean 'ring'"),
        (["--topology", "circulant:offsets=2", "--nodes", "4"], 3, "not connected"),
        (["--topology", "none.json"], 2, "none.json"),
        (["--topology", "one-peer-exponential", "--nodes", "8"], 2, "an undirected schedule: base"),
        (["--base-port", "65534"], 2, "--base-port"),
        (["--task", "mine"], 2, "'own', 'digits'"),
        (["--hide-models", "--rule", "median"], 2, "mean with --hide-models"),
        (["--hide-models", "--nodes", "2", "--topology", "path"], 2, "3 or more with --hide-models"),
    ],
)
def test_a_mistake_leaves_nothing(p2pfl, tmp_path, options, code, text):
    outcome = p2pfl("new", "ward", *options)
    assert outcome.code == code
    assert text in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_no_federation_may_have_is_refused(p2pfl):
    outcome = p2pfl("new", "ward:7")
    assert outcome.code == 2
    assert outcome.err.startswith("error: DIR: its last part is no name for a federation")


def test_a_failure_halfway_leaves_nothing(p2pfl, tmp_path, monkeypatch):
    saved = Identity.save

    def full_after_two(self, path):
        if "node2" in str(path):
            raise OSError(28, "No space left on device")
        saved(self, path)

    monkeypatch.setattr(Identity, "save", full_after_two)
    outcome = p2pfl("new", "ward")
    assert outcome.code == 1
    assert "No space left on device" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_as_it_is(p2pfl, tmp_path):
    (tmp_path / "ward").mkdir()
    (tmp_path / "ward" / "precious").write_text("x", encoding="utf-8")
    outcome = p2pfl("new", "ward")
    assert outcome.code == 2
    assert "a new or an empty folder" in outcome.err
    assert [path.name for path in tmp_path.rglob("*")] == ["ward", "precious"]


def test_a_missing_parent_is_named_and_not_made(p2pfl, tmp_path):
    outcome = p2pfl("new", "a/ward")
    assert outcome.code == 2
    assert str(tmp_path / "a") in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_labels_is_copied_beside_the_federation(p2pfl, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "labels.csv").write_text("5,0\n5,0\n0,5\n0,5\n", encoding="utf-8")
    spec = "d-cliques:size=2,labels=data/labels.csv"
    assert p2pfl("new", "cliques", "--nodes", "4", "--topology", spec).code == 0
    assert (tmp_path / "cliques" / "labels.csv").is_file()
    (tmp_path / "data" / "labels.csv").unlink()
    assert load_config(tmp_path / "cliques").topology == "d-cliques:size=2,labels=labels.csv"


def test_each_file_names_a_schema_that_is_there_and_none_is_needed(p2pfl, tmp_path):
    p2pfl("new", "ward", "--task", "digits")
    for file in ("federation.toml", "node0/node.toml"):
        place = (tmp_path / "ward" / file).read_text(encoding="utf-8").partition("\n")[0].removeprefix("#:schema ")
        assert json.loads(((tmp_path / "ward" / file).parent / place).read_text(encoding="utf-8"))["properties"]
    shutil.rmtree(tmp_path / "ward" / ".schema")
    assert p2pfl("check", "ward").code == 0
