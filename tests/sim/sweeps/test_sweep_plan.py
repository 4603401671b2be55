"""From axes to runs, and what happens to combinations that cannot be."""

from __future__ import annotations

import fake_jobs
import pytest

from p2pfl.errors import UserError
from sim import check_plan, load_sweep
from sim.sweeps.plan import make_plan


def plan_of(path):
    return make_plan(load_sweep(path))


def test_every_combination_has_a_run_for_each_seed(write):
    plan = plan_of(write("[sweep]\nseeds = 3\n[axes]\nnodes = [10, 20]\ncompressor = ['none', 'q8', 'q4']\n"))
    assert len(plan.combinations) == 6
    assert len(plan.jobs) == 18
    assert [job.seed for job in plan.combinations[0].jobs] == [0, 1, 2]


def test_without_axes_there_is_one_combination(write):
    assert [one.values for one in plan_of(write("[sweep]\nseeds = 2\n")).combinations] == [{}]


def test_an_axis_goes_before_the_fixed_value(write):
    plan = plan_of(write("[sweep]\nnodes = 5\n[axes]\nnodes = [10, 20]\n"))
    assert {job.options["nodes"] for job in plan.jobs.values()} == {10, 20}


def test_combinations_that_mean_the_same_share_their_runs(write):
    """No liars, whatever their attack, are the same run as liars that do not lie."""
    plan = plan_of(write("[sweep]\nseeds = 1\n[axes]\nattack = ['none', 'sign-flip']\nbyzantine = [0, 2]\n"))
    assert len(plan.combinations) == 4
    assert len(plan.jobs) == 2


def test_a_combination_that_cannot_be_is_refused_by_name(write):
    path = write("[sweep]\nseeds = 2\n[axes]\ntopology = ['ring', 'torus']\nnodes = [7, 9]\n")
    with pytest.raises(UserError, match=r"1 of 4 combinations.*\n  topology=torus, nodes=7: .*prime") as caught:
        check_plan(plan_of(path), fake_jobs.check, known=())
    assert (caught.value.file, caught.value.key) == (str(path), "axes")


def test_the_same_complaint_of_many_is_told_once(write):
    path = write("[axes]\ntopology = ['torus']\nnodes = [7]\ncompressor = ['none', 'q8', 'q4']\n")
    with pytest.raises(UserError) as caught:
        check_plan(plan_of(path), fake_jobs.check, known=())
    assert str(caught.value).count("prime") == 1
    assert "compressor=none (and 2 more)" in str(caught.value)


def test_what_is_known_is_not_built_again(write):
    plan = plan_of(write("[sweep]\nseeds = 2\n"))
    first, second = plan.jobs
    built = []
    check_plan(plan, lambda job: built.append(job.key), known={first})
    assert built == [second]
