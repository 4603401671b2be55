"""The fault history of a run: sorted, without contradiction for any world, the same for the same seed."""

from __future__ import annotations

from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from world_specs import NODES, worlds

from p2pfl.errors import UserError
from sim import (
    ChurnSpec,
    Crash,
    CrashSpec,
    Join,
    JoinSpec,
    PartitionSpec,
    Rejoin,
    Restart,
    Separate,
    WorldSpec,
    plan_faults,
    settle,
)

S = 1_000_000_000


def test_each_fault_becomes_its_events_in_order():
    world = WorldSpec(
        partitions=(
            PartitionSpec(groups=((1,), (0,)), at_s=3, until_s=4),
            PartitionSpec(groups=((2, 0),), at_s=1, until_s=3),
        ),
        crashes=(CrashSpec(nodes=(0,), at_s=3), CrashSpec(nodes=(1, 2), at_s=1, down_s=2, amnesia=True)),
        joins=(JoinSpec(nodes=(1,), at_s=0.5),),
    )
    plan = plan_faults(world, 4, seed=0)
    assert plan.faults == (
        Join(time_ns=S // 2, node=1),
        Separate(time_ns=S, groups=((0, 2), (1, 3))),
        Crash(time_ns=S, node=1, amnesia=True, returns=True),
        Crash(time_ns=S, node=2, amnesia=True, returns=True),
        Rejoin(time_ns=3 * S),
        Separate(time_ns=3 * S, groups=((0,), (1,), (2, 3))),
        Restart(time_ns=3 * S, node=1),
        Restart(time_ns=3 * S, node=2),
        Crash(time_ns=3 * S, node=0, amnesia=False, returns=False),
        Rejoin(time_ns=4 * S),
    )
    assert (plan.late, plan.crashing, plan.gone) == ({1}, {0, 1, 2}, {0})


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), seed=st.integers(0, 2**64))
def test_faults_are_sorted_and_consistent_in_any_world(world, seed):
    try:
        world = settle(world, NODES, seed)
    except UserError:
        reject()
    plan = plan_faults(world, NODES, seed)
    assert plan == plan_faults(world, NODES, seed)
    times = [fault.time_ns for fault in plan.faults]
    assert times == sorted(times)
    assert all(type(time) is int and 0 < time < 2**63 for time in times)
    up, separated, crashed = set(range(NODES)) - plan.late, False, set()
    started = set(up)
    for fault in plan.faults:
        match fault:
            case Join(node=node):
                assert node in plan.late - started
                started.add(node)
                up.add(node)
            case Crash(node=node):
                assert node in up
                up.remove(node)
                crashed.add(node)
            case Restart(node=node):
                assert node in started - up
                up.add(node)
            case Separate(groups=groups):
                assert not separated
                assert sorted(node for group in groups for node in group) == list(range(NODES))
                assert len(groups) >= 2
                separated = True
            case Rejoin():
                assert separated
                separated = False
    assert not separated
    assert crashed == plan.crashing
    assert set(range(NODES)) - up == plan.gone


def test_churn_has_the_times_and_the_amnesia_it_was_asked_for():
    """In 2,000 crashes of means 3 and 1 second and amnesia 0.25, means are within four standard errors."""
    world = settle(WorldSpec(churn=ChurnSpec(up_s=3, down_s=1, until_s=800, amnesia=0.25)), 10, seed=1)
    faults = plan_faults(world, 10, seed=1).faults
    up, down, forgot = [], [], []
    since = dict.fromkeys(range(10), 0)
    for fault in faults:
        (up if isinstance(fault, Crash) else down).append((fault.time_ns - since[fault.node]) / S)
        since[fault.node] = fault.time_ns
        if isinstance(fault, Crash):
            forgot.append(fault.amnesia)
    assert 1800 < len(up) < 2200
    assert abs(sum(up) / len(up) - 3) < 4 * 3 / len(up) ** 0.5
    assert abs(sum(down) / len(down) - 1) < 4 / len(down) ** 0.5
    assert abs(sum(forgot) / len(forgot) - 0.25) < 4 * 0.44 / len(forgot) ** 0.5
    assert max(fault.time_ns for fault in faults if isinstance(fault, Crash)) < 800 * S
    assert len({fault.time_ns for fault in faults}) == len(faults), "each node has a churn of its own"


def test_the_churn_of_one_node_does_not_depend_on_who_else_churns():
    def of_node_3(*nodes):
        churn = ChurnSpec(nodes=nodes, up_s=3, down_s=1, until_s=100)
        return [fault for fault in plan_faults(WorldSpec(churn=churn), 10, 5).faults if fault.node == 3]

    assert of_node_3(3)
    assert of_node_3(3) == of_node_3(1, 2, 3, 9)


def test_churn_begins_after_the_join_and_keeps_clear_of_a_crash():
    world = WorldSpec(
        joins=(JoinSpec(nodes=(0,), at_s=50),),
        crashes=(CrashSpec(nodes=(0,), at_s=60, down_s=30),),
        churn=ChurnSpec(nodes=(0,), up_s=1, down_s=1, until_s=100),
    )
    faults = plan_faults(world, 2, seed=0).faults
    assert faults[0] == Join(time_ns=50 * S, node=0)
    within = [fault for fault in faults if 60 * S <= fault.time_ns <= 90 * S]
    assert within == [
        Crash(time_ns=60 * S, node=0, amnesia=False, returns=True),
        Restart(time_ns=90 * S, node=0),
    ]
    assert len(faults) > 10
