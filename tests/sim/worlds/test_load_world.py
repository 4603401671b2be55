"""A world file: what it may say, in how many ways nodes are named, and how each mistake is refused."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from sim import (
    ChurnSpec,
    ComputeSpec,
    CrashSpec,
    JoinSpec,
    LiarSpec,
    LinkSpec,
    PartitionSpec,
    SlowNodes,
    Spread,
    WorldSpec,
    read_world,
)

EVERYTHING = """
[compute]
step_s = 0.01
speed = "log-uniform:0.1,1"
jitter = 0.2
engine_s = 0.001

[links]
latency_s = "uniform:0.001,0.05"
jitter_s = 0.01
bandwidth = 125_000
loss = 0.05
duplication = 0.01
redial_s = 0.5

[[slow]]
nodes = "node9"
far_s = 0.2
bandwidth = 1000
speed = 0.5

[[partition]]
groups = ["0-4", ["5-8", "node9"]]
at_s = 10
until_s = 20

[[crash]]
nodes = [1, "2", "node3"]
at_s = 5
down_s = 2
amnesia = true

[[crash]]
count = 2
at_s = 6
down_s = "none"

[churn]
fraction = 0.3
up_s = 60
down_s = 5
until_s = 600
amnesia = 0.1

[[join]]
nodes = "7-8, 0"
at_s = 1.5

[liars]
attack = "noise:0.5"
fraction = 0.1

