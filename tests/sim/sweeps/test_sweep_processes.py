"""Runs in processes: whatever one of them does, the others come to their end."""

from __future__ import annotations

import fake_jobs
import pytest

from sim import make_job, run_here


def jobs_of(*attacks):
    return [make_job({"attack": attack, "byzantine": 1}, seed) for seed, attack in enumerate(attacks)]


REASONS = {
    "raises": "ValueError: no such thing",
    "user-error": "task.path: nothing to learn from (found 'x.csv')",
    "killed": "its process was killed (SIGKILL: out of memory, or by hand)",
    "leaves": "its process ended by itself (exit code 7)",
}


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
def test_a_failing_run_costs_nothing_but_itself(starts, count):
    """Each is followed by one that ends well, two processes die one after the other, and a bug leaves its traceback."""
    attacks = ["none", "raises", "none", "user-error", "none", "killed", "none", "leaves", "killed", "none"]
    jobs = jobs_of(*attacks)
    ended = {job.seed: outcome for job, outcome in run_here(jobs, fake_jobs.run, count)}
    assert [ended[seed].reason for seed in range(len(jobs))] == [REASONS.get(attack) for attack in attacks]
    assert sorted(starts()) == sorted(job.key for job in jobs)
    assert "Traceback" in ended[1].trace
    assert "fake_jobs.py" in ended[1].trace


def test_a_process_has_one_thread_for_mathematics(starts):
    ((_, outcome),) = run_here(jobs_of("none"), fake_jobs.threads, 1)
    assert b'"OMP_NUM_THREADS": "1"' in outcome.report
    assert b'"OPENBLAS_NUM_THREADS": "1"' in outcome.report


def test_what_a_task_prints_is_no_data(starts, capfd):
    """And no more processes than runs are started."""
    list(run_here(jobs_of("prints"), fake_jobs.run, 64))
    captured = capfd.readouterr()
    assert "words of a task" in captured.err
    assert captured.out == ""
