"""Actions run in the order of their times and never early; the clock says what the core would compute."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim import NS, Kernel


def scheduled(times):
    """A kernel, and the list into which the actions at these nanoseconds write their places."""
    kernel, done = Kernel(), []
    for place, time_ns in enumerate(times):
        kernel.at_ns(time_ns, partial(done.append, place))
    return kernel, done


def test_a_time_that_has_passed_means_now():
    kernel, done = Kernel(), []
    kernel.at_ns(100, lambda: (kernel.at_ns(3, lambda: done.append(kernel.now_ns)), kernel.at(0.0, lambda: None)))
    kernel.run(1000)
    assert done == [100]
    assert kernel.now_ns == 100


@given(st.floats(0.0, 1e9), st.integers(0, 10**18))
@example(0.1 + 0.2, 0)
@example(86400.000000001, 0)
@example(123456789.12345678, 0)
def test_a_deadline_has_passed_as_the_core_compares_it_when_its_action_runs_and_not_long_ago(time_s, from_ns):
    kernel, seen = Kernel(), []
    kernel.now_ns = from_ns
    kernel.at(time_s, lambda: seen.append(kernel.now))
    kernel.step()
    assert seen[0] >= time_s
    assert kernel.now_ns == from_ns or (kernel.now_ns - 1) / NS < time_s or kernel.now_ns == int(time_s * NS)


@given(st.floats(0.0, 1e5), st.integers(0, 10**14))
def test_a_delay_has_passed_too(delay_s, from_ns):
    kernel, seen = Kernel(), []
    kernel.now_ns = from_ns
    began = kernel.now
    kernel.after(delay_s, lambda: seen.append(kernel.now))
    kernel.step()
    assert seen[0] >= began + delay_s


def test_a_run_includes_its_end_and_leaves_the_rest():
    kernel, done = scheduled([10, 20, 30])
    assert kernel.run(20) is False
    assert done == [0, 1]
    assert kernel.now_ns == 20
    assert kernel.pending == 1
    kernel.run(29)
    assert (done, kernel.now_ns) == ([0, 1], 29)


def test_time_stands_still_where_nothing_more_will_happen():
    kernel, done = scheduled([10])
    kernel.run(10**15)
    assert done == [0]
    assert kernel.now_ns == 10


def test_a_run_ends_right_after_the_action_that_makes_stop_true():
    kernel, done = scheduled([10, 20, 20, 30])
    assert kernel.run(1000, stop=lambda: len(done) == 2) is True
    assert done == [0, 1]
    assert kernel.now_ns == 20


@pytest.mark.parametrize("end_ns", [0, 999])
def test_steps_and_a_run_do_the_same(end_ns):
    times = [Random(2).randrange(1000) for _ in range(100)]
    stepped, steps = scheduled(times)
    ran, runs = scheduled(times)
    while stepped.step():
        pass
    ran.run(end_ns)
    ran.run(1000)
    assert steps == runs
    assert stepped.now_ns == ran.now_ns


@pytest.mark.parametrize("slice_ns", [1_000, 150_000, 40_000_000])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_actions_schedule_near_and_far_the_order_is_that_of_one_sorted_list(seed, slice_ns):
    delays = [0, 1, 5_000, 100_000, 1 << 17, 3_000_000]
    kernel, random, done, waiting = Kernel(), Random(seed), [], []

    def schedule(delay_ns):
        entry = (kernel.now_ns + delay_ns, len(done) + len(waiting))
        waiting.append(entry)
        kernel.at_ns(entry[0], partial(act, entry))

    def act(entry):
        assert entry == min(waiting)
        assert kernel.now_ns == entry[0]
        waiting.remove(entry)
        done.append(entry)
        for _ in range(random.randrange(3) if len(done) < 400 else 0):
            schedule(random.choice(delays) + random.randrange(2_000))

    for _ in range(10):
        schedule(random.choice(delays))
    while waiting:
        assert kernel.next_ns == min(waiting)[0]
        assert (kernel.pending, kernel.events) == (len(waiting), len(done))
        kernel.run(kernel.now_ns + slice_ns)
        if random.random() < 0.1 and len(done) < 400:
            schedule(random.randrange(1_000_000))
    assert kernel.pending == 0
    assert len(done) >= 10
