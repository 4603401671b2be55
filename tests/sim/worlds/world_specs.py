"""Random worlds for hypothesis, most of them without contradiction."""

from __future__ import annotations

from hypothesis import strategies as st

from sim import ChurnSpec, CrashSpec, JoinSpec, LiarSpec, PartitionSpec, SlowNodes, WorldSpec

NODES = 7
TIMES = st.one_of(st.integers(1, 20).map(float), st.floats(1e-6, 20.0))


@st.composite
def who(draw):
    if draw(st.booleans()):
        return {"count": draw(st.integers(0, 3))}
    return {"nodes": tuple(sorted(draw(st.sets(st.integers(0, NODES - 1), max_size=3))))}


@st.composite
def partitions(draw):
    times = sorted(draw(st.sets(TIMES, max_size=6)))
    found = []
    for begin, end in zip(times[::2], times[1::2], strict=False):
        groups = draw(st.lists(st.integers(0, 2), min_size=NODES, max_size=NODES))
        named = [tuple(node for node in range(NODES) if groups[node] == group) for group in range(2)]
        found.append(PartitionSpec(groups=tuple(group for group in named if group), at_s=begin, until_s=end))
    return tuple(found)


@st.composite
def worlds(draw):
    downs = st.none() | st.floats(1e-6, 5.0)
    churn = st.builds(
        lambda chosen, **times: ChurnSpec(**({} if chosen is None else chosen), **times),
        chosen=st.none() | who(),
        up_s=st.floats(0.05, 20.0),
        down_s=st.floats(1e-6, 5.0),
        until_s=st.floats(0.0, 20.0),
        amnesia=st.floats(0.0, 1.0),
    )
    crash = st.builds(
        lambda chosen, **rest: CrashSpec(**chosen, **rest),
        chosen=who(),
        at_s=TIMES,
        down_s=downs,
        amnesia=st.booleans(),
    )
    join = st.builds(lambda chosen, at_s: JoinSpec(**chosen, at_s=at_s), chosen=who(), at_s=TIMES)
    slow = st.builds(lambda chosen: SlowNodes(**chosen, speed=0.5), chosen=who())
    liars = st.builds(lambda chosen: LiarSpec(**chosen, attack="sign-flip"), chosen=who())
    return WorldSpec(
        partitions=draw(partitions()),
        crashes=tuple(draw(st.lists(crash, max_size=4))),
        joins=tuple(draw(st.lists(join, max_size=2))),
        slow=tuple(draw(st.lists(slow, max_size=2))),
        churn=draw(st.none() | churn),
        liars=draw(st.none() | liars),
    )
