"""What a sweep file may say, and how a mistake in it is named."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from sim import load_sweep


def test_a_whole_file_is_read(write):
    write("", "federation.toml")
    file = load_sweep(
        write(
            '[sweep]\nbase = "federation.toml"\nseeds = 5\nnodes = 20\nlearning_rate = 1\n'
            '[axes]\ntopology = ["ring", "random-regular:degree=4"]\nbyzantine = [0, 2]\n'
        )
    )
    assert file.seeds == (0, 1, 2, 3, 4)
    assert file.fixed == {"base": "federation.toml", "nodes": 20, "learning_rate": 1.0}
    assert file.axes == {"topology": ("ring", "random-regular:degree=4"), "byzantine": (0, 2)}


def test_a_file_may_be_empty(write):
    file = load_sweep(write(""))
    assert (file.axes, file.fixed, file.seeds) == ({}, {}, (0, 1, 2))


def test_seeds_may_be_listed(write):
    assert load_sweep(write("[sweep]\nseeds = [7, 3]")).seeds == (7, 3)


@pytest.mark.parametrize(
    ("text", "key", "told"),
    [
        ("[sweeps]\n", "sweeps", "did you mean 'sweep'"),
        ("[sweep]\nnode = 3\n", "sweep.node", "did you mean 'nodes'"),
        ("[sweep]\nnodes = 1\n", "sweep.nodes", "a whole number from 2"),
        ("[sweep]\nseeds = 0\n", "sweep.seeds", "how many"),
        ("[sweep]\nseeds = [1, 1]\n", "sweep.seeds", "different"),
        ("[sweep]\nskip_impossible = 1\n", "sweep.skip_impossible", "is gone"),
        ("sweep = 3\n", "sweep", "[sweep]"),
        ("[axes]\ntopologies = ['ring']\n", "axes.topologies", "did you mean 'topology'"),
        ("[axes]\ntopology = 'ring'\n", "axes.topology", "a list"),
        ("[axes]\nnodes = [10, 'many']\n", "axes.nodes[1]", "a whole number from 2"),
        ("[axes]\ncompressor = ['q4', 'q5']\n", "axes.compressor[1]", "q8"),
        ("[axes]\nnodes = [10, 20, 10]\n", "axes.nodes", "twice"),
        ("[axes]\ntopology = ['ring', 'rign']\n", "axes.topology[1]", "did you mean 'ring'"),
        ("[axes]\nseed = [1, 2]\n", "axes.seeds", "sweep.seeds"),
        ("[sweep]\nbase = 'nothing.toml'\n", "sweep.base", "no such file"),
        ("[axes]\nworld = ['none', 'nothing.toml']\n", "axes.world[1]", "no such file"),
        ("[sweep]\nrounds = 3\n[axes]\ntime_s = [1.0]\n", "time_s", "one of the two"),
    ],
)
def test_a_mistake_names_file_key_and_what_is_allowed(write, text, key, told):
    path = write(text)
    with pytest.raises(UserError) as caught:
        load_sweep(path)
    assert (caught.value.file, caught.value.key) == (str(path), key)
    assert told in str(caught.value)


def test_all_mistakes_are_told_at_once(write):
    with pytest.raises(ExceptionGroup) as caught:
        load_sweep(write("[sweep]\nnodes = 1\nrounds = 0\n"))
    assert [one.key for one in caught.value.exceptions] == ["sweep.nodes", "sweep.rounds"]


def test_what_is_not_toml_is_refused_with_its_line(write):
    with pytest.raises(UserError, match=r"sweep\.toml:2.*not TOML"):
        load_sweep(write("[sweep]\nnodes = \n"))


def test_a_product_beyond_all_patience_is_refused(write):
    axis = list(range(2, 402))
    with pytest.raises(UserError, match="160000"):
        load_sweep(write(f"[axes]\nnodes = {axis}\nrounds = {axis}\n"))
