"""A right file becomes the values that it says, with the model's defaults for what it leaves out."""

from __future__ import annotations

import pytest

from p2pfl.compress import STAGES, make_compressor
from p2pfl.config import GossipConfig, TaskConfig, TrainingConfig, load_config
from p2pfl.errors import UserError


def minimal(keys):
    nodes = "".join(f'[[node]]\nname = "pi{i}"\nkey = "{key}"\n' for i, key in enumerate(keys))
    return f'[federation]\nname = "ward-7"\n{nodes}'


def test_what_is_left_out_has_the_defaults_of_the_model(write, keys):
    federation = load_config(write(minimal(keys)))
    assert (federation.training, federation.gossip, federation.task) == (TrainingConfig(), GossipConfig(), TaskConfig())
    assert (federation.seed, federation.topology) == (0, "ring")
    assert federation.edges == ((0, 1), (0, 3), (1, 2), (2, 3))


def test_a_folder_stands_for_the_file_in_it(write, keys):
    path = write(minimal(keys))
    assert load_config(path.parent) == load_config(path)


@pytest.mark.parametrize(
    ("given", "rounds", "time_s", "local_steps", "local_epochs"),
    [
        ("", 40, None, 20, None),
        ("time_s = 60", None, 60.0, 20, None),
        ("rounds = 5\nlocal_epochs = 2", 5, None, None, 2),
    ],
)
def test_one_of_two_exclusive_keys_turns_off_the_other(
    *, write, keys, given, rounds, time_s, local_steps, local_epochs
):
    training = load_config(write(minimal(keys) + f"[training]\n{given}\n")).training
    assert (training.rounds, training.time_s) == (rounds, time_s)
    assert (training.local_steps, training.local_epochs) == (local_steps, local_epochs)


@pytest.mark.parametrize(
    ("training", "gossip", "warns"),
    [
        ('closing_rounds = 0\nclosing = "train"', "", True),
        ("closing_rounds = 0", 'rule = "hampel:b=1"', True),
        ("closing_rounds = 0", "", False),
        ('closing = "train"', 'rule = "hampel:b=1"', False),
        ('closing = "train"', "[privacy]\nnoise = 1.0\ndelta = 1e-5\nrounds = 50", False),
    ],
)
def test_where_closing_rounds_count_it_is_said_that_there_are_none(*, write, keys, training, gossip, warns):
    text = minimal(keys) + f"[training]\n{training}\n[gossip]\n{gossip}\n"
    assert ["closing_rounds is 0" in notice for notice in load_config(write(text)).notices] == [True] * warns


def test_closing_rounds_that_a_budget_is_not_for_are_named(write, keys):
    text = minimal(keys) + '[training]\nclosing = "train"\n[privacy]\nnoise = 1.0\ndelta = 1e-5\nrounds = 49\n'
    assert load_config(write(text)).notices == (
        "privacy.rounds is 49: closing rounds that it does not pay for only mix",
    )


@pytest.mark.parametrize(
    ("task", "sums"),
    [
        ('name = "csv"\nmodel = "trees"', "trees"),
        ('name = "digits"\n[privacy]\nepsilon = 3\ndelta = 1e-5\nnoise = "shared"', "shared noise"),
    ],
)
def test_where_rounds_are_sums_no_closing_round_can_train(write, keys, task, sums):
    text = minimal(keys) + f'[training]\nclosing = "train"\nmethod = "plain"\n[task]\n{task}\n'
    with pytest.raises(UserError, match=rf"training.closing: with {sums} each round is a sum"):
        load_config(write(text))


def test_the_keys_of_the_task_are_left_to_the_task(write, keys):
    text = minimal(keys) + '[task]\nname = "task.py:task"\npartition = "shards:2"\nlayers = [8, 8]\n'
    task = load_config(write(text)).task
    assert (task.name, task.options) == ("task.py:task", {"partition": "shards:2", "layers": [8, 8]})


@pytest.mark.parametrize("spec", [stage.shown for stage in STAGES.values()])
def test_every_stage_of_the_catalog_is_accepted_and_can_be_made(write, keys, spec):
    federation = load_config(write(minimal(keys) + f'[gossip]\ncompressor = "{spec}"\n'))
    assert make_compressor(federation.gossip.compressor).spec == federation.gossip.compressor == spec


@pytest.mark.parametrize(
    ("share", "patterns"), [('"head.*"', ("head.*",)), ('["a.*", "b"]', ("a.*", "b")), ('["*"]', ("*",))]
)
def test_what_is_shared_is_one_pattern_or_several(write, keys, share, patterns):
    federation = load_config(write(minimal(keys) + f"[gossip]\nshare = {share}\n"))
    assert federation.gossip.share == patterns


@pytest.mark.parametrize("address", ["pi1.local:8470", "[fe80::1]:8470", "[::1]:1", "10.0.0.7:65535"])
def test_names_and_addresses_of_both_families_are_accepted(write, keys, address):
    text = minimal(keys).replace('name = "pi1"', f'name = "pi1"\naddress = "{address}"')
    assert load_config(write(text)).members[1].address == address


def test_a_graph_file_is_found_beside_the_federation(write, keys, tmp_path, monkeypatch):
    (tmp_path / "graph.edges").write_text("pi0 pi1\npi0 pi2\npi0 pi3\n", encoding="utf-8")
    monkeypatch.chdir("/")
    path = write(minimal(keys).replace("[federation]", '[federation]\ntopology = "graph.edges"'))
    assert load_config(path).edges == ((0, 1), (0, 2), (0, 3))
