"""Which federation a simulation runs: a file's or the built-in one, with other options."""

import pytest

from p2pfl.config import load_config
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import UserError
from sim import describe, make_job, own_tables, simulate
from sim.sweeps.job import run

FILE = """
[federation]
name = "ward"
seed = 3
topology = "ring"
[training]
time_s = 9.0
[gossip]
compressor = "q8"
"""
EDGE = '[[edge]]\nbetween = ["{}", "{}"]\ncompressor = "q4"\n'
NODE = '[[node]]\nname = "{}"\nkey = "{}"\n'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "federation.toml"
    keys = [public_text(Identity.generate().public) for _ in range(4)]
    path.write_text(FILE + "".join(NODE.format(f"pi{i}", key) for i, key in enumerate(keys)))
    return path


def test_a_file_without_options_is_the_federation_that_launch_runs(file):
    assert describe(file=file) == load_config(file)


@pytest.mark.long
def test_nodes_learn_from_the_data_that_their_folders_name(file):
    """A path is relative to the folder of the node; a member that has no folder has no table."""
    task = '[task]\nname = "csv"\ntarget = "y"\nnumeric = ["x"]\n[training]\nrounds = 2\n'
    file.write_text(file.read_text().replace("[training]\ntime_s = 9.0\n", task))
    federation = describe(file=file)
    assert own_tables(federation) == {}
    for index in range(4):
        folder = file.parent / f"pi{index}"
        folder.mkdir()
        (folder / "node.toml").write_text('[data]\npath = "mine.csv"\n')
        (folder / "mine.csv").write_text("x,y\n" + "1,2\n" * (5 + index))
    assert own_tables(federation)["pi2"] == {"path": file.parent / "pi2" / "mine.csv"}
    report = simulate(federation, data=own_tables(federation), references=False)
    assert [node.samples for node in report.nodes] == [5, 6, 7, 8]


def test_the_nodes_of_a_sweep_learn_from_the_data_that_their_folders_name(file, monkeypatch):
    (file.parent / "pi1").mkdir()
    (file.parent / "pi1" / "node.toml").write_text('[data]\npath = "mine.csv"\n')
    monkeypatch.setattr("sim.simulation.simulate", lambda *_args, data, **_options: data)
    assert run(make_job({"base": str(file)}, 0)) == {"pi1": {"path": file.parent / "pi1" / "mine.csv"}}


def test_options_replace_what_the_file_says_and_nothing_else(file):
    plain, changed = load_config(file), describe(file=file, rounds=7, compressor="none", topology="complete")
    assert (changed.training.rounds, changed.training.time_s) == (7, None)
    assert (changed.gossip.compressor, changed.topology, len(changed.edges)) == ("none", "complete", 6)
    assert changed.members == plain.members
    assert changed.gossip.staleness == plain.gossip.staleness


def test_another_number_of_nodes_has_other_members_and_a_graph_of_that_size(file):
    federation = describe(file=file, nodes=9)
    assert [member.name for member in federation.members] == [f"node{i}" for i in range(9)]
    assert len(federation.edges) == 9
    assert len({member.key for member in federation.members}) == 9


def test_another_graph_keeps_what_the_file_says_of_edges_that_it_has_too(file):
    file.write_text(file.read_text() + "".join(EDGE.format(*ends) for ends in (("pi0", "pi1"), ("pi3", "pi0"))))
    both = {(0, 1): "q4", (0, 3): "q4"}
    assert describe(file=file).edge_compressors == both
    assert describe(file=file, compressor="sign").edge_compressors == both
    assert describe(file=file, topology="path").edge_compressors == {(0, 1): "q4"}
    assert describe(file=file, nodes=5).edge_compressors == {}


@pytest.mark.parametrize("spec", ["ring", "complete"])
def test_more_nodes_than_fit_are_refused_before_one_is_made(spec):
    with pytest.raises(UserError, match="--nodes: so many need") as found:
        describe(nodes=10**15, topology=spec)
    assert found.value.value == 10**15


def test_a_graph_whose_edges_cannot_be_held_is_a_matter_of_the_option():
    with pytest.raises(UserError, match="--nodes: complete on 20000 nodes has 199990000 edges"):
        describe(nodes=20_000, topology="complete")


def test_another_seed_draws_another_random_graph():
    graphs = [describe(nodes=20, topology="random-regular:degree=4", seed=seed).edges for seed in (1, 1, 2)]
    assert graphs[0] == graphs[1] != graphs[2]


def test_a_schedule_is_simulated_with_the_edges_of_each_round():
    federation = describe(nodes=8, topology="one-peer-hypercube")
    assert len(federation.schedule) == 3
    assert len(federation.edges) == 12


def test_the_built_in_digits_are_dealt_out_however_many_nodes_there_are():
    assert describe(nodes=8).task.options == {"partition": "shards:2"}
    assert describe(nodes=2000).task.options == {"partition": "draw:14"}
