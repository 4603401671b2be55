"""`p2pfl sim plot`: which files it takes, and what it draws of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from sim import plots

SPREAD = {"mean": 0.5, "min": 0.25, "max": 0.75}


def point(time_s, **figures):
    usual = {"rounds": SPREAD, "accuracy": SPREAD, "loss": SPREAD, "consensus_distance": 0.1, "bytes_sent": 400}
    return {"time_s": time_s, **usual, **figures}


def report(history=(), **more):
    nodes = [{"name": "a"}, {"name": "b"}]
    given = {"nodes": nodes, "topology": "ring", "config": {"federation": "ward"}, "simulated": True}
    return given | {"history": list(history)} | more


REFERENCE = {
    "centralized": {"one_node": {"accuracy": 0.9, "loss": 0.1}, "all_nodes": {"accuracy": 0.95, "loss": 0.05}},
    "fedavg": {
        "accuracy": 0.8,
        "loss": 0.3,
        "history": [
            {"rounds": 1, "bytes_sent": 100, "accuracy": 0.4},
            {"rounds": 2, "bytes_sent": 200, "accuracy": 0.8},
        ],
    },
}
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

    def drawn(*reports, x="time"):
        figures = []
        monkeypatch.setattr(plots, "save", lambda figure, path: figures.append((figure, path)))
        files = [write(f"run{index}.json", one) for index, one in enumerate(reports)]
        outcome = p2pfl("sim", "plot", *files, "--x", x)
        assert outcome.code == 0, outcome.err
        ((figure, _),) = figures
        return figure

    return drawn


def curves(axes):
    """The lines that are no references: as (color, x, y)."""
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    return [(to_hex(line.get_color()), list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def dashed(axes):
    return [line for line in axes.lines if line.get_linestyle() == "--"]


def words(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_run_is_accuracy_distance_and_bytes_over_time(drawn):
    figure = drawn(report([point(0.0), point(2.0, accuracy={"mean": 0.7, "min": 0.6, "max": 0.8}, bytes_sent=800)]))
    learned, distance, sent = figure.axes
    assert curves(learned) == [(plots.COLORS[0], [0, 2], [0.5, 0.7])]
    band = learned.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.25, 0.8)
    assert curves(distance) == [(plots.COLORS[0], [0, 2], [0.1, 0.1])]
    assert distance.get_yscale() == "log"
    assert curves(sent) == [(plots.COLORS[0], [0, 2], [200, 400])]
    assert sent.get_xlabel() == "virtual seconds"
    assert "ward: 2 nodes, ring, seed 0, simulated" in figure.get_suptitle()


def test_runs_are_told_apart_by_color_and_named_by_their_files(drawn):
    figure = drawn(report([point(0.0), point(2.0)]), report([point(0.0), point(3.0)], topology="star"))
    assert [color for color, *_ in curves(figure.axes[0])] == list(plots.COLORS[:2])
    assert words(figure)[:2] == ["run0\n2 nodes, ring", "run1\n2 nodes, star"]


@pytest.mark.parametrize(("x", "places"), [("time", [1, 3]), ("rounds", [2, 4]), ("bytes", [200, 400])])
def test_what_runs_across_may_be_chosen(drawn, x, places):
    spreads = [{"mean": mean, "min": 0, "max": 9} for mean in (2, 4)]
    history = [point(1.0, rounds=spreads[0]), point(3.0, rounds=spreads[1], bytes_sent=800)]
    figure = drawn(report(history), x=x)
    assert curves(figure.axes[0])[0][1] == places
    assert len(figure.axes) == (2 if x == "bytes" else 3)


def test_where_kinds_differ_the_legend_says_which_is_which(drawn):
    figure = drawn(report([point(0.0), point(2.0)]), report([point(0.0), point(3.0)], simulated=False))
    assert words(figure)[:2] == ["run0\n2 nodes, ring, simulated", "run1\n2 nodes, ring, real"]


def test_references_are_dashed_and_dotted(drawn):
    figure = drawn(report([point(0.0), point(2.0)], reference=REFERENCE))
    assert [set(line.get_ydata()) for line in dashed(figure.axes[0])] == [{0.8}]
    others = [line for line in figure.axes[0].lines if line.get_linestyle() not in {"-", "--"}]
    assert [set(line.get_ydata()) for line in others] == [{0.9}, {0.95}]
    assert "a server (FedAvg)" in words(figure)


@pytest.mark.parametrize(("x", "places"), [("rounds", [1, 2]), ("bytes", [50, 100])])
def test_federated_averaging_is_a_curve_where_it_has_the_axis(drawn, x, places):
    (line,) = dashed(drawn(report([point(0.0), point(2.0)], reference=REFERENCE), x=x).axes[0])
    assert (list(line.get_xdata()), list(line.get_ydata())) == (places, [0.4, 0.8])


def test_references_of_several_runs_are_gray_where_they_agree(drawn):
    run = report([point(0.0), point(2.0)], reference=REFERENCE)
    better = REFERENCE | {"fedavg": {"accuracy": 0.85, "loss": 0.2, "history": []}}
    assert [line.get_color() for line in dashed(drawn(run, run).axes[0])] == [plots.GRAY]
    colors = [line.get_color() for line in dashed(drawn(run, run | {"reference": better}).axes[0])]
    assert colors == list(plots.COLORS[:2])


def test_a_run_of_real_processes_begins_when_its_first_node_was_ready(drawn):
    figure = drawn(report([point(5.0), point(7.0)], simulated=False))
    assert curves(figure.axes[0])[0][1] == [0, 2]
    assert figure.axes[-1].get_xlabel() == "seconds since the first node was ready"


@pytest.mark.parametrize(("simulated", "times"), [(True, [0, 1, 2, 59, 60, 61]), (False, [0, 1, 2, 60, 61])])
def test_while_no_model_of_a_simulation_moves_its_line_is_level(drawn, simulated, times):
    low, high = ({"mean": mean, "min": 0, "max": 1} for mean in (0.1, 0.9))
    history = [point(at, accuracy=low if at < 60 else high) for at in (0.0, 1.0, 2.0, 60.0, 61.0)]
    figure = drawn(report(history, simulated=simulated))
    ((_, places, values),) = curves(figure.axes[0])
    assert places == times
    assert curves(figure.axes[-1])[0][1] == [0, 1, 2, 60, 61]
    assert values == [0.1 if at < 60 else 0.9 for at in times]


def test_a_single_point_shows_as_a_dot(drawn):
    assert drawn(report([point(1.0)])).axes[0].lines[0].get_marker() == "o"


def test_without_accuracy_the_loss_is_drawn(drawn):
    figure = drawn(report([point(0.0, accuracy=None), point(1.0, accuracy=None)]))
    assert figure.axes[0].get_ylabel() == "loss on the common test set"


@pytest.mark.parametrize(("evaluated", "liars", "text"), [(1, [], "of 1 nodes"), (2, [], "node"), (1, ["a"], "node")])
def test_the_band_says_where_not_all_honest_nodes_were_evaluated(drawn, evaluated, liars, text):
    figure = drawn(report([point(0.0), point(1.0, evaluated=evaluated)], byzantine=liars))
    assert words(figure)[1] == f"worst to best {text}"


def test_where_a_loss_left_all_numbers_its_line_ends_and_the_rest_is_drawn(drawn):
    lost = {"mean": None, "min": 1.0, "max": None}
    points = [point(0, accuracy=None), *(point(time, accuracy=None, loss=lost) for time in (1, 2))]
    learned, distance, _ = drawn(report(points)).axes
    assert [list(line.get_xdata()) for line in learned.lines] == [[0]]
    assert [list(line.get_xdata()) for line in distance.lines] == [[0, 1, 2]]


def test_what_nobody_has_has_no_panel(drawn):
    bare = {"accuracy": None, "loss": None, "consensus_distance": None}
    figure = drawn(report([point(0.0, **bare), point(1.0, **bare)]))
    assert [axes.get_ylabel() for axes in figure.axes] == ["sent by a node"]


def test_by_default_the_picture_lies_beside_its_report(p2pfl, write, tmp_path):
    write("deep/run.json", report([point(0.0), point(2.0)], reference=REFERENCE))
    write("other.json", report([point(0.0), point(1.0)]))
    assert p2pfl("sim", "plot", "deep/run.json").err == "picture: deep/run.png\n"
    assert p2pfl("sim", "plot", "deep/run.json", "other.json").err == "picture: comparison.png\n"
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("deep/run.png", "comparison.png"))


@pytest.mark.parametrize("name", ["results", "results/results.json"])
def test_a_sweep_is_drawn_from_its_folder_or_its_results(p2pfl, write, tmp_path, name):
    write("results/results.json", RESULTS)
    outcome = p2pfl("sim", "plot", name)
    assert (outcome.code, outcome.err) == (0, "picture: results/results.png\n")
    assert (tmp_path / "results/results.png").exists()


def test_a_report_that_the_command_has_written_can_be_drawn(p2pfl, ward):
    assert p2pfl("sim", "run", ward(), "--report", "r.json", "--quiet").code == 0
    assert p2pfl("sim", "plot", "r.json", "--output", "p.svg", "--x", "rounds").err == "picture: p.svg\n"
    assert "nan" not in Path("p.svg").read_text()


FOREIGN = {
    "empty": "",
    "no JSON": "a = 1",
    "another JSON": '{"a": 1}',
    "a list": "[1, 2]",
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
    assert outcome.err.startswith("error: x.json: this is no report: ")
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
