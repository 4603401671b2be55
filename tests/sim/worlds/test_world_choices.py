"""What chance chooses: as many as asked for, from those who may be chosen, the same for the same seed."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from sim import ChurnSpec, CrashSpec, JoinSpec, LiarSpec, SlowNodes, WorldSpec, check_world, require_settled, settle

CHANCE = WorldSpec(
    slow=(SlowNodes(nodes=(0,), far_s=1), SlowNodes(count=9, speed=0.5)),
    crashes=(CrashSpec(count=5, at_s=2, down_s=1), CrashSpec(nodes=(3,), at_s=2), CrashSpec(count=3, at_s=2.5)),
    churn=ChurnSpec(up_s=10, down_s=1, until_s=20),
    joins=(JoinSpec(count=4, at_s=1), JoinSpec(count=6, at_s=0.5)),
    liars=LiarSpec(attack="sign-flip", count=1),
)


@pytest.mark.parametrize("seed", range(20))
def test_every_choice_is_made_and_none_contradicts_another(seed):
    world = settle(CHANCE, 10, seed)
    assert check_world(world, 10) == []
    require_settled(world)
    assert world.slow[1].nodes == tuple(range(1, 10))
    assert sorted(world.joins[0].nodes + world.joins[1].nodes) == list(range(10))
    assert [len(crash.nodes) for crash in world.crashes] == [5, 1, 3]
    liars = set(world.liars.nodes)
    chosen_crashes = {*world.crashes[0].nodes, *world.crashes[2].nodes}
    assert len(liars) == 1
    assert len(chosen_crashes) == 8
    assert not chosen_crashes & (liars | {3})
    assert set(world.churn.nodes) == set(range(10)) - liars
    assert settle(world, 10, seed + 1) == world


def test_the_seed_decides():
    worlds = [settle(CHANCE, 10, seed) for seed in (0, 0, 1, 2, 3)]
    assert worlds[0] == worlds[1]
    assert len({world.liars.nodes for world in worlds}) > 1


def test_more_of_one_kind_moves_no_other_choice():
    more = WorldSpec(joins=CHANCE.joins, liars=LiarSpec(attack="sign-flip", count=4))
    assert settle(more, 10, 3).joins == settle(CHANCE, 10, 3).joins


@pytest.mark.parametrize(
    ("world", "key"),
    [
        (WorldSpec(joins=(JoinSpec(count=6, at_s=1), JoinSpec(count=5, at_s=2))), "join[1].count"),
        (WorldSpec(crashes=(CrashSpec(count=6, at_s=1), CrashSpec(count=5, at_s=2))), "crash[1].count"),
        (
            WorldSpec(
                liars=LiarSpec(attack="sign-flip", count=5), churn=ChurnSpec(count=6, up_s=1, down_s=1, until_s=1)
            ),
            "churn.count",
        ),
    ],
)
def test_too_few_to_choose_from_is_the_users_mistake(world, key):
    with pytest.raises(UserError, match="to choose from") as caught:
        settle(world, 10, 0)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "world",
    [WorldSpec(liars=LiarSpec(attack="sign-flip", count=1)), WorldSpec(churn=ChurnSpec(up_s=1, down_s=1, until_s=1))],
)
def test_what_is_not_settled_cannot_be_used_by_mistake(world):
    with pytest.raises(ValueError, match="not settled"):
        require_settled(world)


def test_churn_of_nobody_stays_so():
    churn = ChurnSpec(count=0, up_s=1, down_s=1, until_s=1)
    assert settle(WorldSpec(churn=churn), 10, 0).churn.nodes == ()
