"""A report as an object: written and read again, as a table, as a picture."""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import re
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import UserError
from p2pfl.learn import Measure
from p2pfl.reporting import (
    Centralized,
    Contraction,
    Cost,
    HeldAgainst,
    MeanAndMax,
    ModelScore,
    NeighborStatus,
    NodeReport,
    Point,
    Reference,
    ReferencePoint,
    References,
    Report,
    Statistic,
)

with_pandas = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")

NAN = Statistic(mean=math.nan, min=1.0, max=math.nan)
HALF = Statistic(mean=0.5, min=0.25, max=0.75)

counts = st.integers(0, 2**53)
numbers = st.floats(allow_nan=False, allow_infinity=False)
figures = numbers | st.just(math.nan)
words = st.text(st.characters(codec="utf-8"), max_size=8)
statistics = st.none() | st.builds(Statistic, mean=figures, min=figures, max=figures)
stalenesses = st.none() | st.builds(MeanAndMax, mean=numbers, max=counts | numbers)
scores = {"accuracy": st.none() | numbers, "loss": st.none() | numbers}
moments = scores | {name: st.none() | counts for name in ("rounds", "steps", "bytes_sent")}
references = st.none() | st.builds(
    Reference, **moments, history=st.lists(st.builds(ReferencePoint, **moments), max_size=2)
)
by_kind = st.dictionaries(words, counts, max_size=2)
neighbors = st.builds(
    NeighborStatus, name=words, faults=by_kind, kept=st.none() | numbers, live=st.none() | st.booleans()
)
points = st.builds(
    Point,
    time_s=numbers,
    **dict.fromkeys(("rounds", "accuracy", "loss", "train_loss", "neighbor_distance"), statistics),
    consensus_distance=st.none() | numbers,
    staleness=stalenesses,
    evaluated=st.none() | counts,
)
nodes = st.builds(
    NodeReport,
    name=words,
    finished=st.booleans(),
    accuracy=st.none() | numbers,
    staleness=stalenesses,
    samples=st.none() | counts | numbers,
    alarms=st.none() | by_kind,
    neighbors=st.none() | st.lists(neighbors, max_size=2),
)
reports = st.builds(
    Report,
    nodes=st.lists(nodes, max_size=3),
    topology=words,
    rounds=st.dictionaries(words, st.none() | counts, max_size=3),
    **dict.fromkeys(("accuracy", "local_accuracy", "loss", "attack_success"), statistics),
    mean_model=st.none() | st.builds(ModelScore, **scores),
    staleness=stalenesses,
    contraction=st.builds(Contraction, predicted=st.none() | numbers, measured=st.none() | numbers),
    held_against=st.lists(
        st.builds(HeldAgainst, node=words, neighbor=words, standing=numbers, faults=by_kind, quarantines=counts),
        max_size=2,
    ),
    history=st.lists(points, max_size=3),
    config=st.dictionaries(words, counts | words | st.lists(counts, max_size=2), max_size=2),
    world=st.none() | st.dictionaries(words, counts, max_size=2),
    reference=st.none()
    | st.builds(
        References,
        centralized=st.none() | st.builds(Centralized, one_node=references, all_nodes=references),
        fedavg=references,
    ),
    cost=st.none()
    | st.builds(
        Cost,
        **dict.fromkeys(
            (
                "cpu_s",
                "set_up_cpu_s",
                "run_cpu_s",
                "evaluation_cpu_s",
                "references_cpu_s",
                "report_cpu_s",
            ),
            numbers,
        ),
        node_rounds=counts,
        node_rounds_per_cpu_s=st.none() | numbers,
        events=counts,
    ),
    computed=st.none() | words,
)


def told(report):
    """Equal where the reports are: NaN, which is not equal to itself, as a word."""
    return repr(msgspec.to_builtins(report))


