"""`p2pfl check` says what a robust rule bears on this graph, what is guaranteed, and what works against it."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def ward(p2pfl, tmp_path):
    p2pfl("new", "ward", "--nodes", "8", "--task", "digits")
    return tmp_path / "ward"


@pytest.fixture
def check(p2pfl, ward):
    """The report of a check with these lines of the file changed."""

    def check(rule, topology, **lines):
        path = ward / "federation.toml"
        text = path.read_text(encoding="utf-8")
        text = text.replace('rule = "mean"', f'rule = "{rule}"').replace(
            'topology = "ring"', f'topology = "{topology}"'
        )
        for key, value in lines.items():
            found = next(line for line in text.splitlines() if line.removeprefix("# ").startswith(f"{key} = "))
            text = text.replace(found, f"{key} = {value}")
        path.write_text(text, encoding="utf-8")
        outcome = p2pfl("check", ward, "--format", "json")
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    return check


def about(report, *words):
    return [text for text in report["warnings"] if all(word in text for word in words)]


def test_nodes_that_bear_the_liars_are_told_with_how_many(check):
    report = check("trimmed-mean:b=1", "complete")
    assert {member["liars_borne"] for member in report["members"]} == {1}
    assert report["rule"]["liars_borne"] == {"min": 1, "max": 1}
    assert report["rule"]["neighbors_needed"] == 3
    assert about(report, "rule:") == []


def test_nodes_that_would_never_mix_are_named_and_once_only(check):
    report = check("trimmed-mean:b=2", "hierarchical:gateways=7")
    assert report["rule"]["never_mix"] == [f"node{index}" for index in range(1, 8)]
    assert [member["liars_borne"] for member in report["members"]] == [2] + [0] * 7
    (text,) = about(report, "node1, node2, node3, node4, node5 and 2 more would mix with nobody")
    assert "needs 5 neighbors" in text
    assert not about(report, "fewer than 5 neighbors")


@pytest.mark.parametrize(
    ("rule", "topology", "needed"), [("hampel:b=2", "random-regular:degree=4", 5), ("trimmed-mean:b=1", "ring", 3)]
)
def test_a_rule_under_which_no_node_mixes_is_a_mistake(p2pfl, ward, rule, topology, needed):
    path = ward / "federation.toml"
    text = path.read_text(encoding="utf-8").replace('topology = "ring"', f'topology = "{topology}"')
    path.write_text(text.replace('rule = "mean"', f'rule = "{rule}"'), encoding="utf-8")
    outcome = p2pfl("check", ward, "--format", "json")
    assert outcome.code == 2
    report = json.loads(outcome.out)
    (mistake,) = report["mistakes"]
    assert (mistake["file"], mistake["key"], mistake["value"]) == (str(path), "gossip.rule", rule)
    assert f"needs {needed} neighbors" in mistake["message"]
    assert not about(report, "would mix with nobody")


@pytest.mark.parametrize(("topology", "narrow"), [("barbell", True), ("torus", True), ("complete", False)])
def test_a_bottleneck_is_told_to_be_discarded_though_nobody_lies(check, topology, narrow):
    assert bool(about(check("trimmed-mean:b=1", topology), "bottleneck", "even if nobody is malicious")) is narrow


def test_a_node_that_stops_when_one_neighbor_is_away_is_named(check):
    (text,) = about(check("median:b=1", "hypercube"), "one neighbor is away")
    assert text.startswith("rule: node0, node1")


@pytest.mark.parametrize("rule", ["cs+:b=1", "hampel:b=1"])
def test_nodes_whom_liars_could_leave_no_radius_are_named_with_how(check, rule):
    """A hypercube of 8 has degree 3, which is 3b."""
    (text,) = about(check(rule, "hypercube"), "can be cut off")
    assert text.startswith("rule: node0, node1, node2, node3, node4 and 3 more have 3 neighbors or fewer")
    assert "1 liar that shows a node its own model" in text
    assert "4 neighbors or more" in text


@pytest.mark.parametrize(
    ("rule", "topology"),
    [("cs+:b=1", "random-regular:degree=4"), ("trimmed-mean:b=1", "hypercube"), ("cs+:b=1", "star")],
)
def test_with_more_neighbors_or_another_rule_or_no_mixing_at_all_nobody_is_cut_off(check, rule, topology):
    assert not about(check(rule, topology), "can be cut off")


def test_a_sparse_compressor_is_warned_of_on_a_single_edge_too(check, ward):
    path = ward / "federation.toml"
    own = '[[edge]]\nbetween = ["node0", "node1"]\ncompressor = "top-k:0.1+q8"\n'
    path.write_text(path.read_text(encoding="utf-8") + own, encoding="utf-8")
    (text,) = about(check("trimmed-mean:b=1", "complete"), "piece by piece")
    assert "top-k:0.1+q8" in text


def test_the_rule_that_is_named_instead_of_the_mean_is_the_one_advised_for_such_data_and_graph(check, ward):
    assert about(check("mean", "random-regular:degree=4"), "A rule such as hampel:b=1")
    path = ward / "federation.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("[training]", 'partition = "shards:2"\n\n[training]'), encoding="utf-8")
    assert about(check("mean", "random-regular:degree=4"), "A rule such as nnm+trimmed-mean:b=1")


def test_those_settings_are_right_under_the_mean(check):
    report = check("mean", "complete", gamma="1.0", method='"variate:beta=0.1"', compressor='"top-k:0.1+q8"')
    assert about(report, "rule:") == []


@pytest.mark.parametrize("rule", ["mine.py:rule", "mine.py:NUMBER,b=2", "no_such_module:rule"])
def test_a_rule_of_ones_own_that_cannot_be_used_is_a_mistake_of_the_file(p2pfl, ward, rule):
    (ward / "mine.py").write_text("NUMBER = 1\n", encoding="utf-8")
    path = ward / "federation.toml"
    path.write_text(path.read_text(encoding="utf-8").replace('rule = "mean"', f'rule = "{rule}"'), encoding="utf-8")
    outcome = p2pfl("check", ward, "--format", "json")
    assert outcome.code == 2
    (mistake,) = json.loads(outcome.out)["mistakes"]
    assert (mistake["file"], mistake["key"]) == (str(path), "gossip.rule")
    assert "Traceback" not in outcome.err


def test_a_rule_of_ones_own_beside_the_file_is_found(check, ward):
    (ward / "mine.py").write_text("def rule(vectors):\n    return vectors[0]\n", encoding="utf-8")
    report = check("mine.py:rule,b=2", "complete")
    assert report["rule"]["liars_borne"] == {"min": 2, "max": 2}
