"""A mistake is a line that names the option or the file, before anything has run."""

from __future__ import annotations

import pytest

MISTAKES = {
    "--topology rng": "--topology: unknown topology (found 'rng'); allowed: did you mean 'ring'?",
    "--topology hypercube --nodes 12": "--nodes: no hypercube of this size (found 12)",
    "--partition half": "--partition: no such partition (found 'half')",
    "--rule hampl": "--rule: unknown rule 'hampl': did you mean hampel? (found 'hampl'); allowed: mean",
    "--compressor q3": "--compressor: unknown stage 'q3': ",
    "--byzantine 8 --attack nan": "--byzantine: not all of the 8 nodes can lie (found 8); allowed: 0 to 7",
    "--byzantine 2": "--byzantine: liars with no attack; allowed: with an attack: sign-flip[:SCALE],",
    "--attack nan": "--attack: an attack without liars (found 'nan'); allowed: with a number of byzantine nodes",
    "--world nix.toml": "nix.toml: cannot be read: No such file or directory",
    "--world random": "--world: random worlds are gone (found 'random'); allowed: a file; `python tests/faults",
    "--clock apart": "--clock: is for runs with --arrays (found 'apart'); allowed: with --arrays",
    "--arrays --references": "--references: is for runs without --arrays (found True); allowed: without --arrays",
    "--byzantine 1 --attack sign-flop": "--attack: no such attack; did you mean sign-flip?",
    "--report nix/r.json": "--report: no such folder (found 'nix'); allowed: a folder that exists",
    "--report .": "--report: is a folder (found '.'); allowed: a file",
    "nix": "nix: cannot be read: No such file or directory",
}


@pytest.fixture
def unused(monkeypatch):
    """Nothing may be simulated."""

    def simulate(*_, **__):
        raise AssertionError("this should not have come so far")

    monkeypatch.setattr("sim.simulation.simulate", simulate)


@pytest.mark.parametrize(("options", "text"), MISTAKES.items())
def test_a_mistake_is_named_and_nothing_runs(p2pfl, unused, options, text):
    outcome = p2pfl("sim", "run", *options.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {text}")


@pytest.mark.parametrize("options", [("--nodes", "1"), ("--rounds", "0"), ("--seed", "-1")])
def test_a_number_out_of_range_is_refused_with_its_option(p2pfl, unused, options):
    outcome = p2pfl("sim", "run", *options)
    assert outcome.code == 2
    assert f"'{options[0]}'" in outcome.err


@pytest.mark.parametrize("option", ["--replay", "--workers", "--limit-s", "--plot", "--no-batching"])
def test_an_option_that_is_gone_says_what_to_use(p2pfl, unused, option):
    outcome = p2pfl("sim", "run", option, "2")
    assert outcome.code == 2
    assert f"{option} is gone: " in outcome.err


def test_a_graph_in_parts_is_code_3(p2pfl, unused):
    outcome = p2pfl("sim", "run", "--nodes", 30, "--topology", "erdos-renyi:p=0.01")
    assert outcome.code == 3
    assert outcome.err.startswith("error: --topology: this graph on 30 nodes falls into")


def test_without_a_file_a_mistake_names_no_file(p2pfl):
    outcome = p2pfl("sim", "run", "--partition", "shards:1000")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: --partition: 8000 shards of 1437 samples")


def test_a_mistake_in_the_file_names_the_file(p2pfl, ward):
    path = ward()
    path.write_text(path.read_text().replace("rounds = 6", "rounds = 0"), encoding="utf-8")
    outcome = p2pfl("sim", "run", path)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {path}: training.rounds: impossible value (found 0)")


def test_a_partition_of_a_task_that_has_none_is_refused(p2pfl, ward):
    outcome = p2pfl("sim", "run", ward(), "--partition", "iid")
    assert (outcome.code, outcome.out) == (2, "")
    assert "partition" in outcome.err


@pytest.mark.long
def test_a_compressor_that_does_not_fit_is_the_options_and_not_the_files(p2pfl):
    """The file says another one."""
    p2pfl("new", "ward")
    outcome = p2pfl("sim", "run", "ward", "--rounds", "1", "--compressor", "top-k:99999")
    assert outcome.code == 2
    assert "error: --compressor: 99999 values to keep, of 2410 that are shared (found 'top-k:99999')" in outcome.err
