"""What arrays say before a run: its memory, as measured, and the refusal of what does not fit."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from sim import OBJECT_BYTES_PER_NODE, arrays_bytes, check_count, describe, simulate

MEASURED_MB = [
    # nodes, edges, in step, replicas, corrected; the peak of a run of the digits' network (2,410 parameters)
    (1000, 2000, False, True, True, 428),
    (1000, 2000, True, True, True, 384),
    (10_000, 20_000, False, True, True, 1607),
    (10_000, 20_000, True, False, False, 914),
    (10_000, 40_000, True, False, False, 1213),
    (10_000, 10_000, False, True, False, 931),
]


@pytest.mark.parametrize("row", MEASURED_MB)
def test_the_memory_that_is_foreseen_is_that_measured_within_a_quarter(row):
    nodes, edges, in_step, replicas, corrected, peak_mb = row
    shape = {"nodes": nodes, "edges": edges, "size": 2410}
    need = arrays_bytes(**shape, in_step=in_step, replicas=replicas, corrected=corrected)
    assert need / 1e6 == pytest.approx(peak_mb, rel=0.25)


@pytest.mark.parametrize("clock", ["apart", "in-step"])
def test_a_run_says_first_what_it_will_take(clock):
    told = []
    simulate(describe(nodes=8, rounds=2), arrays=True, clock=clock, references=False, on_progress=told.append)
    assert "of CPU for the rounds, " in told[0].foreseen
    assert told[0].foreseen.endswith("MB of memory")
    assert told[0].rounds == 0
    assert not any(progress.foreseen for progress in told[1:])


def test_what_does_not_fit_is_refused_with_the_need_and_what_there_is(monkeypatch):
    federation = describe(nodes=600, topology="random-regular:degree=4", rounds=1)
    monkeypatch.setattr("sim.federations.available_bytes", lambda _root: 300_000_000)
    with pytest.raises(UserError, match=r"600 nodes with 1200 edges .* need about 0\.4 GB; 0\.3 GB of memory are"):
        simulate(federation, arrays=True, references=False)


def test_data_that_cannot_be_put_together_say_how_much_they_need(monkeypatch):
    federation = describe(nodes=4, rounds=1)
    monkeypatch.setattr("sim.federations.available_bytes", lambda _root: 300_000)
    with pytest.raises(UserError, match=r"data, put together, need another 0\.0 GB; 0\.0 GB of memory are available"):
        simulate(federation, arrays=True, references=False)


def test_a_hundred_thousand_nodes_are_refused_to_the_exact_simulator_alone(monkeypatch):
    monkeypatch.setattr("sim.federations.available_bytes", lambda _root: 5_000_000_000)
    check_count(100_000)
    with pytest.raises(UserError, match=r"at least 15\.3 GB"):
        check_count(100_000, each=OBJECT_BYTES_PER_NODE)
