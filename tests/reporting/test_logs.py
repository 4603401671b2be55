"""Logs of a run: what a row says, that a later run adds to a table, and that a log that fails costs no run."""

from __future__ import annotations

import csv
import json
import logging
import struct
from types import SimpleNamespace

import pytest
from tensorboardX.proto.event_pb2 import Event

from p2pfl.cli.launch import LiveView
from p2pfl.errors import UserError
from p2pfl.reporting.logs import COLUMNS, OLDER_COLUMNS, Logs, check_logs, open_logs
from p2pfl.reporting.measures import Point, Statistic
from p2pfl.reporting.status import MeanAndMax, NodeLine

POINT = Point(
    time_s=2.5,
    rounds=Statistic(5.0, 4, 6),
    accuracy=Statistic(0.5, 0.25, 0.75),
    staleness=MeanAndMax(0.5, 2),
    consensus_distance=0.125,
    bytes_sent=900,
)


def line(rounds=3, *, node="pi1", accuracy=None, tested=None, phase="training"):
    return NodeLine(
        node=node,
        uptime_s=rounds / 2,
        phase=phase,
        rounds=rounds,
        rounds_without_neighbor=0,
        version=rounds,
        accuracy=accuracy,
        test_loss=None,
        tested_round=tested,
        tested_version=tested,
        test_is_stale=False,
        loss=0.5,
        staleness=MeanAndMax(0.0, 0),
        bytes_sent=100,
        bytes_received=0,
        messages_sent=2,
        messages_received=0,
        peers=1,
        quarantined=0,
        exchanges=1,
        closing_rounds=0,
        neighbor_distance=None,
        disk_refuses=None,
    )


def table(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scalars(folder):
    """(step, tag, value) of all event files there: records with a length, two checksums, and an event."""
    found = []
    for path in folder.iterdir():
        content = path.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + size])
            found += [(event.step, one.tag, one.simple_value) for one in event.summary.value]
            content = content[16 + size :]
    return found


def test_a_table_has_a_row_for_each_step_of_a_node_and_three_for_all(tmp_path):
    logs = open_logs([f"csv:{tmp_path / 'a.csv'}"])
    for each in (line(3), line(3), line(3, accuracy=0.5, tested=3), line(4, node="pi2")):
        logs.line(each)
    logs.point(POINT)
    logs.point(POINT)
    logs.close()
    rows = table(tmp_path / "a.csv")
    assert list(rows[0]) == list(COLUMNS)
    assert [(row["node"], row["rounds"], row["accuracy"]) for row in rows] == [
        ("pi1", "3", ""),
        ("pi1", "3", "0.5"),
        ("pi2", "4", ""),
        ("mean", "5.0", "0.5"),
        ("min", "4", "0.25"),
        ("max", "6", "0.75"),
    ]
    assert [row["consensus_distance"] for row in rows[3:]] == ["0.125", "", ""]
    assert [row["staleness"] for row in rows[3:]] == ["0.5", "", "2"]


def test_the_metrics_of_a_task_are_a_column_and_curves_of_their_own(tmp_path):
    logs = open_logs([f"csv:{tmp_path / 'a.csv'}", f"tensorboard:{tmp_path / 'runs'}"])
    judged = line(3, accuracy=0.5, tested=3)
    judged.metrics = {"auc": 0.75, "accuracy": 0.5, "f1": None}
    logs.line(judged)
    logs.point(Point(time_s=1.0, rounds=Statistic(3.0, 3, 3), metrics={"auc": Statistic(0.7, 0.6, 0.8)}))
    logs.close()
    found = [json.loads(row["metrics"]) for row in table(tmp_path / "a.csv")]
    assert found == [{"auc": 0.75}, {"auc": 0.7}, {"auc": 0.6}, {"auc": 0.8}]
    assert (3, "auc", 0.75) in scalars(tmp_path / "runs" / "pi1")


