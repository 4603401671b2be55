"""`p2pfl evaluate` finds the state, the federation and the data, and says what is missing or does not fit."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch

from p2pfl.cli import _one_by_one
from p2pfl.config import load_config
from tests.cli.conftest import change, contents


def report_of(outcome):
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.fixture
def copy(learned, tmp_path):
    """The federation, to be changed."""
    return shutil.copytree(learned, tmp_path / "ward")


def test_the_last_durable_round_is_scored_on_the_test_set_and_on_the_nodes_own_data(p2pfl, learned):
    report = report_of(p2pfl("evaluate", learned / "node0", "--format", "json"))
    assert (report["federation"], report["node"], report["rounds"], report["version"]) == ("ward", "node0", 3, 3)
    assert report["accuracy"] > 0.5
    assert report["local_accuracy"] > 0.5
    assert report["test_samples"] == 360
    assert report["local_samples"] in (718, 719)
    assert 0 < report["test_loss"] < 2
    assert 0 < report["local_loss"] < 2


def test_the_state_folder_that_of_the_federation_and_the_exported_file_give_the_same(p2pfl, learned, tmp_path):
    told = p2pfl("evaluate", learned / "node0", "--format", "json").out
    assert p2pfl("evaluate", learned / "node0" / "state", "--format", "json").out == told
    assert p2pfl("evaluate", learned, "--node", "node0", "--format", "json").out == told
    assert p2pfl("export", learned / "node0", "-o", "m.safetensors").code == 0
    assert p2pfl("evaluate", "m.safetensors", "--federation", learned, "--format", "json").out == told


def test_the_table_leaves_out_what_there_is_not(p2pfl, learned):
    lines = dict(line.split() for line in p2pfl("evaluate", learned / "node0").out.splitlines())
    assert (lines["node"], lines["rounds"]) == ("node0", "3")
    assert "local_accuracy" in lines
    assert "test_metrics" not in lines


def test_each_metric_has_a_line():
    shown = _one_by_one({"rounds": 3, "test_metrics": {"auc": 0.5, "f1": 0.25}, "local_metrics": {}})
    assert shown == {"rounds": 3, "test_auc": 0.5, "test_f1": 0.25}


def test_nothing_is_written_and_no_key_is_needed(p2pfl, copy):
    (copy / "node0" / "node.key").unlink()
    before = contents(copy / "node0")
    report_of(p2pfl("evaluate", copy / "node0", "--format", "json"))
    assert contents(copy / "node0") == before


def test_a_state_elsewhere_needs_the_federation_and_tells_the_node(p2pfl, learned, tmp_path):
    state = shutil.copytree(learned / "node0" / "state", tmp_path / "elsewhere")
    assert report_of(p2pfl("evaluate", state, "--federation", learned, "--format", "json"))["node"] == "node0"
    outcome = p2pfl("evaluate", state)
    assert outcome.code == 2
    assert "--federation: there is no federation.toml in this folder or above" in outcome.err


def test_the_node_file_may_put_the_state_elsewhere(p2pfl, copy):
    (copy / "node0" / "state").rename(copy / "kept")
    change(copy / "node0" / "node.toml", '# state_dir = "state"', 'state_dir = "../kept"')
    assert report_of(p2pfl("evaluate", copy / "node0", "--format", "json"))["rounds"] >= 3
    assert report_of(p2pfl("evaluate", copy / "kept", "--format", "json"))["node"] == "node0"


def test_if_the_newest_snapshot_is_damaged_the_one_before_and_its_log_do_with_a_warning(p2pfl, copy):
    state = copy / "node0" / "state"
    (state / "snapshot-00000003").write_bytes(b"garbage")
    outcome = p2pfl("evaluate", copy / "node0", "--format", "json")
    assert report_of(outcome)["rounds"] >= 3
    assert outcome.err.startswith("warning: ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{ward}/nowhere"], "SNAPSHOT: no such file or folder"),
        (["{ward}/node1"], "node1: no state here; allowed: the folder of a node that has run"),
        (["{ward}"], "SNAPSHOT: the folder of a federation, not of a node"),
        (["{ward}", "--node", "pi"], "allowed: ward/node0, ward/node1"),
        (
            ["{ward}/node0", "--node", "node1"],
            "node: this is the state of another node (found 'node0'); allowed: node1",
        ),
        (["{ward}/node0", "--node", "pi"], "no such node (found 'pi'); allowed: node0, node1"),
        (["{ward}/node0", "--federation", "{ward}/none.toml"], "none.toml: "),
        (["{ward}/task.py"], "task.py: --node: the file does not say whose it is; allowed: node0, node1"),
        (["{ward}/task.py", "--node", "node0"], "task.py: this is not a safetensors file: "),
    ],
)
def test_a_mistake_is_a_line_that_says_what_is_wrong(p2pfl, learned, arguments, text):
    outcome = p2pfl("evaluate", *(argument.format(ward=learned) for argument in arguments))
    assert (outcome.code, outcome.out) == (2, "")
    assert text in outcome.err
    assert outcome.err.count("\n") == 1


def test_the_state_of_another_model_or_federation_is_refused(p2pfl, copy):
    change(copy / "task.py", "UNITS = 20", "UNITS = 21")
    outcome = p2pfl("evaluate", copy / "node0")
    assert outcome.code == 2
    assert "model: this is the state of another model" in outcome.err
    change(copy / "federation.toml", 'name = "ward"', 'name = "other"')
    outcome = p2pfl("evaluate", copy / "node0")
    assert outcome.code == 2
    assert "federation: this is the state of another federation (found 'ward'); allowed: other" in outcome.err


def test_the_file_of_another_model_or_federation_is_refused(p2pfl, learned, copy):
    assert p2pfl("export", learned / "node0", "-o", "m.safetensors").code == 0
    change(copy / "task.py", "UNITS = 20", "UNITS = 21")
    outcome = p2pfl("evaluate", "m.safetensors", "--federation", copy)
    assert outcome.code == 2
    assert "m.safetensors: this file contains a different model: " in outcome.err
    assert outcome.err.count("\n") == 1
    change(copy / "federation.toml", 'name = "ward"', 'name = "other"')
    assert "another federation" in p2pfl("evaluate", "m.safetensors", "--federation", copy).err


def test_a_file_that_says_nothing_of_itself_needs_the_node(p2pfl, learned, tmp_path):
    """Such as one that the user's own program has written."""
    p2pfl("export", learned / "node0", "-o", "m.safetensors")
    tensors = safetensors.torch.load_file(tmp_path / "m.safetensors")
    safetensors.torch.save_file({name: tensor.clone() for name, tensor in tensors.items()}, tmp_path / "plain")
    assert "--node" in p2pfl("evaluate", "plain", "--federation", learned).err
    report = report_of(p2pfl("evaluate", "plain", "--federation", learned, "--node", "node1", "--format", "json"))
    assert report["accuracy"] > 0.5
    assert report["rounds"] is None


