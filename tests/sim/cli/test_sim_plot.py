"""`p2pfl sim plot`: which files it takes, and what it draws of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_reports import REFERENCE, point, report

RESULTS = {
    "axes": {"topology": ["ring", "star"]},
    "fixed": {"nodes": 5},
    "seeds": [0, 1],
    "level": 0.95,
    "rows": [
        {
            "values": {"topology": name},
            "metrics": {
                "accuracy_worst": {"mean": 0.5, "low": 0.4, "high": 0.6, "count": 2, "values": [0.45, 0.55]},
                "loss": None,
                "consensus_distance": None,
                "bytes_per_node": None,
            },
        }
        for name in ("ring", "star")
    ],
}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


@pytest.fixture
def drawn(p2pfl, write, monkeypatch):
    """The figure that the command draws of these reports."""

    def drawn(*reports, x=None):
        figures = []
        monkeypatch.setattr("p2pfl.reporting.plot.save", lambda figure, path: figures.append((figure, path)))
        files = [write(f"run{index}.json", one) for index, one in enumerate(reports)]
        outcome = p2pfl("sim", "plot", *files, *(("--x", x) if x else ()))
        assert outcome.code == 0, outcome.err
        ((figure, _),) = figures
        return figure

    return drawn


def words(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_runs_are_named_by_their_files_and_the_option_says_what_runs_across(drawn):
    reports = report([point(0.0), point(2.0)]), report([point(0.0), point(3.0)], topology="star")
    assert words(drawn(*reports))[:2] == ["run0: ring", "run1: star"]
    assert drawn(*reports, x="rounds").axes[-1].get_xlabel() == "rounds of a node, on average"


def test_a_real_run_beside_a_simulated_one_is_drawn_by_rounds_for_their_seconds_differ(drawn):
    real = report([point(0.0), point(2.0)], simulated=False)
    simulated = report([point(0.0), point(3.0)])
    assert drawn(real, simulated).axes[-1].get_xlabel() == "rounds of a node, on average"
    assert "seconds" in drawn(real, real).axes[-1].get_xlabel()
    assert "seconds" in drawn(simulated, real, x="time").axes[-1].get_xlabel()


@pytest.mark.long
def test_by_default_the_picture_lies_beside_its_report(p2pfl, write, tmp_path):
    write("deep/run.json", report([point(0.0), point(2.0)], reference=REFERENCE))
    write("other.json", report([point(0.0), point(1.0)]))
    assert p2pfl("sim", "plot", "deep/run.json").err == "picture: deep/run.png\n"
    assert p2pfl("sim", "plot", "deep/run.json", "other.json").err == "picture: comparison.png\n"
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("deep/run.png", "comparison.png"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["results", "results/results.json"])
def test_a_sweep_is_drawn_from_its_folder_or_its_results(p2pfl, write, tmp_path, name):
    write("results/results.json", RESULTS)
    outcome = p2pfl("sim", "plot", name)
    assert (outcome.code, outcome.err) == (0, "picture: results/results.png\n")
    assert (tmp_path / "results/results.png").exists()


@pytest.mark.long
def test_a_report_that_the_command_has_written_can_be_drawn(p2pfl, ward):
    assert p2pfl("sim", "run", ward(), "--report", "r.json", "--quiet").code == 0
    assert p2pfl("sim", "plot", "r.json", "-o", "p.svg", "--x", "rounds").err == "picture: p.svg\n"
    assert "nan" not in Path("p.svg").read_text()


FOREIGN = {
    "no JSON": "a = 1",
    "endless brackets": "[" * 100_000,
    "not text": '"\ud800"'.encode("utf-8", "surrogatepass").decode("latin-1"),
    "a wrong history": json.dumps(report([{"time_s": "soon"}])),
    "a sweep with a row without figures": json.dumps(RESULTS | {"rows": [RESULTS["rows"][0] | {"metrics": {}}]}),
    "a sweep with a row off its axes": json.dumps(RESULTS | {"rows": [RESULTS["rows"][0] | {"values": {}}]}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_something_else_is_named_and_what_is_wanted(p2pfl, write, name):
    write("x.json", FOREIGN[name])
    outcome = p2pfl("sim", "plot", "x.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: x.json: this is not a report: ")
    assert "allowed: the report of a run" in outcome.err


def test_a_report_without_history_has_nothing_to_draw(p2pfl, write):
    write("x.json", report())
    outcome = p2pfl("sim", "plot", "x.json")
    assert (outcome.code, outcome.err) == (2, "error: x.json: its history is empty: nothing to draw\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("nix.json",), "nix.json: cannot be read: No such file or directory"),
        (("nix.json", "--output", "x.jpg"), "--output: no such picture format (found 'x.jpg')"),
        (("nix.json", "--output", "nix/x.png"), "--output: no such folder (found 'nix')"),
        (("results.json", "run.json"), "REPORT: a sweep is drawn by itself (found 2)"),
        (("results.json", "--x", "time"), "--x: the axes of a sweep decide what runs across (found 'time')"),
        (("run.json",) * 22, "REPORT: too many runs for one picture (found 22); allowed: up to 21"),
    ],
)
def test_a_mistake_is_named(p2pfl, write, options, text):
    write("results.json", RESULTS)
    write("run.json", report([point(0.0)]))
    outcome = p2pfl("sim", "plot", *options)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {text}")
