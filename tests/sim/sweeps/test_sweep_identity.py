"""A run's name: the same for the same run, another one for anything that could change its result."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from sim import load_sweep, make_job
from sim.sweeps import job as jobs
from sim.sweeps.plan import make_plan

FEDERATION = '[federation]\nname = "x"\ntopology = "./graph.edges"\n[task]\nname = "task.py:task"\ndata_path = "rows"\n'
WORLD = '[liars]\ncount = 1\nattack = "lies.py:lie"\n'


@pytest.fixture
def folder(tmp_path, write):
    def fill(name):
        write(FEDERATION, f"{name}/federation.toml")
        write(WORLD, f"{name}/world.toml")
        write('[data]\npath = "mine.csv"\n', f"{name}/pi1/node.toml")
        for file in ("pi1/mine.csv", "graph.edges", "task.py", "rows/1.csv", "lies.py", "labels.txt"):
            write(f"content of {file}", f"{name}/{file}")
        return tmp_path / name

    return fill


def keys(folder, more=""):
    path = folder / "sweep.toml"
    path.write_text(f'[sweep]\nseeds = 1\nbase = "federation.toml"\nworld = "world.toml"\n{more}', encoding="utf-8")
    return list(make_plan(load_sweep(path)).jobs)


@pytest.mark.parametrize(
    "file", ["federation.toml", "world.toml", "graph.edges", "task.py", "rows/1.csv", "lies.py", "pi1/mine.csv"]
)
def test_a_changed_byte_in_any_file_that_counts_is_another_run(folder, file):
    here = folder("here")
    before = keys(here)
    (here / file).write_text((here / file).read_text() + "# more\n")
    assert keys(here) != before


def test_a_file_that_nothing_names_does_not_count(folder):
    here = folder("here")
    before = keys(here)
    (here / "labels.txt").write_text("other")
    assert keys(here) == before


def test_where_the_files_lie_does_not_count(folder):
    assert keys(folder("here")) == keys(folder("there"))


def test_a_graph_file_counts_by_its_content(folder):
    here, there = folder("here"), folder("there")
    assert keys(here, 'topology = "./graph.edges"') == keys(there, 'topology = "./graph.edges"')
    (there / "graph.edges").write_text("0 1\n")
    assert keys(here, 'topology = "./graph.edges"') != keys(there, 'topology = "./graph.edges"')


def test_every_option_and_the_seed_count():
    jobs = [make_job({}, 0), make_job({}, 1), make_job({"nodes": 4}, 0), make_job({"nodes": 5}, 0)]
    assert len({job.key for job in jobs}) == 4


def test_fixed_or_on_an_axis_and_in_whatever_order_it_is_the_same_run(write):
    fixed = write("[sweep]\nseeds = 1\nrounds = 3\nnodes = 4\n", "fixed.toml")
    axes = write("[sweep]\nseeds = 1\n[axes]\nnodes = [4]\nrounds = [3]\n", "axes.toml")
    assert list(make_plan(load_sweep(fixed)).jobs) == list(make_plan(load_sweep(axes)).jobs)


def test_other_software_is_another_run(monkeypatch):
    before = make_job({}, 0).key
    monkeypatch.setattr(jobs, "software", lambda: {"version": "later", "source": "0"})
    assert make_job({}, 0).key != before


def test_the_digest_of_the_source_covers_what_a_run_goes_through():
    names = {name for name, _ in jobs._source()}
    decides = {"p2pfl/core/core.py", "p2pfl/aggregate/rules.py", "p2pfl/chance.py", "p2pfl/reporting/figures.py"}
    assert decides | {"sim/sweeps/job.py", "sim/kernel.py", "topologies/graph.py"} <= names


def test_references_beside_arrays_are_refused_by_name():
    job = make_job({"arrays": True, "references": True}, 0)
    with pytest.raises(UserError, match="are for runs without arrays"):
        jobs.build(job)
