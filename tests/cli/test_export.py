"""`p2pfl export` writes what a plain torch module reads, whole or not at all."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys

import pytest
import safetensors
import torch
from safetensors.torch import load, load_file

from p2pfl.learn import load_digits


@pytest.fixture(scope="module")
def net(learned):
    """The user's own module, from his own file."""
    return runpy.run_path(str(learned / "task.py"))["Net"]


def test_a_plain_torch_module_loads_it_and_is_as_good(p2pfl, learned, net, tmp_path):
    told = json.loads(p2pfl("evaluate", learned / "node0", "--format", "json").out)
    assert p2pfl("export", learned / "node0", "-o", "m.safetensors").code == 0
    module = net()
    module.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    module.eval()
    _, (inputs, targets) = load_digits()
    with torch.no_grad():
        hits = (module(inputs).argmax(dim=1) == targets).float().mean()
    assert float(hits) == pytest.approx(told["accuracy"])


def test_names_shapes_and_dtypes_are_those_of_the_state_dict(p2pfl, learned, net, tmp_path):
    p2pfl("export", learned / "node0", "-o", "m.safetensors")
    wanted = {name: (t.dtype, t.shape) for name, t in net().state_dict().items()}
    found = load_file(tmp_path / "m.safetensors")
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == wanted
    assert found["norm.num_batches_tracked"] > 0
    assert torch.equal(found["again.weight"], found["out.weight"])


def test_the_file_says_where_it_comes_from(p2pfl, learned, tmp_path):
    p2pfl("export", learned / "node0", "-o", "m.safetensors")
    with safetensors.safe_open(tmp_path / "m.safetensors", "pt") as file:
        said = file.metadata()
    assert said.pop("software").startswith("p2pfl")
    assert said == {"format": "pt", "federation": "ward", "node": "node0", "rounds": "3", "version": "3"}


@pytest.mark.long
def test_a_dash_is_stdout(learned):
    command = [sys.executable, "-m", "p2pfl.cli.main", "export", str(learned / "node0"), "-o", "-"]
    outcome = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert "out.weight" in load(outcome.stdout)


def test_the_file_is_for_its_owner_alone_even_where_it_replaces_an_open_one(p2pfl, learned, tmp_path):
    """What is learned tells of the data."""
    file = tmp_path / "m.safetensors"
    before = os.umask(0)
    try:
        for arguments in ((), ("--force",)):
            assert p2pfl("export", learned / "node0", "-o", file, *arguments).code == 0
            assert file.stat().st_mode & 0o777 == 0o600
            file.chmod(0o644)
    finally:
        os.umask(before)


def test_a_file_that_is_there_is_kept_unless_forced(p2pfl, learned, tmp_path):
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"mine")
    outcome = p2pfl("export", learned / "node0", "-o", file)
    assert outcome.code == 2
    assert "--output: already exists" in outcome.err
    assert file.read_bytes() == b"mine"
    assert p2pfl("export", learned / "node0", "-o", file, "--force").code == 0
    assert load_file(file)


@pytest.mark.parametrize("output", ["none/m", "."])
def test_where_no_file_can_be_is_the_users_mistake(p2pfl, learned, output):
    outcome = p2pfl("export", learned / "node0", "-o", output)
    assert outcome.code == 2
    assert outcome.err.startswith("error: --output: ")


def test_a_full_disk_leaves_the_old_file_and_no_other(p2pfl, learned, tmp_path, monkeypatch):
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"mine")

    def refuse(_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("os.fsync", refuse)
    outcome = p2pfl("export", learned / "node0", "-o", file, "--force")
    assert outcome.code == 1
    assert "No space left on device" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    assert file.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "m"], "--format: the task's models have no such format (found 'peft'); allowed: safetensors"),
        (["-o", "-"], "--output: this format is a folder (found '-'); allowed: a new folder"),
        (["-o", "no/m"], "--output: no such folder (found 'no')"),
    ],
)
def test_a_folder_is_only_for_a_task_that_has_one(p2pfl, learned, tmp_path, words, said):
    outcome = p2pfl("export", learned / "node0", "--format", "peft", *words)
    assert (outcome.code, said in outcome.err, list(tmp_path.iterdir())) == (2, True, []), outcome.err