def strict(content):
    """The JSON, which must have none of Python's additions to it."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(content, parse_constant=refuse)


def run(**more):
    points = [
        Point(time_s=0.0, rounds=HALF, bytes_sent=0),
        Point(time_s=1.0, rounds=HALF, accuracy=HALF, loss=NAN, staleness=MeanAndMax(mean=0.5, max=2), bytes_sent=8),
    ]
    nodes = [NodeReport(name="a", alarms={}, accuracy=0.5), NodeReport(name="b")]
    usual = {"nodes": nodes, "topology": "ring", "config": {"federation": "ward"}, "history": points, "simulated": True}
    return Report(**usual | more)


@given(reports)
def test_what_is_written_is_read_again_as_it_was(report):
    again = Report.from_json(report.to_json())
    assert told(again) == told(report)
    assert again.to_json() == report.to_json()


def test_to_json_is_text_and_to_bytes_the_same_in_utf_8():
    report = run(topology="ring-é")
    assert isinstance(report.to_json(), str)
    assert report.to_bytes() == report.to_json().encode()


@given(reports)
def test_its_json_has_every_field_and_neither_nan_nor_infinity(report):
    assert list(strict(report.to_json())) == list(Report.__struct_fields__)


def test_no_number_is_null_in_json_and_nan_again_when_read():
    report = run(loss=NAN, accuracy=Statistic(mean=math.inf, min=0.0, max=math.inf))
    written = strict(report.to_json())
    assert written["loss"] == written["history"][1]["loss"] == {"mean": None, "min": 1.0, "max": None}
    again = Report.from_json(report.to_bytes())
    for found in (again.loss, again.history[1].loss):
        assert (math.isnan(found.mean), found.min, math.isnan(found.max)) == (True, 1.0, True)
        assert not found.is_finite
    assert math.isnan(again.accuracy.mean)
    assert again.history[0].loss is None


def test_a_loss_of_one_node_that_is_no_number_is_not_known_when_read():
    report = run(nodes=[NodeReport(name="a", test_loss=math.nan, loss=math.inf)])
    (node,) = Report.from_json(report.to_json()).nodes
    assert (node.test_loss, node.loss) == (None, None)


def test_a_report_of_the_first_version_and_one_of_a_later_one_can_be_read():
    """The first said less of a neighbor and more of staleness; of what is still to come nothing is known."""
    old = {
        "nodes": [{"name": "a", "neighbors": [{"name": "b", "live": False, "exchanges": 2}], "what": "is this"}],
        "topology": "ring",
        "history": [{"time_s": 1.0, "staleness": {"mean": 0.5, "min": 0.0, "max": 1.0}}],
        "config": {},
        "later": {},
    }
    report = Report.from_json(json.dumps(old))
    assert report.history[0].staleness == MeanAndMax(mean=0.5, max=1.0)
    assert report.nodes[0].neighbors == [NeighborStatus(name="b", live=False, exchanges=2)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a = 1",
        "[1, 2]",
        "3",
        '{"a": 1}',
        '{"nodes": [], "topology": "ring", "history": [{"time_s": "soon"}], "config": {}}',
        '{"nodes": [{}], "topology": "ring", "history": [], "config": {}}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_report_is_a_value_error(text):
    with pytest.raises(ValueError):
        Report.from_json(text)


@with_pandas
def test_the_history_is_a_table_by_time_with_three_columns_for_a_statistic():
    frame = run().to_frame()
    assert (frame.index.name, list(frame.index)) == ("time_s", [0.0, 1.0])
    assert list(frame[["accuracy_mean", "accuracy_min", "accuracy_max"]].loc[1.0]) == [0.5, 0.25, 0.75]
    assert frame["accuracy_mean"].isna().tolist() == [True, False]
    assert frame["loss_mean"].isna().all()
    assert list(frame[["staleness_mean", "staleness_max"]].loc[1.0]) == [0.5, 2]
    assert frame["bytes_sent"].tolist() == [0, 8]
    assert not {"accuracy", "loss", "staleness", "staleness_min"} & set(frame.columns)


@with_pandas
def test_the_nodes_are_a_table_by_name():
    frame = run().to_frame("nodes")
    assert (frame.index.name, list(frame.index)) == ("name", ["a", "b"])
    assert frame.loc["a", "accuracy"] == 0.5
    assert frame["alarms"].tolist() == [{}, None]
    assert set(frame.columns) >= {"staleness_mean", "staleness_max", "ended_by", "neighbors"}


@with_pandas
@given(reports)
def test_a_table_has_the_same_columns_whatever_its_rows_know(report):
    for of, rows, full in (("history", report.history, run()), ("nodes", report.nodes, run())):
        if rows:
            frame = report.to_frame(of)
            assert len(frame) == len(rows)
            assert list(frame.columns) == list(full.to_frame(of).columns)


@with_pandas
def test_a_table_of_nothing_is_empty():
    assert run(history=[]).to_frame().empty


@pytest.mark.long
@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_plot_is_a_figure_and_a_file_where_one_is_wanted(tmp_path, suffix, begin):
    path = tmp_path / f"run.{suffix}"
    figure = run().plot(path, x="rounds")
    assert figure.axes[-1].get_xlabel() == "rounds of a node, on average"
    assert path.read_bytes().startswith(begin)
    assert run().plot(str(path)).axes
    assert len(run().plot().axes) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_plot_that_cannot_be_is_a_mistake_that_says_what_is_allowed(tmp_path):
    with pytest.raises(UserError, match=r"no such picture format .*run\.jpg.*allowed: \.png, \.svg, \.pdf"):
        run().plot(tmp_path / "run.jpg")
    with pytest.raises(UserError, match="no such folder"):
        run().plot(tmp_path / "nix" / "run.png")
    with pytest.raises(UserError, match="history is empty"):
        run(history=[]).plot()


def test_a_notebook_shows_the_worst_nodes_and_a_curve_and_takes_no_name_for_html(monkeypatch):
    nodes = [NodeReport(name=f"n{index}", accuracy=index / 20, bytes_sent=1_234_567) for index in range(12)]
    nodes.append(NodeReport(name="<script>", rounds=3, accuracy=0.01))
    shown = run(nodes=nodes, topology="<i>", accuracy=HALF)._repr_html_()
    found = re.findall(r"<td[^>]*>(.*?)</td>", shown)
    rows = [found[start : start + 4] for start in range(0, len(found), 4)]
    assert rows[0] == ["node, worst first", "rounds", "accuracy", "sent"]
    assert [row[0] for row in rows[1:]] == ["n0", "&lt;script&gt;", *(f"n{index}" for index in range(1, 9)), "3 more"]
    assert rows[1:3] == [["n0", "", "0", "1.23 MB"], ["&lt;script&gt;", "3", "0.01", ""]]
    assert "13 simulated nodes, &lt;i&gt;: accuracy 0.25 to 0.75" in shown
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', shown)[1]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(nodes=nodes, topology="<i>", accuracy=HALF)._repr_html_() == shown[: shown.index("<img")]
    assert "<img" not in Report(nodes=[])._repr_html_()


WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        is_extra = name.partition(".")[0] in ("matplotlib", "pandas", "torch")
        return None if is_extra else PathFinder.find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
from p2pfl import Federation, Report

def simulate():
    import sim
    sim.simulate

report = Report.from_json('{"nodes": [], "history": [{"time_s": 1.0}]}')
for ask in (Federation(nodes=3, rounds=1).run, simulate, report.plot, report.to_frame):
    try:
        ask()
    except ModuleNotFoundError as error:
        print(error.name, error, sep=": ")
"""