def test_a_later_run_adds_its_rows_and_leaves_other_tables_alone(tmp_path):
    spec = f"csv:{tmp_path / 'a.csv'}"
    for rounds in (1, 2):
        logs = open_logs([spec])
        logs.line(line(rounds))
        logs.close()
    assert [row["rounds"] for row in table(tmp_path / "a.csv")] == ["1", "2"]
    (tmp_path / "mine.csv").write_text("name,age\n", encoding="utf-8")
    with pytest.raises(UserError, match="holds another table"):
        open_logs([f"csv:{tmp_path / 'mine.csv'}"])
    assert (tmp_path / "mine.csv").read_text(encoding="utf-8") == "name,age\n"


def test_a_log_from_before_the_tested_round_goes_on_with_its_columns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",".join(OLDER_COLUMNS) + "\n", encoding="utf-8")
    logs = open_logs([f"csv:{path}"])
    logs.line(line(3, accuracy=0.25, tested=2))
    logs.close()
    assert [(row["rounds"], "tested_round" in row) for row in table(path)] == [("3", False)]


def test_a_score_stands_at_the_round_that_it_is_from(tmp_path):
    logs = open_logs([f"csv:{tmp_path / 'a.csv'}", f"tensorboard:{tmp_path / 'runs'}"])
    logs.line(line(9, accuracy=0.25, tested=2))
    logs.close()
    assert table(tmp_path / "a.csv")[0]["tested_round"] == "2"
    found = scalars(tmp_path / "runs" / "pi1")
    assert (2, "accuracy", 0.25) in found
    assert (9, "train_loss", 0.5) in found


def test_tensorboard_gets_a_folder_for_each_node_over_its_own_rounds(tmp_path):
    logs = open_logs([f"tensorboard:{tmp_path / 'runs'}"])
    logs.line(line(3, accuracy=0.25, tested=3))
    logs.point(POINT)
    logs.close()
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"pi1", "mean", "min", "max"}
    assert (3, "accuracy", 0.25) in scalars(tmp_path / "runs" / "pi1")
    assert (3, "train_loss", 0.5) in scalars(tmp_path / "runs" / "pi1")
    assert (5, "consensus_distance", 0.125) in scalars(tmp_path / "runs" / "mean")
    assert "loss" not in {tag for _, tag, _ in scalars(tmp_path / "runs" / "pi1")}, "it was not tested"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("csv", "no such log"),
        ("csv:", "no such log"),
        ("xml:file", "no such log"),
        ("csv:{}", "is a folder"),
        ("csv:{}/no/a.csv", "no such folder"),
        ("tensorboard:{}/file", "is a file"),
        ("tensorboard:{}/no/runs", "no such folder"),
    ],
)
def test_a_place_that_is_none_is_refused_before_the_run(tmp_path, spec, said):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=said) as caught:
        open_logs([spec.format(tmp_path)])
    assert caught.value.key == "--log"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_the_run_makes_may_hold_it(tmp_path):
    check_logs([f"csv:{tmp_path / 'demo' / 'a.csv'}"], coming=tmp_path / "demo")


def test_a_log_that_cannot_be_written_is_given_up_and_the_others_go_on(tmp_path, caplog):
    class Full:
        def write(self, _row):
            raise OSError(28, "No space left on device")

        def close(self):
            raise AssertionError("it was given up")

    rows = []
    logs = Logs([Full(), SimpleNamespace(write=rows.append, close=lambda: None)])
    with caplog.at_level(logging.WARNING, "p2pfl"):
        logs.line(line(1))
        logs.line(line(2))
    logs.close()
    assert len(rows) == 2
    assert caplog.text.count("No space left on device") == 1


def test_what_launched_nodes_say_is_logged_once_and_no_word_of_liars(tmp_path):
    child = SimpleNamespace(name="pi1", lines=[line(1)], last=line(1), died=False, exit_code=None, bytes_before=0)
    child.messages_before = 0
    liar = SimpleNamespace(**vars(child) | {"name": "pi2", "lines": [line(9, node="pi2")]})
    fleet = SimpleNamespace(children=[child, liar], honest=[child], elapsed_s=1.0)
    logs = open_logs([f"csv:{tmp_path / 'a.csv'}"])
    view = LiveView(fleet, quiet=True, logs=logs)
    view.update()
    child.lines.append(line(2))
    view.update()
    logs.close()
    assert [(row["node"], row["rounds"]) for row in table(tmp_path / "a.csv") if row["node"].startswith("pi")] == [
        ("pi1", "1"),
        ("pi1", "2"),
    ]
