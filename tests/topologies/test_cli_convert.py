"""`topology convert` as a command of its own."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from topologies import TopologyError, build
from topologies.cli import topology
from topologies.files import read_topology


def call(*arguments, text=None):
    return CliRunner().invoke(topology, [str(word) for word in arguments], input=text, catch_exceptions=False)


def test_a_family_can_be_written_and_a_file_written_anew(tmp_path):
    result = call("convert", "random-regular", "-n", 10, "--seed", 3, tmp_path / "g.graphml")
    assert (result.stdout, result.stderr) == ("", f"{tmp_path}/g.graphml: nodes 10, edges 20\n")
    call("convert", tmp_path / "g.graphml", tmp_path / "g.npz")
    assert read_topology(tmp_path / "g.npz") == build("random-regular", 10, 3)


def test_a_dash_is_standard_input_and_output():
    result = call("convert", "-", "-", "--from", "edgelist", "--to", "adjlist", text="0 1\n1 2\n")
    assert result.stdout == "0 1\n1 2\n2\n"
    written = json.loads(call("convert", "ring", "-n", 3, "-").stdout)
    assert written["graph"] == {"spec": "ring", "seed": 0}
    assert call("convert", "-", "-", "--to", "adjlist", text=json.dumps(written)).stdout == "0 1 2\n1 2\n2\n"


def test_a_bad_source_leaves_the_target_as_it_was(tmp_path):
    (tmp_path / "g.json").write_text("old")
    (tmp_path / "bad.edges").write_text("0 0\n")
    with pytest.raises(TopologyError, match="itself"):
        call("convert", tmp_path / "bad.edges", tmp_path / "g.json")
    assert (tmp_path / "g.json").read_text() == "old"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring", "-n", "5", "g.csv"], "suffix"),
        (["ring", "-n", "5", "g", "--to", "jsn"], "unknown format.*did you mean 'json'"),
        (["ring", "g.json"], "-n N"),
        (["ring", "-n", "5", "-", "--to", "npz"], "needs a file"),
        (["complete", "-n", "100000", "g.json"], "more than can be held"),
        (["no/such/file", "g.json"], "No such file"),
    ],
)
def test_what_cannot_be_converted_says_why(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TopologyError, match=message):
        call("convert", *arguments)
    assert list(tmp_path.iterdir()) == []
