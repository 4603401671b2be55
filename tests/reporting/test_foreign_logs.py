"""Logs that other programs keep: each gets the figures of each node, and one that fails costs no run."""

from __future__ import annotations

import logging
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from p2pfl.errors import UserError
from p2pfl.reporting import logs
from p2pfl.reporting.measures import Point, Statistic

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = PROJECT["entry-points"][logs.GROUP]
POINT = Point(
    time_s=2.5,
    rounds=Statistic(5.0, 4, 6),
    accuracy=Statistic(0.5, 0.25, 0.75),
    metrics={"auc": Statistic(0.6, 0.6, 0.6)},
)
MEAN = {"accuracy": 0.5, "auc": 0.6}


@pytest.fixture
def known(monkeypatch):
    """Register logs as packages do, by name."""

    def register(**entries):
        made = [EntryPoint(name, value, logs.GROUP) for name, value in entries.items()]
        monkeypatch.setattr(logs, "entry_points", lambda group: made if group == logs.GROUP else [])

    register(**OURS)
    return register


@pytest.fixture
def library(monkeypatch):
    """A module of this name that writes down what it is told."""

    def make(name, **contents):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**contents))

    return make


class FakeRuns(list):
    def init(self, **how):
        run = SimpleNamespace(rows=[], open=True, **how)
        run.log, run.define_metric = run.rows.append, lambda *_, **__: None
        run.finish = lambda: setattr(run, "open", False)
        self.append(run)
        return run


def test_wandb_gets_a_run_for_each_node(known, library):
    runs = FakeRuns()
    library("wandb", init=runs.init)
    kept = logs.open_logs(["wandb:ward"])
    kept.point(POINT)
    kept.close()
    assert [(run.project, run.name, run.open) for run in runs] == [("ward", name, False) for name in logs.OF_ALL]
    assert runs[0].rows == [{"rounds": 5.0, **MEAN}]


def test_entry_points_may_be_of_the_class_of_importlib_metadata(known, library, monkeypatch):
    """As they are once MLflow has imported that package."""
    runs = FakeRuns()
    library("wandb", init=runs.init)
    found = EntryPoint("wandb", OURS["wandb"], logs.GROUP)
    monkeypatch.setattr(logs, "entry_points", lambda group: [SimpleNamespace(name="wandb", load=found.load)])  # noqa: ARG005
    logs.open_logs(["wandb:ward"]).point(POINT)
    assert len(runs) == len(logs.OF_ALL)


def test_wandb_gets_the_figures_of_an_older_test_at_its_round(known, library):
    runs = FakeRuns()
    library("wandb", init=runs.init)
    older = Statistic(3.0, 3, 3)
    logs.open_logs(["wandb:ward"]).point(replace(POINT, tested_rounds=older, train_loss=older))
    assert runs[0].rows == [{"rounds": 3, **MEAN}, {"rounds": 5, "train_loss": 3.0}]


def test_mlflow_gets_a_run_for_each_node(known, library):
    class FakeClient:
        told, ended = [], []

        def get_experiment_by_name(self, name):
            return SimpleNamespace(experiment_id=name.upper())

        def create_run(self, experiment, *, run_name):
            return SimpleNamespace(info=SimpleNamespace(run_id=f"{experiment}/{run_name}"))

        def log_metric(self, run, name, value, *, step):
            self.told.append((run, name, value, step))

        def set_terminated(self, run):
            self.ended.append(run)

    library("mlflow", MlflowClient=FakeClient)
    kept = logs.open_logs(["mlflow:ward"])
    kept.point(POINT)
    kept.close()
    assert [one for one in FakeClient.told if one[0] == "WARD/mean"] == [
        ("WARD/mean", name, value, 5) for name, value in MEAN.items()
    ]
    assert FakeClient.ended == [f"WARD/{name}" for name in logs.OF_ALL]


def test_one_of_another_package_that_fails_is_given_up_and_the_run_goes_on(known, monkeypatch, caplog):
    class Odd:
        def __init__(self, place):
            if place == "nowhere":
                raise RuntimeError("no such place")

        def write(self, row):
            raise KeyError("gone")

        def close(self):
            raise AssertionError("it was given up before")

    monkeypatch.setitem(sys.modules, "odd_package", SimpleNamespace(Odd=Odd))
    known(odd="odd_package:Odd", absent="no_such_package:Log")
    kept = logs.open_logs(["odd:there"])
    with caplog.at_level(logging.WARNING, "p2pfl"):
        kept.point(POINT)
        kept.close()
    assert caplog.text.count("writing to it has stopped: odd: KeyError: 'gone'") == 1
    for spec, said in (
        ("odd:nowhere", "--log: cannot be begun: RuntimeError: no such place"),
        ("absent:x", r"--log: cannot be imported: ModuleNotFoundError.*pip install 'p2pfl-gossip\[absent\]' first"),
        ("odder:x", "no such log.*csv:FILE, tensorboard:DIR, absent:PLACE, odd:PLACE"),
    ):
        with pytest.raises(UserError, match=said):
            logs.open_logs([spec])


def test_each_log_of_ours_has_an_extra_of_its_name():
    assert set(OURS) <= set(PROJECT["optional-dependencies"])