def test_what_is_missing_is_one_sentence_with_the_name_of_the_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        f"{package}: this needs {package}: pip install '.[{extra}]' in a checkout"
        for package, extra in (("torch", "torch"), ("torch", "torch"), ("matplotlib", "plot"), ("pandas", "pandas"))
    ]


@with_pandas
def test_the_tasks_own_metrics_have_columns():
    points = [Point(time_s=0.0), Point(time_s=1.0, metrics={"auc": HALF})]
    nodes = [NodeReport(name="a", metrics={"auc": 0.5}, local_metrics={"auc": 0.25}), NodeReport(name="b")]
    report = Report(nodes=nodes, history=points)
    assert report.to_frame()["auc_min"][1.0] == 0.25
    frame = report.to_frame("nodes")
    assert (frame["auc"]["a"], frame["local_auc"]["a"]) == (0.5, 0.25)
    assert not {"metrics", "local_metrics"} & set(frame)


def test_measures_are_written_and_read_with_their_direction():
    measure = Measure("rmse", "RMSE", higher_is_better=False)
    report = Report(nodes=[], measures=[measure], metrics={"rmse": HALF})
    assert json.loads(report.to_json())["measures"] == [{"name": "rmse", "label": "RMSE", "higher_is_better": False}]
    assert Report.from_json(report.to_json()).main_measure == measure
