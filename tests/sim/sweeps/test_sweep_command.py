"""`p2pfl sim sweep` as a user has it: the simulator itself runs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from p2pfl.cli.main import main
from p2pfl.errors import UserError
from sim import make_job, software
from sim.sweeps.job import run

SWEEP = "[sweep]\nseeds = 2\nnodes = 4\nrounds = 2\n[axes]\ncompressor = ['none', 'q4']\n"


@pytest.fixture
def same_software():
    """The processes of real runs tell what the software is, so nothing may be told of another one here."""
    software.cache_clear()


@pytest.fixture
def command(capsys):
    def command(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["sim", "sweep", *map(str, arguments)])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return command


@pytest.mark.long
def test_a_sweep_runs_and_is_not_run_again(command, write, tmp_path):
    file = write(SWEEP)
    code, out, err = command(file, "--jobs", 2, "--format", "json")
    assert code == 0, err
    assert "4 of 4 runs done" in err
    rows = json.loads(out)["rows"]
    assert [row["done"] for row in rows] == [2, 2]
    full, small = (row["metrics"]["bytes_per_node"]["mean"] for row in rows)
    assert full > 2 * small
    reports = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep-results/runs").iterdir()}
    report = json.loads(min(reports).read_bytes())
    assert {"accuracy", "digest", "virtual_time_s", "sweep"} <= report.keys()

    code, out, _ = command(file, "--format", "csv")
    assert (code, len(list(csv.DictReader(io.StringIO(out))))) == (0, 2)
    assert {path: path.stat().st_mtime_ns for path in reports} == reports
    code, out, _ = command(file)
    assert (code, "worst accuracy" in out, " ± " in out) == (0, True, True)


@pytest.mark.long
def test_a_world_liars_and_settings_are_those_of_the_runs(command, write, tmp_path):
    write("[links]\nlatency_s = 0.01\n", "world.toml")
    text = '[sweep]\nseeds = 1\nnodes = 5\nrounds = 2\nworld = "world.toml"\nlearning_rate = 0.05\ngamma = 0.5\n'
    file = write(text + '[axes]\nbyzantine = [0, 1]\nattack = ["sign-flip"]\nlocal_epochs = [1]\n')
    code, _, err = command(file, "--jobs", 1)
    assert code == 0, err
    reports = [json.loads(path.read_bytes()) for path in (tmp_path / "sweep-results/runs").iterdir()]
    for report in reports:
        config = report["config"]
        assert (config["training"]["learning_rate"], config["gossip"]["gamma"]) == (0.05, 0.5)
        assert (config["training"]["local_epochs"], config["training"]["local_steps"]) == (1, None)
    options = sorted(report["sweep"]["identity"]["options"]["byzantine"] for report in reports)
    assert options == [0, 1]
    assert len({report["value_digest"] for report in reports}) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[axes]\nnodes = [4, 7]\ntopology = ['torus']\n", "nodes=7, topology=torus"),
        ("[axes]\npartition = ['iid', 'halves']\n", "partition=halves"),
        ("[sweep]\nnodes = 4\n[axes]\nbyzantine = [1, 4]\nattack = ['mimic']\n", "byzantine=4, attack=mimic"),
        ("[sweep]\nbyzantine = 1\n[axes]\nattack = ['none', 'sign-flop']\n", "attack=sign-flop"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(command, write, tmp_path, text, told):
    code, out, err = command(write(text))
    assert (code, out) == (2, "")
    assert told in err
    assert "sweep.toml" in err
    assert list((tmp_path / "sweep-results/runs").iterdir()) == []


def test_a_run_refuses_other_files_and_other_software_than_the_sweep_began_with(write):
    world = write("[links]\nloss = 0.2\n", "world.toml")
    job = make_job({"world": str(world)}, 0)
    world.write_text("[links]\nloss = 0.3\n")
    with pytest.raises(UserError, match="not what the sweep began with: contents"):
        run(job)


@pytest.mark.parametrize(
    ("option", "said"),
    [("--engine", "--scheduler HOST:PORT names a Dask"), ("--plot", "use p2pfl sim plot"), ("--retry", "runs again")],
)
def test_an_option_that_is_gone_says_what_to_use(command, write, option, said):
    code, _, err = command(write(SWEEP), option)
    assert (code, f"{option} is gone: " in err, said in err) == (2, True, True)
