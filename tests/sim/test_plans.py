"""Plans: contradictory wishes, the order of the search, the ranking, and the files of the winner."""

from __future__ import annotations

import json
import shlex
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from p2pfl import Federation
from p2pfl.cli.check import check
from p2pfl.config import load_config
from p2pfl.errors import UserError
from p2pfl.learn import ACCURACY
from p2pfl.reporting import NodeReport, Report, Statistic
from sim import (
    PlanWishes,
    RunOutcome,
    check_place,
    check_wishes,
    find_graphs,
    make_plan,
    plan,
    result_of,
    silent,
    sim,
    systems,
    write_plan,
)
from sim.plans import systems as shortlist
from sim.plans.search import ATTACKS
from topologies import design as designing
from topologies import tolerance

found_once = cache(shortlist._designed)


@pytest.fixture(autouse=True)
def short_search(monkeypatch):
    """Graphs are searched in tests/topologies, and here once for each wish."""
    monkeypatch.setattr(shortlist, "EVALUATIONS", 20)
    monkeypatch.setattr(shortlist, "_designed", found_once)


@pytest.mark.parametrize(
    ("wishes", "key", "allowed"),
    [
        ({"nodes": None}, "--nodes", "--task FOLDER"),
        ({"nodes": 6, "liars": 3}, "--liars", "up to 2 of 6 nodes"),
        ({"nodes": 20, "max_degree": 4, "liars": 2}, "--liars", "--max-degree from 5"),
        ({"nodes": 5, "max_degree": 1}, "--max-degree", "from 2"),
    ],
)
def test_wishes_that_cannot_be_had_together_are_one_sentence(wishes, key, allowed):
    with pytest.raises(ExceptionGroup) as caught:
        check_wishes(PlanWishes(**wishes))
    (mistake,) = caught.value.exceptions
    assert mistake.key == key
    assert allowed in mistake.allowed


@pytest.mark.parametrize("value", ["0", "soon"])
def test_a_time_that_is_none_says_what_is_allowed(value):
    result = CliRunner().invoke(plan, ["--nodes", "8", "--within", value])
    assert result.exit_code == 2
    assert "allowed: a time above zero, as 90s, 5m or 1h" in result.output


def test_graphs_guarantee_the_liars_where_a_graph_can_and_say_why_where_none_can(tmp_path, monkeypatch):
    monkeypatch.setattr(designing, "DRAWS", 10)
    graphs, refusal = find_graphs(PlanWishes(nodes=9, max_degree=6, liars=1), tmp_path, silent)
    assert refusal is None
    assert graphs[0].guaranteed[0] >= 1
    assert tolerance(graphs[0].topology).guaranteed.lower >= 1
    graphs, refusal = find_graphs(PlanWishes(nodes=10, max_degree=3, liars=1), tmp_path, silent)
    assert "3-robust" in refusal
    assert all(graph.guaranteed[1] < 1 and graph.degree <= 3 for graph in graphs)


def test_no_further_graph_is_searched_when_the_time_for_graphs_is_up(tmp_path):
    graphs, _ = find_graphs(PlanWishes(nodes=8, max_degree=6), tmp_path, silent, until=0.0)
    assert [graph.degree for graph in graphs] == [4]


def test_the_search_begins_with_the_fewest_changes(tmp_path):
    wishes = PlanWishes(nodes=8, max_degree=4)
    graphs, _ = find_graphs(wishes, tmp_path, silent)
    found = systems(wishes, graphs)
    assert [one.changes for one in found] == sorted(one.changes for one in found)
    assert found[0].changes == 0
    lied_to = systems(PlanWishes(nodes=6, liars=1, partition="iid"), graphs)[0]
    assert (lied_to.rule, lied_to.method) == ("hampel:b=1", "momentum")
    few_classes = systems(PlanWishes(nodes=6, liars=1), graphs)[0]  # shards:2
    assert few_classes.rule == "nnm+trimmed-mean:b=1"
    frugal = PlanWishes(nodes=6, bytes_per_day=10**6)
    assert systems(frugal, graphs)[0].compressor == "rotate+q2"


