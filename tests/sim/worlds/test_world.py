"""`World(...)`: a world file as keywords, and mistakes said as for a file."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from sim import COMPUTE, LINKS, RUN, World, read_world

NAMES = [f"node{index}" for index in range(8)]
TEXT = """
[compute]
speed = "log-uniform:1,10"
[links]
loss = 0.1
[run]
limit_s = 60.0
[[crash]]
nodes = "node3"
at_s = 1.0
down_s = 0.5
[churn]
fraction = 0.25
up_s = 10.0
down_s = 1.0
until_s = 30.0
"""


def test_keywords_say_what_the_file_says(tmp_path, federation_of):
    file = tmp_path / "world.toml"
    file.write_text(TEXT, encoding="utf-8")
    said = World(
        speed="log-uniform:1,10",
        loss=0.1,
        limit_s=60.0,
        crash=[{"nodes": "node3", "at_s": 1.0, "down_s": 0.5}],
        churn={"fraction": 0.25, "up_s": 10.0, "down_s": 1.0, "until_s": 30.0},
    )
    assert said.document == World.from_file(file).document
    federation = federation_of(NAMES)
    names = [member.name for member in federation.members]
    from_file = read_world(file, federation)
    for field in ("compute", "links", "crashes", "churn", "limit_s"):
        assert getattr(said.spec(names), field) == getattr(from_file, field)


def test_no_two_keys_of_a_file_are_one_keyword():
    assert len({*COMPUTE, *LINKS, *RUN}) == len(COMPUTE) + len(LINKS) + len(RUN)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"los": 1}, "World: los: unknown key; did you mean 'loss'"),
        ({"loss": 2}, r"World: loss: impossible value \(found 2\); allowed: a probability"),
        ({"crash": [{"nodes": "nobody", "at_s": 1.0}]}, r"World: crash\[0\].nodes: no such node"),
        ({"crash": {"at_s": 1.0}}, "World: crash: must be a list of tables"),
        ({"liars": {"count": 1, "attack": "fib"}}, "World: liars.attack: no such attack"),
    ],
)
def test_a_mistake_is_named_by_its_keyword(conditions, said):
    with pytest.raises(UserError, match=said):
        World(**conditions).spec(NAMES)


def test_dictionaries_of_other_kinds_are_taken():
    """Tuples: what a program has at hand."""
    world = World(partition=({"groups": (("0-3",), ("4-7",)), "at_s": 1, "until_s": 2},))
    assert world.spec(NAMES).partitions[0].groups == ((0, 1, 2, 3), (4, 5, 6, 7))