def test_a_task_without_torch_is_evaluated_and_exported_too(p2pfl, tmp_path, trained):
    p2pfl("new", "quad", "--nodes", "2", "--task", "digits")
    change(tmp_path / "quad" / "federation.toml", 'name = "digits"', 'name = "quadratic"\nsize = 5')
    trained(tmp_path / "quad", "node0", 2)
    told = report_of(p2pfl("evaluate", "quad/node0", "--format", "json"))
    assert told["accuracy"] is None
    p2pfl("export", "quad/node0", "-o", "quad/m.safetensors")
    assert report_of(p2pfl("evaluate", "quad/m.safetensors", "--format", "json")) == told
    assert safetensors.numpy.load_file(tmp_path / "quad" / "m.safetensors")["w"].shape == (5,)
    safetensors.numpy.save_file({"w": np.zeros(6, np.float32)}, tmp_path / "quad" / "wrong")
    outcome = p2pfl("evaluate", "quad/wrong", "--node", "node0")
    assert outcome.code == 2
    assert "wrong: this file contains a different model: it has the tensors ['w']" in outcome.err


def test_what_a_removed_member_has_learned_can_be_read(p2pfl, trained, tmp_path):
    p2pfl("new", "ward", "--nodes", "pi1,pi2,pi3", "--admin")
    trained(tmp_path / "ward", "pi1", 2)
    assert p2pfl("member", "remove", "ward", "pi1", "--offline").code == 0
    outcome = p2pfl("evaluate", "ward/pi1", "--format", "json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["rounds"] == 2


def test_a_member_that_the_state_alone_knows_of_can_be_read(p2pfl, trained, tmp_path):
    """On a newcomer's machine members.toml may be older than the charter that lists it, which is beside its state."""
    p2pfl("new", "ward", "--nodes", "pi1,pi2,pi3", "--admin")
    before = (tmp_path / "ward" / "members.toml").read_bytes()
    line = p2pfl("invite", "ward", "pi4").out.strip()
    request = p2pfl("join", line, "there", "--from", "ward").out.strip()
    p2pfl("member", "add", "ward", request, "--offline", "--yes")
    shutil.copyfile(tmp_path / "ward" / "members.toml", tmp_path / "there" / "members.toml")
    trained(tmp_path / "there", "pi4", 2)
    charter = load_config(tmp_path / "there").charter
    (tmp_path / "there" / "pi4" / "state" / "charter").write_bytes(charter)
    (tmp_path / "there" / "members.toml").write_bytes(before)
    assert p2pfl("evaluate", "there/pi4").code == 0


def test_a_model_is_fine_tuned_on_the_nodes_own_data_and_nothing_in_its_folder_changes(p2pfl, learned, tmp_path):
    before, there = report_of(p2pfl("evaluate", learned / "node0", "--format", "json")), contents(learned / "node0")
    assert p2pfl("export", learned / "node0", "--finetune", 5, "-o", "tuned.safetensors").code == 0
    told = report_of(p2pfl("evaluate", "tuned.safetensors", "--federation", learned, "--format", "json"))
    assert told["local_loss"] < before["local_loss"]
    assert contents(learned / "node0") == there
