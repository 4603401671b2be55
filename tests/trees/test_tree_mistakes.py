"""What trees cannot do is one clear error, and `p2pfl check` says what they cost and who waits for whom."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from p2pfl import UserError
from p2pfl.cli import cli
from p2pfl.config import load_config, load_node
from p2pfl.errors import LearningError
from p2pfl.features.trees.rounds import refusals
from p2pfl.learn import RoundStart, load_task
from p2pfl.node import read_setup
from sim import scene_of, simulate

WRONG = [
    ({}, {"gossip": {"rule": "trimmed-mean:b=1"}}, "gossip.rule", "mean"),
    ({}, {"gossip": {"share": ["a.*"]}}, "gossip.share", "*"),
    ({}, {"training": {"method": "variate"}}, "training.method", "no training.method"),
    ({}, {"training": {"stop": "no improvement in 5 rounds"}}, "training.stop", "task.patience"),
    ({}, {"training": {"rounds": None, "time_s": 60}}, "training.rounds", "a number of rounds"),
    ({}, {"privacy": {"epsilon": 3, "delta": 1e-3}}, "task.model", "linear or mlp with [privacy]"),
    ({"colluders": 0}, {}, "task.colluders", "1 to 1"),
    ({"colluders": 2}, {}, "task.colluders", "1 to 1"),
    ({"hidden": [4]}, {}, "task.hidden", ""),
    ({"model": "mlp"}, {}, "task.max_depth", ""),
    ({"eta": 0}, {}, "task.eta", "from 1e-06 to 1"),
    ({"max_depth": 2.5}, {}, "task.max_depth", "a whole number"),
    ({"eta": "high"}, {}, "task.eta", "a number"),
    ({"colluders": "one"}, {}, "task.colluders", "a whole number"),
    ({"patience": 3, "holdout": 0.0}, {}, "task.patience", "with task.holdout"),
    ({"class_weights": {"ill": 2.0}}, {}, "task.class_weights.ill", "above 0, for no, yes"),
    ({"classes": None, "class_weights": "balanced", "target": "b", "numeric": ["a"]}, {}, "task.class_weights", "none"),
    ({"target": None}, {}, "task.target", "the name of a column"),
    ({"model": "forest"}, {}, "task.model", "linear, mlp, trees"),
]


@pytest.mark.parametrize(("task", "tables", "key", "allowed"), WRONG)
def test_a_mistake_is_one_error_that_names_what_is_allowed(task, tables, key, allowed, tree_ward):
    privacy = tables.pop("privacy", None) if "privacy" in tables else None
    field = tree_ward(task=task, **{name: tables[name] for name in ("training", "gossip") if name in tables})
    if privacy is not None:
        field.tables["privacy"] = privacy
    field.write()
    shown = CliRunner().invoke(cli, ["check", str(field.folder), "--format", "json"])
    found = json.loads(shown.stdout)["mistakes"]
    assert [one["key"] for one in found] == [key]
    assert allowed in (found[0]["allowed"] or "")


def test_two_nodes_are_too_few(tree_ward):
    shown = CliRunner().invoke(cli, ["check", str(tree_ward(2).folder)])
    assert "of the sum of two, each knows the other's part (found 2); allowed: 3 or more" in " ".join(
        shown.output.split()
    )


def test_more_nodes_than_fit_in_a_sum_are_refused(tree_ward):
    """A sum of 2,048 parts reaches 2^63, and would be read as a number below 0."""
    federation = load_config(tree_ward().folder)
    many = replace(federation, members=federation.members[:1] * 2048)
    assert [one.allowed for one in refusals(many)] == ["at most 2047, with those that were removed"]
    assert not list(refusals(replace(many, members=many.members[1:])))


def test_check_says_what_trees_cost_and_who_waits_for_whom(tree_ward):
    shown = CliRunner().invoke(cli, ["check", str(tree_ward().folder)]).output
    for text in (
        "in step, by secure sums",
        "a tree by a secure sum for each level",
        "1 may work together",
        "without one of them nothing grows",
    ):
        assert text in " ".join(shown.split())


def test_check_says_nothing_of_steps_and_mixing_to_trees(tree_ward):
    """They would be figures of a model of one number, mixed by a rule."""
    folder = str(tree_ward().folder)
    shown = CliRunner().invoke(cli, ["check", folder, "--all"]).output
    found = json.loads(CliRunner().invoke(cli, ["check", folder, "--format", "json"]).stdout)

    for word in ("local_steps", "staleness", "consensus", "compressor", "liars", "rule"):
        assert word not in shown
    assert found["traffic"] is None


def test_simulator_and_audit_refuse_trees(tree_ward):
    federation = load_config(tree_ward().folder)
    with pytest.raises(UserError, match="is not simulated") as caught:
        simulate(federation)
    assert (caught.value.key, caught.value.value) == ("task.model", "trees")
    with pytest.raises(UserError, match="is not attacked here"):
        scene_of(federation.path)


def test_without_a_course_of_sums_a_learner_of_trees_does_not_pretend_to_learn(tree_ward):
    field = tree_ward()
    setup = read_setup(field.federation(), load_node(field.folder / "node0", field.federation()))
    with pytest.raises(LearningError, match="grow by sums over all nodes"):
        setup.learner.train(RoundStart(setup.learner.initial()), 0)


def test_a_site_with_one_class_and_an_empty_column_takes_part(tree_ward, caplog):
    """It is warned of; what it has still counts in the sums."""
    caplog.set_level("WARNING", logger="p2pfl")  # `p2pfl audit`, in another test, has set it higher
    field = tree_ward()
    file = field.folder / "node0" / "own.csv"
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *(f",{row.split(',')[1]},u,no" for row in rows)]) + "\n")
    shown = CliRunner().invoke(cli, ["check", str(field.folder)])
    assert shown.exit_code == 0, shown.output
    assert "every row of node node0 has the class 'no'" in caplog.text


@pytest.mark.long
def test_a_task_of_trees_needs_no_torch(tree_ward):
    field = tree_ward()
    program = (
        "import sys; from p2pfl.config.load import load_config; from p2pfl.learn.load import load_task\n"
        f"load_task(load_config({str(field.folder)!r}).task, None); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert load_task(load_config(field.folder).task, field.folder) is not None