[run]
evaluate_every_s = 2
limit_s = 1000
"""


def test_every_key_arrives_in_the_world(load):
    world = load(EVERYTHING)
    assert world == WorldSpec(
        path=world.path,
        compute=ComputeSpec(
            step_s=0.01, speed=Spread(kind="log-uniform", low=0.1, high=1.0), jitter=0.2, engine_s=0.001
        ),
        links=LinkSpec(
            latency_s=Spread(kind="uniform", low=0.001, high=0.05),
            jitter_s=0.01,
            bandwidth=125_000,
            loss=0.05,
            duplication=0.01,
            redial_s=0.5,
        ),
        slow=(SlowNodes(nodes=(9,), far_s=0.2, bandwidth=1000.0, speed=0.5),),
        partitions=(PartitionSpec(groups=((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)), at_s=10.0, until_s=20.0),),
        crashes=(
            CrashSpec(nodes=(1, 2, 3), at_s=5.0, down_s=2.0, amnesia=True),
            CrashSpec(count=2, at_s=6.0, down_s=None),
        ),
        churn=ChurnSpec(count=3, up_s=60.0, down_s=5.0, until_s=600.0, amnesia=0.1),
        joins=(JoinSpec(nodes=(0, 7, 8), at_s=1.5),),
        liars=LiarSpec(attack="noise:0.5", count=1),
        evaluate_every_s=2.0,
        limit_s=1000.0,
    )


def test_an_empty_file_is_the_default_world(load):
    world = load("")
    assert world == WorldSpec(path=world.path)


@pytest.mark.parametrize(
    "nodes", ['"2-4"', "[2, 3, 4]", '["2", "3-4"]', '"2,3,4"', '"node2, node3, 4"', '["node4", "2 - 3"]']
)
def test_nodes_are_named_by_name_index_or_range(load, nodes):
    assert load(f"[[join]]\nat_s = 1\nnodes = {nodes}").joins[0].nodes == (2, 3, 4)


def test_where_members_are_called_by_other_numbers_only_names_count(write, federation_of):
    federation = federation_of(["1", "2", "3"])
    world = read_world(write('[[join]]\nat_s = 1\nnodes = ["1", "3"]'), federation)
    assert world.joins[0].nodes == (0, 2)
    for nodes in ("1", '"1-2"', '"0"'):
        with pytest.raises(UserError, match=r"no such node.*allowed: a member's name \(1 to 3\)"):
            read_world(write(f"[[join]]\nat_s = 1\nnodes = {nodes}"), federation)


def test_a_name_that_looks_like_a_range_is_a_name(write, federation_of):
    world = read_world(write('[[join]]\nat_s = 1\nnodes = "0-1"'), federation_of(["a", "b", "0-1"]))
    assert world.joins[0].nodes == (2,)


def test_a_spread_between_equal_ends_is_constant(load):
    assert load('[compute]\nspeed = "uniform:2,2"').compute.speed == Spread(low=2.0, high=2.0)


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("[link]", "link", "did you mean 'links'"),
        ("[links]\nlos = 0.1", "links.los", "did you mean 'loss'"),
        ("[links]\nloss = 1.1", "links.loss", "a probability, from 0 to 1"),
        ("[links]\nlatency_s = -1", "links.latency_s", "found -1"),
        ("[links]\nlatency_s = 'log-uniform:0,1'", "links.latency_s", "log-uniform"),
        ("[links]\nlatency_s = 'uniform:2,1'", "links.latency_s", "X up to Y"),
        ("[links]\nbandwidth = 0", "links.bandwidth", "bytes per second"),
        ("[links]\nredial_s = 0", "links.redial_s", "seconds"),
        ("[compute]\nspeed = 0", "compute.speed", "found 0"),
        ("[compute]\nspeed = 'uniform:nan,2'", "compute.speed", "uniform"),
        ("[compute]\nstep_s = 1\nround_s = 1", "compute.round_s", "one of the two"),
        ("compute = 3", "compute", "must be a table"),
        ("[crash]\nat_s = 1", "crash", "[[crash]]"),
        ("[[crash]]\nnodes = 1", "crash[0].at_s", "is missing"),
        ("[[crash]]\nat_s = 1", "crash[0].nodes", "count, fraction"),
        ("[[crash]]\nat_s = 1\nnodes = 1\ncount = 2", "crash[0].count", "one of the two"),
        ("[[crash]]\nat_s = 1\nnodes = 10", "crash[0].nodes", "index from 0 to 9"),
        ("[[crash]]\nat_s = 1\nnodes = '4-2'", "crash[0].nodes", "found '4-2'"),
        ("[[crash]]\nat_s = 1\nnodes = '0-3, 2'", "crash[0].nodes", "twice"),
        ("[[crash]]\nat_s = 1\nnodes = []", "crash[0].nodes", "names no node"),
        ("[[crash]]\nat_s = 1\nnodes = true", "crash[0].nodes", "no such node"),
        ("[[crash]]\nat_s = 1\nnodes = 1\namnesia = 1", "crash[0].amnesia", "true or false"),
        ("[[crash]]\nat_s = 1\nfraction = 0.01", "crash[0].fraction", "no whole node of 10"),
        ("[[crash]]\nat_s = 1\ncount = 11", "crash[0].count", "from 0 to 10"),
        ("[churn]\nup_s = 1\ndown_s = 1\nuntil_s = inf", "churn.until_s", "found inf"),
        ("[liars]\ncount = 1", "liars.attack", "sign-flip"),
        ("[liars]\ncount = 1\nattack = 'tickle'", "liars.attack", "found 'tickle'"),
        ("[[partition]]\nat_s = 1\nuntil_s = 2\ngroups = '0-4'", "partition[0].groups", "list of groups"),
        ("[[partition]]\nat_s = 1\nuntil_s = 2\ngroups = ['0-4', 'x']", "partition[0].groups[1]", "found 'x'"),
        ("[run]\nlimit_s = 0", "run.limit_s", "seconds"),
    ],
)
def test_a_mistake_names_its_file_key_and_what_is_allowed(write, federation, text, key, says):
    path = write(text)
    with pytest.raises(UserError) as caught:
        read_world(path, federation)
    assert (caught.value.key, says in str(caught.value)) == (key, True), str(caught.value)
    assert str(path.parent) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"[links", "not TOML"),
        (b"[[crash]]\nat_s = 1\nnodes = 0x1" + b"0" * 5000, ":3: a number has too many digits"),
    ],
)
def test_what_is_no_toml_is_refused_in_one_line(write, federation, content, says):
    with pytest.raises(UserError, match=says):
        read_world(write(content), federation)


def test_a_file_that_cannot_be_read_is_the_users_mistake(tmp_path, federation):
    with pytest.raises(UserError, match="cannot be read"):
        read_world(tmp_path, federation)
    with pytest.raises(UserError, match="cannot be read"):
        read_world(tmp_path / "absent.toml", federation)


def test_a_fraction_becomes_the_nearest_count_and_zero_is_nobody(load):
    assert load("[liars]\nattack = 'nan'\nfraction = 0.26").liars.count == 3
    assert load("[liars]\nattack = 'nan'\nfraction = 0").liars.count == 0


def test_speeds_from_a_file_are_gone(write, federation):
    with pytest.raises(UserError, match=r"compute\.trace: is gone.*speed, drawn for each node"):
        read_world(write("[compute]\ntrace = 'a.csv'\n"), federation)
