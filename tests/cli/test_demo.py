"""A mistake in the options of `p2pfl demo` is told by the option's name; the file that it would make is nobody's."""

from __future__ import annotations

import pytest

from p2pfl.cli import PARAMETERS
from p2pfl.config import load_config, load_node
from p2pfl.node import load_learner


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--compressor", "top-k:2411"], "--compressor: 2411 values to keep, of 2410"),
        (["--topology", "rng"], "--topology: unknown topology"),
    ],
)
def test_a_mistake_names_the_option_and_no_file(p2pfl, tmp_path, arguments, said):
    outcome = p2pfl("demo", *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {said}")
    assert "federation.toml" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_all_mistakes_are_told_at_once(p2pfl):
    outcome = p2pfl("demo", "--compressor", "q3", "--rule", "hampl", "--partition", "x")
    told = [line.split(":")[1].strip() for line in outcome.err.splitlines()]
    assert (outcome.code, told) == (2, ["--compressor", "--rule", "--partition"])
    assert "federation.toml" not in outcome.err


def test_a_graph_that_falls_apart_for_this_seed_alone_names_the_option(p2pfl, tmp_path):
    outcome = p2pfl("demo", "--topology", "erdos-renyi:p=0.3", "--seed", "2")
    assert (outcome.code, list(tmp_path.iterdir())) == (3, [])
    assert outcome.err.startswith("error: --topology: this graph on 8 nodes is not connected")


def test_without_torch_it_says_so_and_makes_nothing(p2pfl, tmp_path, monkeypatch):
    monkeypatch.setattr("p2pfl.cli.launch.find_spec", lambda _: None)
    monkeypatch.setattr("p2pfl.cli.launch.run_fleet", lambda *_, **__: 0)
    outcome = p2pfl("demo")
    assert (outcome.code, list(tmp_path.iterdir())) == (1, [])
    assert "this needs torch" in outcome.err


def test_the_number_of_parameters_is_that_of_the_digits(p2pfl, tmp_path):
    p2pfl("new", "ward", "--task", "digits")
    federation = load_config(tmp_path / "ward")
    assert load_learner(federation, load_node(tmp_path / "ward" / "node0", federation)).size == PARAMETERS