@pytest.mark.parametrize(("most", "degrees"), [(None, [2, 4, 6, 12]), (7, [2, 4, 6, 7]), (5, [2, 3, 4, 5])])
def test_the_usual_degree_is_among_those_that_are_looked_at(most, degrees):
    assert shortlist._degrees(PlanWishes(nodes=200, max_degree=most)) == degrees


class Pretended:
    """Stands in for the processes: the figures of a run follow from its choices alone."""

    def __init__(self, worth, *, sent=None, ends_after=None, fails=None):
        self.worth, self.sent, self.ends_after, self.fails, self.jobs = worth, sent or {}, ends_after, fails, []

    def __call__(self, jobs, _run_job, _count, **_options):
        for job in jobs:
            if self.ends_after is not None and len(self.jobs) >= self.ends_after:
                raise KeyboardInterrupt
            self.jobs.append(job)
            if self.fails in job.options.values():
                yield job, RunOutcome(reason="its process was killed")
                continue
            yield job, RunOutcome(report=self.report(job.options).to_bytes())

    def report(self, options):
        value = 0.5 + sum(self.worth.get(options[name], 0.0) for name in ("rule", "compressor", "method", "attack"))
        value += self.worth.get(options.get("privacy"), 0.0)
        sent = self.sent.get(options["compressor"], 1_000)
        nodes = [NodeReport(name=f"node{i}", accuracy=value + i / 100, bytes_sent=sent + i) for i in range(3)]
        liars = [NodeReport(name="liar", accuracy=0.0, bytes_sent=10**9, byzantine=True)] * options["byzantine"]
        spread = Statistic(value, value, value)
        return Report(nodes=nodes + liars, accuracy=spread, measures=[ACCURACY], virtual_time_s=2.0)


@pytest.fixture
def pretend(monkeypatch):
    def install(*args, **options):
        pretended = Pretended(*args, **options)
        monkeypatch.setattr("sim.plans.search.run_here", pretended)
        return pretended

    return install


def plan_of(tmp_path, **wished):
    return make_plan(PlanWishes(**wished), tmp_path / "out", within_s=60.0, jobs=1, tell=silent)


def test_the_best_by_the_worst_condition_wins_and_not_the_best_without_liars(tmp_path, pretend, monkeypatch):
    monkeypatch.setattr(shortlist, "COMPRESSORS", ("q4",))
    pretend({"mean": 0.3, "cs+:b=1": 0.2, "hampel:b=1": 0.1, "mirror": -0.2})
    found = plan_of(tmp_path, nodes=6, max_degree=3, liars=1)
    best = found.winner
    assert best.system.rule == "mean"  # no attack in this made-up world touches it more
    assert best.lied_to == ("mirror", pytest.approx(0.6))
    assert best.seeds == 3
    assert best.attacks == len(ATTACKS)


def test_bytes_of_liars_do_not_count_and_a_system_over_the_limit_comes_last(tmp_path, pretend):
    pretend({"rotate+q2": 0.4, "q8": 0.2}, sent={"rotate+q2": 10_000, "q8": 5_000, "q4": 900})
    found = plan_of(tmp_path, nodes=6, bytes_per_day=6_000)
    assert found.winner.system.compressor == "q8"
    assert found.winner.bytes_per_day == 5_002
    assert found.refused == ()
    found = plan_of(tmp_path, nodes=6, bytes_per_day=500)
    assert found.winner.bytes_per_day == 902
    assert "902" in found.refused[0]


def test_ties_go_to_the_system_that_sends_less(tmp_path, pretend):
    pretend({"rotate+q2": 0.001}, sent={"rotate+q2": 10_000, "q8": 5_000, "q4": 900})
    assert plan_of(tmp_path, nodes=6).winner.system.compressor == "q4"


