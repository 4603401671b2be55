"""The study: its sweeps can be run at every size, and its tables say what runs said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from p2pfl.errors import UserError
from p2pfl.learn import NodeContext, method_of
from sim import build
from sim.sweeps.plan import make_plan

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "study"))
import study
from pictures import draw_all
from results import COMPRESSOR, DIGITS, PLACES, SERVED, SERVER, SQUEEZED, Curve, Results, contenders, note_places
from run_reports import REFERENCE, point, report
from simple_cnn import DATA, mnist
from study import FULL, HERE, PARTS, QUICK, SIZES, SMALLEST
from tables import write_tables


def test_every_sweep_of_the_folder_is_a_part():
    sweeps = {path.stem for path in HERE.glob("*.toml") if "[sweep]" in path.read_text(encoding="utf-8")}
    assert sweeps == {part.name for part in PARTS}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_can_be_run_at_every_size(part):
    """Its first and last run; whether all can be is checked when it is started."""
    for file in filter(None, map(part.sweep, SIZES)):
        jobs = list(make_plan(file).jobs.values())
        for job in (jobs[0], jobs[-1]):
            federation, _ = build(job)
            method_of(federation)


def test_a_quick_study_leaves_no_axis_of_the_full_one_but_is_smaller():
    for part in PARTS:
        full, quick = part.sweep(FULL), part.sweep(QUICK)
        if quick is not None:
            assert quick.axes.keys() == full.axes.keys()
            assert len(make_plan(quick).jobs) < len(make_plan(full).jobs)


def test_a_target_is_reached_between_two_points():
    curve = Curve([0, 10, 20], [0.1, 0.5, 0.9])
    assert curve.first(0.7) == pytest.approx(15)
    assert curve.first(0.05) == 0
    assert curve.first(0.95) is None


@pytest.fixture
def results(tmp_path):
    """What two parts of a study have left, a run each: the ring's, and the references'."""
    spread, reference = (
        {"mean": 0.9, "min": 0.8, "max": 0.95},
        {**REFERENCE, "alone": {"accuracy": {"mean": 0.3, "min": 0.2, "max": 0.4}}},
    )
    history = [
        point(0.0, bytes_sent=0, rounds={"mean": 0, "min": 0, "max": 0}),
        point(4.0, accuracy={**spread, "mean": 1.0}),
    ]
    for part, more in (("graphs", {}), ("references", {"reference": reference, "topology": "base:k=1"})):
        place = tmp_path / part
        (place / "runs").mkdir(parents=True)
        content = report(history, accuracy=spread, bytes_sent=400, **more)
        (place / "runs" / "key.json").write_text(json.dumps(content))
        values = {"world": "tenfold.toml", "partition": "iid", "topology": content["topology"]}
        row = {"values": values, "seed": 0, "key": "key", "slowest_s": 2.0, "latency_s": 0.5}
        (place / PLACES).write_text(json.dumps([row, {**row, "key": "was not run"}]))
    return Results(tmp_path)


def test_contenders_are_found_in_what_was_run(results):
    found = {one.name: one for one in contenders(results, DIGITS, "iid")}
    assert list(found) == ["all data, all steps", "all data, one node's steps", SERVER, "ring", "Base-2", "alone"]
    assert (found["ring"].mean.mean, found["ring"].worst.mean, found["alone"].worst.mean) == (0.9, 0.8, 0.2)
    assert found["ring"].until(0.9, "bytes").mean == pytest.approx(0.8 * 200)
    assert found[SERVER].until(0.8, "time").mean == 2 * (2.0 + 2 * 0.5)


def test_a_server_that_compresses_stands_beside_the_other(results):
    """Once it was run; it is found by the split and the seed."""
    place = results.folder / SERVED / "runs"
    place.mkdir(parents=True)
    last = {"accuracy": 0.8, "rounds": 2, "bytes_sent": 100}
    fedavg = {**last, "history": [{**last, "accuracy": 0.4, "rounds": 1}, last]}
    content = {"cost": {"cpu_s": 3.0}, "fedavg": fedavg, "compressor": COMPRESSOR, "identity": {}}
    (place / "references-iid-0.json").write_text(json.dumps(content))
    found = {one.name: one for one in contenders(Results(results.folder), DIGITS, "iid")}
    assert list(found)[2:4] == [SERVER, SQUEEZED]
    assert found[SQUEEZED].mean.mean == 0.8
    assert found[SQUEEZED].until(0.6, "rounds").mean == pytest.approx(1.5)


@pytest.mark.long
def test_a_server_that_compresses_is_run_once_for_what_it_is(tmp_path, monkeypatch):
    """Again where what it was made from has changed."""
    part = next(part for part in PARTS if part.name == "references")
    study.serve(part, SMALLEST, tmp_path)
    again, [path] = [], tmp_path.glob("runs/*.json")
    found = study.read_served(path)
    assert found.fedavg.rounds == 2
    monkeypatch.setattr(study, "_served", lambda job, _: again.append(job) or found)
    study.serve(part, SMALLEST, tmp_path)
    assert again == []
    path.write_text(path.read_text().replace('"seed":0', '"seed":7'))
    study.serve(part, SMALLEST, tmp_path)
    assert len(again) == 1


@pytest.mark.long
def test_tables_and_pictures_are_made_of_what_was_run_and_of_nothing_else(results, tmp_path):
    page = tmp_path / "page.md"
    places = {"digits-end": "old", "mnist-end": "kept"}
    page.write_text("".join(f"<!-- table {name} -->\n{text}\n<!-- end {name} -->\n" for name, text in places.items()))
    draw_all(results, tmp_path)
    write_tables(results, tmp_path, page)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["study-digits.png", "study-who-wins.png"]
    assert "| ring | .900 / .800 |" in page.read_text()
    assert "old" not in page.read_text()
    assert "kept" in page.read_text()


def test_a_run_is_written_down_with_the_time_that_its_slowest_node_takes(tmp_path):
    """Where everybody is ten times slower, the slowest takes no longer than where one is."""
    part = next(part for part in PARTS if part.name == "slow")
    note_places(tmp_path, make_plan(part.sweep(QUICK)))
    rows = json.loads((tmp_path / PLACES).read_text())
    assert len(rows) == 8
    assert {row["slowest_s"] for row in rows} == {2.0}


def context(node, nodes, folder, **local):
    return NodeContext(node=node, nodes=nodes, name="a", seed=0, base_dir=folder, local=local)


def test_without_mnist_the_task_says_what_it_wants(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA, raising=False)
    with pytest.raises(UserError, match=DATA):
        mnist().data(context(0, 1, tmp_path))
