"""What is drawn of runs, real or simulated."""

from __future__ import annotations

import json

import pytest
from matplotlib.colors import to_hex
from run_reports import REFERENCE, point, report

from p2pfl.errors import UserError
from p2pfl.reporting import COLORS, MOST_RUNS, WIDEST, Report, check_picture, draw_runs


def drawn(*reports, x="time"):
    """The figure of these reports, read as they stand in files."""
    runs = [Report.from_json(json.dumps(one)) for one in reports]
    return draw_runs(runs, None, x, [f"run{index}" for index in range(len(runs))])


def curves(axes):
    """The lines that are no references: as (color, x, y)."""
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    return [(to_hex(line.get_color()), list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def dashed(axes):
    return [line for line in axes.lines if line.get_linestyle() == "--"]


def words(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_a_run_is_accuracy_distance_and_bytes_over_time():
    figure = drawn(report([point(0.0), point(2.0, accuracy={"mean": 0.7, "min": 0.6, "max": 0.8}, bytes_sent=800)]))
    learned, distance, sent = figure.axes
    assert curves(learned) == [(COLORS[0], [0, 2], [0.5, 0.7])]
    band = learned.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.25, 0.8)
    assert curves(distance) == [(COLORS[0], [0, 2], [0.1, 0.1])]
    assert distance.get_yscale() == "log"
    assert curves(sent) == [(COLORS[0], [0, 2], [200, 400])]
    assert sent.get_xlabel() == "virtual seconds"
    assert "ward: 2 nodes, ring, seed 0, simulated" in figure.get_suptitle()


def test_runs_are_told_apart_by_color_and_named_by_their_files():
    figure = drawn(report([point(0.0), point(2.0)]), report([point(0.0), point(3.0)], topology="star"))
    assert [color for color, *_ in curves(figure.axes[0])] == list(COLORS[:2])
    assert words(figure)[:2] == ["run0: ring", "run1: star"]


@pytest.mark.parametrize(("x", "places"), [("time", [1, 3]), ("rounds", [2, 4]), ("bytes", [200, 400])])
def test_what_runs_across_may_be_chosen(x, places):
    spreads = [{"mean": mean, "min": 0, "max": 9} for mean in (2, 4)]
    history = [point(1.0, rounds=spreads[0]), point(3.0, rounds=spreads[1], bytes_sent=800)]
    figure = drawn(report(history), x=x)
    assert curves(figure.axes[0])[0][1] == places
    assert len(figure.axes) == (2 if x == "bytes" else 3)


def test_where_kinds_differ_the_legend_says_which_is_which():
    figure = drawn(report([point(0.0), point(2.0)]), report([point(0.0), point(3.0)], simulated=False))
    assert words(figure)[:2] == ["run0: simulated", "run1: real nodes"]


def test_references_are_dashed_and_dotted():
    figure = drawn(report([point(0.0), point(2.0)], reference=REFERENCE))
    assert [set(line.get_ydata()) for line in dashed(figure.axes[0])] == [{0.8}]
    others = [line for line in figure.axes[0].lines if line.get_linestyle() not in {"-", "--"}]
    assert [set(line.get_ydata()) for line in others] == [{0.9}, {0.95}]
    assert "a server (FedAvg)" in words(figure)


def test_a_run_of_real_processes_begins_when_its_first_node_was_ready():
    figure = drawn(report([point(5.0), point(7.0)], simulated=False))
    assert curves(figure.axes[0])[0][1] == [0, 2]
    assert figure.axes[-1].get_xlabel() == "seconds since the first node was ready"


def test_a_single_point_shows_as_a_dot():
    assert drawn(report([point(1.0)])).axes[0].lines[0].get_marker() == "o"


def test_without_accuracy_the_loss_is_drawn():
    figure = drawn(report([point(0.0, accuracy=None), point(1.0, accuracy=None)]))
    assert figure.axes[0].get_ylabel() == "loss on the test set"


@pytest.mark.parametrize(("evaluated", "liars", "text"), [(1, [], "of 1 nodes"), (2, [], "node"), (1, ["a"], "node")])
def test_the_band_says_where_not_all_honest_nodes_were_evaluated(evaluated, liars, text):
    figure = drawn(report([point(0.0), point(1.0, evaluated=evaluated)], byzantine=liars))
    assert words(figure)[1] == f"worst to best {text}"


def test_where_a_loss_left_all_numbers_its_line_ends_and_the_rest_is_drawn():
    lost = {"mean": None, "min": 1.0, "max": None}
    points = [point(0, accuracy=None), *(point(time, accuracy=None, loss=lost) for time in (1, 2))]
    learned, distance, _ = drawn(report(points)).axes
    assert [list(line.get_xdata()) for line in learned.lines] == [[0]]
    assert [list(line.get_xdata()) for line in distance.lines] == [[0, 1, 2]]


def test_what_nobody_has_has_no_panel():
    bare = {"accuracy": None, "loss": None, "consensus_distance": None}
    figure = drawn(report([point(0.0, **bare), point(1.0, **bare)]))
    assert [axes.get_ylabel() for axes in figure.axes] == ["sent by a node"]


def test_a_run_by_itself_needs_no_name_and_no_file():
    figure = draw_runs([Report.from_json(json.dumps(report([point(0.0), point(2.0)])))], None)
    assert words(figure)[0] == "mean of the nodes"


def test_a_run_without_history_is_a_mistake():
    with pytest.raises(UserError, match="its history is empty: nothing to draw"):
        drawn(report([point(0.0)]), report())


def test_more_runs_than_colors_are_a_mistake():
    with pytest.raises(UserError, match="too many runs"):
        drawn(*[report([point(0.0)])] * (MOST_RUNS + 1))


def test_a_picture_that_cannot_be_is_found_before_the_run(tmp_path):
    for path, text in ((tmp_path / "x.jpg", "no such picture format"), (tmp_path / "nix" / "x.png", "no such folder")):
        with pytest.raises(UserError, match=f"--plot: {text}"):
            check_picture(path)
    folder = tmp_path / "x.png"
    folder.mkdir()
    with pytest.raises(UserError, match="is a folder"):
        check_picture(folder)
    check_picture(tmp_path / "coming" / "x.svg", coming=tmp_path / "coming")


RMSE = {"name": "rmse", "label": "RMSE", "higher_is_better": False}
R2 = {"name": "r2", "label": "R²", "higher_is_better": True}
LOSS = {"name": "loss", "label": "loss", "higher_is_better": False}


def regression(*values):
    """A run whose task has no accuracy, but metrics of its own."""
    flat = [{"mean": value, "min": value, "max": value} for value in values]
    points = [
        point(float(at), accuracy=None, loss=one, metrics={"rmse": one, "r2": one}) for at, one in enumerate(flat)
    ]
    return report(points, measures=[RMSE, R2, LOSS])


def test_a_regression_shows_its_own_metrics_and_no_empty_panel():
    figure = drawn(regression(4.0, 0.1))
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels[:2] == ["RMSE on the test set\n(lower is better)", "R² on the test set"]
    assert all(any(len(line.get_xdata()) for line in axes.lines) for axes in figure.axes)
    assert (figure.axes[0].get_yscale(), figure.axes[1].get_yscale()) == ("log", "linear")


def test_a_long_label_is_broken_and_does_not_run_into_the_next_panel():
    run = regression(4.0, 0.1) | {"measures": [RMSE | {"label": "balanced accuracy of the rare"}, R2, LOSS]}
    label = drawn(run).axes[0].get_ylabel()
    assert max(map(len, label.splitlines())) <= WIDEST


def test_a_task_that_has_only_a_loss_shows_that():
    only = report([point(0.0, accuracy=None), point(1.0, accuracy=None)], measures=[LOSS])
    assert drawn(only).axes[0].get_ylabel() == "loss on the test set"


def test_the_references_of_the_main_metric_are_drawn():
    run = regression(4.0, 0.1)
    run["reference"] = {"fedavg": {"metrics": {"rmse": 0.5}, "rounds": 1, "history": []}}
    assert [line.get_ydata()[0] for line in dashed(drawn(run).axes[0])] == [0.5]