def test_a_stopped_plan_tells_the_best_so_far_and_goes_on_without_repeating(tmp_path, pretend):
    pretend({"q8": 0.3}, ends_after=4)
    stopped = plan_of(tmp_path, nodes=6)
    assert stopped.interrupted
    assert 0 < stopped.tried < stopped.of
    again = pretend({"q8": 0.3})
    found = plan_of(tmp_path, nodes=6)
    assert not found.interrupted
    assert len(again.jobs) + 4 == len({job.key for job in again.jobs}) + 4 == found.runs


def test_a_system_that_guarantees_what_is_wished_comes_before_a_better_one_that_does_not(
    tmp_path, pretend, monkeypatch
):
    monkeypatch.setattr(shortlist, "ROBUST_RULES", ("cs+",))
    monkeypatch.setattr(shortlist, "COMPRESSORS", ("q4",))
    pretend({"mean": 0.3, "cs+:b=1": 0.2})
    found = plan_of(tmp_path, nodes=5, liars=1)
    assert found.winner.system.rule == "cs+:b=1"
    assert found.refused == ()
    winner = load_config(write_plan(found, tmp_path / "out"))
    assert (winner.gossip.rule, winner.training.closing) == ("cs+:b=1", "train")
    command, *_ = json.loads((tmp_path / "out" / "plan.json").read_text())["ranking"][0]["commands"]
    assert "--closing train" in command


def test_systems_whose_runs_fail_are_left_out_and_the_reason_is_told(tmp_path, pretend):
    pretend({"q8": 0.3}, fails="q8")
    found = plan_of(tmp_path, nodes=3)
    assert "q8" not in {one.system.compressor for one in found.ranking}
    assert set(found.failures) == {"its process was killed"}


