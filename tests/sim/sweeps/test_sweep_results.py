"""From reports to rows: what is counted, what is left out, and how a person reads it."""

from __future__ import annotations

import json

import fake_jobs
import numpy as np
import pytest

from sim import SweepTally, complaints, estimate, figures, flat_rows, load_sweep, perform, readable_rows, results
from sim.sweeps.plan import make_plan


@pytest.fixture
def found(write, starts):
    """The results of a sweep whose runs all succeeded, apart from those with the seeds in `failed`."""

    def found(text, failed=()):
        plan = make_plan(load_sweep(write(text)))
        tally = SweepTally(figures={}, failures={})
        for key, job in plan.jobs.items():
            if job.seed in failed:
                tally.failures[key] = "no power"
            else:
                tally.figures[key] = figures(perform(fake_jobs.run, job).report)
        return results(plan, tally)

    return found


def test_a_row_has_the_mean_and_the_interval_over_its_seeds(found):
    (row,) = found("[sweep]\nseeds = 3\nnodes = 4\n")["rows"]
    worst = row["metrics"]["accuracy_worst"]
    assert worst["values"] == pytest.approx([0.80, 0.81, 0.82])
    assert (worst["mean"], worst["count"]) == (pytest.approx(0.81), 3)
    assert worst["high"] - worst["mean"] == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    assert row["metrics"]["bytes_per_node"]["mean"] == 1000
    assert row["metrics"]["loss"] is None


def test_a_row_has_the_accuracy_of_the_mean_of_the_models(found):
    rows = found("[sweep]\nseeds = 1\nnodes = 4\n")
    assert rows["rows"][0]["metrics"]["accuracy_mean_model"]["values"] == pytest.approx([0.95])
    assert readable_rows(rows)[0]["of mean model"] == "0.950"


def test_a_row_has_the_success_of_an_attack_that_has_one_and_a_table_a_column_of_it_where_any_has(found):
    head = "[sweep]\nseeds = 2\nbyzantine = 1\n[axes]\nattack = "
    rows = found(head + "['label-flip', 'mimic']\n")
    poisoned, other = (row["metrics"] for row in rows["rows"])
    assert (poisoned["attack_success"]["values"], poisoned["attack_success"]["mean"]) == ([0.2, 0.2], 0.2)
    assert other["attack_success"] is None
    assert [row["attack success"] for row in readable_rows(rows)] == ["0.200", "-"]
    assert [row["attack_success"] for row in flat_rows(rows)] == [0.2, None]
    assert "attack success" not in readable_rows(found(head + "['mimic']\n"))[0]


def test_a_report_that_does_not_have_it_has_the_other_figures():
    read = figures(b'{"nodes": [], "accuracy": {"mean": 0.9, "min": 0.8, "max": 1.0}, "mean_model": null}')
    assert read == {"accuracy_worst": 0.8, "accuracy_mean": 0.9}


def test_a_value_that_is_not_finite_is_left_out_and_that_is_told(found):
    (row,) = found("[sweep]\nseeds = 2\nbyzantine = 1\nattack = 'diverges'\n")["rows"]
    assert (row["done"], row["metrics"]["loss"]) == (2, None)


def test_a_row_says_how_many_of_its_runs_a_figure_is_of(found):
    rows = found("[sweep]\nseeds = 4\n", failed=(1, 3))
    assert rows["rows"][0]["metrics"]["accuracy_mean"]["count"] == 2
    assert readable_rows(rows)[0]["runs"] == "2 of 4, 2 failed"


def test_the_table_has_the_axes_in_the_order_of_the_file(found):
    rows = readable_rows(found("[sweep]\nseeds = 2\n[axes]\nrounds = [3]\nnodes = [4, 5]\n"))
    assert list(rows[0])[:3] == ["rounds", "nodes", "runs"]
    assert [row["nodes"] for row in rows] == ["4", "5"]
    assert rows[0]["worst accuracy"] == "0.805 ± 0.064"
    assert rows[0]["bytes/node"] == "1 kB"
    assert rows[0]["contraction"] == "0.600"


def test_the_same_complaint_of_many_runs_is_one_line(found):
    rows = found("[sweep]\nseeds = 3\n[axes]\nnodes = [4, 5]\n", failed=(1, 2))
    assert complaints(rows) == ["nodes=4, seed=1 (and 3 more): failed: no power"]


def test_json_is_plain_json(found):
    rows = found("[sweep]\nseeds = 2\n[axes]\nnodes = [4]\n")
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert list(flat_rows(rows)[0])[:4] == ["nodes", "runs", "done", "failed"]
    assert {"accuracy_worst", "accuracy_worst_low", "accuracy_worst_high"} <= flat_rows(rows)[0].keys()


def test_what_is_shared_is_told_as_one_text(found):
    told = found("[sweep]\nseeds = 1\nnodes = 4\n[axes]\nshare = [['*'], ['1.*', '!*.bias']]\n")
    assert told["axes"] == {"share": ["*", "1.*, !*.bias"]}
    assert [row["values"]["share"] for row in told["rows"]] == ["*", "1.*, !*.bias"]


def test_the_interval_covers_the_truth_in_95_of_100_samples_of_three():
    """With the normal quantile it would be 81: the reason for Student's t."""
    chance = np.random.default_rng(0)
    found = [estimate(list(chance.normal(5.0, 2.0, 3))) for _ in range(4000)]
    covered = np.mean([one["low"] <= 5.0 <= one["high"] for one in found])
    assert 0.94 < covered < 0.96


def test_one_value_has_a_mean_and_no_interval():
    assert estimate([0.5]) == {"mean": 0.5, "low": None, "high": None, "count": 1, "values": [0.5]}
    assert estimate([]) is None


def test_what_a_task_is_measured_by_has_columns_of_its_own():
    read = figures(
        b'{"nodes": [], "metrics": {"rmse": {"mean": 2, "min": 1, "max": 4}, "r2": {"mean": 0.5, "min": 0, "max": 1}},'
        b'"measures": [{"name": "rmse", "label": "RMSE", "higher_is_better": false}]}'
    )
    assert read == {"rmse_worst": 4.0, "rmse_mean": 2.0, "r2_mean": 0.5}