def test_ctrl_c_before_any_result_is_not_called_a_lack_of_time(tmp_path, pretend):
    pretend({}, ends_after=0)
    words = ["--nodes", "3", "--quiet", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(plan, words, standalone_mode=False)
    assert result.return_value == 130
    assert "before any run had ended" in result.output


def test_the_table_fits_on_a_page(tmp_path, pretend, monkeypatch):
    monkeypatch.setattr(shortlist, "ROBUST_RULES", ("nnm+trimmed-mean",))
    monkeypatch.setattr(shortlist, "COMPRESSORS", ("q4",))
    pretend({"nnm+trimmed-mean:b=1": 0.3, "rotate+sign": 0.1})
    words = ["--nodes", "4", "--liars", "1", "--bytes-per-day", "1G", "--quiet", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(plan, words)
    assert "nnm+trimmed-mean" in result.stdout
    assert "rotate+sign" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 110


def test_the_winner_has_no_values_of_an_earlier_plan_in_its_folder(tmp_path, pretend):
    pretend({})
    for wished, rounds, partition in (({"rounds": 7, "partition": "iid"}, 7, "iid"), ({}, 40, "shards:2")):
        winner = write_plan(plan_of(tmp_path, nodes=3, **wished), tmp_path / "out")
        federation = load_config(winner)
        assert federation.training.rounds == rounds
        assert federation.task.options["partition"] == partition  # without a wish that of the simulation


def test_a_winner_that_has_been_run_is_not_overwritten(tmp_path):
    (tmp_path / "winner" / "node0" / "state").mkdir(parents=True)
    with pytest.raises(UserError, match="has been run there"):
        check_place(tmp_path)
    result = CliRunner().invoke(plan, ["--nodes", "3", "-o", str(tmp_path)])
    assert isinstance(result.exception, UserError)


def test_a_federation_is_planned_from_another_folder_by_relative_paths(tmp_path, pretend, monkeypatch):
    pretend({})
    write_plan(plan_of(tmp_path, nodes=3, rounds=7), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    wishes = PlanWishes(task="out/winner", rounds=3)
    winner = write_plan(make_plan(wishes, Path("other"), within_s=60.0, jobs=1, tell=silent), Path("other"))
    assert tomllib.loads((winner / "changes.toml").read_text()) == {
        "federation": {"topology": "graph.json"},
        "training": {"method": "variate:beta=0.1", "rounds": 3},
        "gossip": {"rule": "mean", "compressor": "q4"},
    }
    assert (winner / "graph.json").is_file()


@pytest.mark.parametrize(
    ("large", "worth", "wished", "spec"),
    [
        (1_000, {}, {}, "fragment:2"),
        (10_000, {}, {}, "q4"),
        (1_000, {"q4": 0.1}, {}, "q4"),
        (1_000, {}, {"bytes_per_day": 2_000}, "q4"),
        (1_000, {}, {"max_degree": 3}, "q4"),
    ],
)
def test_of_equals_a_large_model_has_the_one_without_replicas_unless_bytes_are_short(
    *, tmp_path, pretend, monkeypatch, large, worth, wished, spec
):
    """The digits have 9,640 bytes. With three neighbors a node has few replicas."""
    monkeypatch.setattr("p2pfl.engine.rounds.LARGE_BYTES", large)
    Federation(nodes=6).save(tmp_path / "base")
    pretend(worth, sent={"fragment:2": 5_000, "q4": 900})
    wishes = PlanWishes(task=str(tmp_path / "base"), **wished)
    winner = write_plan(make_plan(wishes, tmp_path / "out", within_s=60.0, jobs=1, tell=silent), tmp_path / "out")
    assert tomllib.loads((winner / "changes.toml").read_text())["gossip"]["compressor"] == spec


def test_where_none_is_looked_at_closer_all_the_time_serves_the_first_look(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("sim.plans.search.time", SimpleNamespace(monotonic=lambda: clock.now))

    class FortySecondsEach(Pretended):
        def __call__(self, jobs, run_job, count, *, until, **options):
            for job in jobs:
                clock.now += 40.0
                if clock.now > until():
                    clock.now = until()
                    return
                yield from super().__call__([job], run_job, count, **options)

    monkeypatch.setattr("sim.plans.search.run_here", pretended := FortySecondsEach({}))
    found = make_plan(PlanWishes(nodes=6, rounds=3), tmp_path / "out", within_s=100.0, jobs=1, tell=silent)
    assert len(pretended.jobs) == found.tried == 2
    assert found.hurried


def test_no_time_for_one_run_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("sim.plans.search.run_here", lambda *_, **__: (_ for _ in ()))
    with pytest.raises(UserError, match="not even the first system"):
        plan_of(tmp_path, nodes=6)


def test_the_winner_is_a_federation_that_check_accepts_and_every_figure_has_its_command(tmp_path, pretend):
    pretend({"q8": 0.3, "momentum": 0.1})
    world = tmp_path / "bad.toml"
    world.write_text("[links]\nloss = 0.1\n")
    found = plan_of(tmp_path, nodes=6, rounds=7, world=world)
    winner = write_plan(found, tmp_path / "out")
    federation = load_config(winner)
    assert federation.gossip.compressor == "q8"
    assert (federation.training.rounds, federation.training.method) == (7, "momentum:mu=0.9")
    assert len(federation.members) == 6
    assert federation.edges == found.winner.system.graph.topology.edges
    assert CliRunner().invoke(check, [str(winner)]).exit_code == 0
    evidence = json.loads((tmp_path / "out" / "plan.json").read_text())
    words = shlex.split(evidence["ranking"][0]["commands"][0])
    assert words[:3] == ["p2pfl", "sim", "run"]
    assert {"--rounds", "7", "--world", str(world), "--seed", "0"} <= set(words)


def test_a_model_that_is_no_longer_finite_is_the_worst():
    nodes = [
        NodeReport(name="a", accuracy=0.9, bytes_sent=1),
        NodeReport(name="b", accuracy=float("nan"), bytes_sent=1),
    ]
    assert result_of(Report(nodes=nodes, measures=[ACCURACY])).worst == 0.0


@pytest.mark.long
def test_a_plan_of_real_runs_is_repeated_by_its_commands(tmp_path):
    runner = CliRunner()
    out = tmp_path / "plan"
    result = runner.invoke(plan, ["--nodes", "5", "--rounds", "3", "--within", "90s", "-o", str(out)])
    assert result.exit_code == 0, result.output
    row = json.loads((out / "plan.json").read_text())["ranking"][0]
    words = [*shlex.split(row["commands"][0])[1:], "--format", "json", "--quiet"]
    report = json.loads(runner.invoke(sim, words[1:]).stdout)
    reports = [json.loads(path.read_text()) for path in (out / "runs").glob("*.json")]
    assert report["digest"] in {one["digest"] for one in reports}


def test_where_models_are_hidden_bits_and_the_common_step_are_planned(tmp_path, pretend):
    Federation(nodes=6, privacy={"hide": "models", "outer_rate": 0.2}).save(tmp_path / "ward")
    pretended = pretend({"hide=models,bits=4,colluders=1,outer=adam,outer_rate=0.1": 0.3})
    found = plan_of(tmp_path, task=str(tmp_path / "ward"))
    assert (found.ranking[0].arrays, found.by_arrays) == (False, 40)
    looked = [job.options["privacy"] for job in pretended.jobs]
    assert looked[0] == "hide=models,bits=8,colluders=1,outer=adam,outer_rate=0.2"
    assert {job.options.get("clock") for job in pretended.jobs} == {"apart", None}
    winner = write_plan(found, tmp_path / "out")
    chosen = tomllib.loads((winner / "changes.toml").read_text())["privacy"]
    assert chosen == {"hide": "models", "bits": 4, "colluders": 1, "outer": "adam", "outer_rate": 0.1}
    command, *_ = json.loads((tmp_path / "out" / "plan.json").read_text())["ranking"][0]["commands"]
    assert "--privacy hide=models,bits=4," in command
    with pytest.raises(ExceptionGroup) as caught:
        check_wishes(PlanWishes(task=str(tmp_path / "ward"), liars=1))
    assert "spoils sums" in str(caught.value.exceptions[0])


def test_the_first_look_runs_as_arrays_what_these_can_simulate_and_the_last_one_is_exact(tmp_path, pretend):
    pretended = pretend({"q8": 0.3})
    found = plan_of(tmp_path, nodes=6)
    ways = {(job.options["method"].partition(":")[0], job.options.get("arrays", False)) for job in pretended.jobs}
    assert ("variate", True) in ways
    assert ("tracking", False) in ways
    assert ("tracking", True) not in ways
    assert not any(one.arrays for one in found.ranking)
    assert 0 < found.by_arrays < found.runs
    assert {job.options["clock"] for job in pretended.jobs if job.options.get("arrays")} == {"in-step"}
    lied_to = pretend({})
    make_plan(PlanWishes(nodes=5, liars=1), tmp_path / "liars", within_s=60.0, jobs=1, tell=silent)
    ways = {(job.options["rule"], job.options.get("arrays", False)) for job in lied_to.jobs if job.options["byzantine"]}
    assert {("cs+:b=1", True), ("mean", False)} <= ways
    assert ("mean", True) not in ways
    world = tmp_path / "slow.toml"
    world.write_text("[[slow]]\ncount = 1\nspeed = 0.5\n")
    apart = pretend({})
    make_plan(PlanWishes(nodes=6, world=world), tmp_path / "slow", within_s=60.0, jobs=1, tell=silent)
    assert {job.options["clock"] for job in apart.jobs if job.options.get("arrays")} == {"apart"}
