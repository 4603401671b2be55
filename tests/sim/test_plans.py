"""Plans: contradictory wishes, the order of the search, the ranking, and the files of the winner."""

from __future__ import annotations

import json
import shlex
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from click.testing import CliRunner

from p2pfl.cli.check import check
from p2pfl.errors import UserError
from p2pfl.learn.metrics import ACCURACY
from p2pfl.reporting.measures import Statistic
from p2pfl.reporting.report import NodeReport, Report
from sim.cli import sim
from sim.cli.plan import _figure, plan
from sim.plans import search
from sim.plans import systems as shortlist
from sim.plans.search import HONEST, make_plan, result_of
from sim.plans.systems import PlanWishes, SlowWish, check_wishes, find_graphs, gains, systems, world_text
from sim.plans.winner import command_of, with_values, write_plan
from sim.sweeps.job import RunOutcome
from topologies import design as designing
from topologies.metrics.byzantine import tolerance

found_once = cache(shortlist._designed)


@pytest.fixture(autouse=True)
def short_search(monkeypatch):
    """Graphs are searched in tests/topologies, and here once for each wish."""
    monkeypatch.setattr(shortlist, "EVALUATIONS", 20)
    monkeypatch.setattr(shortlist, "_designed", found_once)


def silent(_words):
    pass


@pytest.mark.parametrize(
    ("wishes", "key", "allowed"),
    [
        ({"nodes": None}, "--nodes", "--task FOLDER"),
        ({"nodes": 6, "liars": 3}, "--liars", "up to 2 of 6 nodes"),
        ({"nodes": 20, "max_degree": 4, "liars": 2}, "--liars", "--max-degree from 5"),
        ({"nodes": 5, "slow": SlowWish(5, 10.0)}, "--slow", "up to 4 nodes"),
        ({"nodes": 5, "max_degree": 1}, "--max-degree", "from 2"),
        ({"nodes": 5, "far": ("5=60ms",)}, "--far", "the nodes of the graph: 0 to 4"),
        ({"nodes": 5, "far": ("60ms",)}, "--far", "as 28-29=60ms"),
    ],
)
def test_wishes_that_cannot_be_had_together_are_one_sentence(wishes, key, allowed):
    with pytest.raises(UserError) as caught:
        check_wishes(PlanWishes(**wishes))
    assert caught.value.key == key
    assert allowed in caught.value.allowed


@pytest.mark.parametrize(
    ("option", "value"),
    [("--loss", "105%"), ("--loss", "1"), ("--slow", "5"), ("--slow", "0x3"), ("--within", "0"), ("--within", "soon")],
)
def test_an_option_that_is_no_value_says_what_is_allowed(option, value):
    result = CliRunner().invoke(plan, ["--nodes", "8", option, value])
    assert result.exit_code == 2
    assert "allowed:" in result.output
    assert "Traceback" not in result.output


def test_the_world_of_the_wishes_reads_as_a_world_file():
    text = world_text(PlanWishes(nodes=8, loss=0.05, slow=SlowWish(3, 10.0)))
    assert tomllib.loads(text) == {
        "run": {"evaluate_every_s": 1e9},
        "links": {"loss": 0.05},
        "slow": [{"count": 3, "speed": 0.1}],
    }


def test_far_nodes_are_far_in_the_world_and_in_the_search_for_a_graph():
    wishes = PlanWishes(nodes=8, far=("6-7=60ms", "2=0.01s"))
    world = tomllib.loads(world_text(wishes))
    assert world["slow"] == [{"nodes": "6-7", "far_s": 0.06}, {"nodes": "2", "far_s": 0.01}]
    goal = wishes.goal(3)
    assert (goal.by_time, goal.train_s) == (True, pytest.approx(0.05))
    assert goal.distances.far_s.tolist() == [0.0, 0.0, 0.01, 0.0, 0.0, 0.0, 0.06, 0.06]
    assert PlanWishes(nodes=8).goal(3).minimize == "rounds"


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


def test_the_search_begins_with_the_fewest_changes_and_foretells_the_rest(tmp_path):
    wishes = PlanWishes(nodes=8, max_degree=4)
    graphs, _ = find_graphs(wishes, tmp_path, silent)
    found = systems(wishes, graphs)
    assert [one.changes for one in found] == sorted(one.changes for one in found)
    first, near = found[0], [one for one in found if one.changes <= 1]
    assert first.changes == 0
    lied_to = systems(PlanWishes(nodes=6, liars=1, partition="iid"), graphs)[0]
    assert (lied_to.rule, lied_to.method) == ("hampel:b=1", "momentum")
    few_classes = systems(PlanWishes(nodes=6, liars=1), graphs)[0]  # shards:2
    assert few_classes.rule == "nnm+trimmed-mean:b=1"
    frugal = PlanWishes(nodes=6, bytes_per_day=10**6)
    assert systems(frugal, graphs)[0].compressor == "rotate+q2"
    worth = {"q8": 0.1, "rotate+q2": 0.3, "momentum": 0.2}
    scores = {one: sum(worth.get(choice, 0.0) for choice in one.choices) for one in near}
    expected = gains(scores, first)
    for one in found:
        assert expected(one) == pytest.approx(sum(worth.get(choice, 0.0) for choice in one.choices))


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
        sent = self.sent.get(options["compressor"], 1_000)
        nodes = [NodeReport(name=f"node{i}", accuracy=value + i / 100, bytes_sent=sent + i) for i in range(3)]
        liars = [NodeReport(name="liar", accuracy=0.0, bytes_sent=10**9, byzantine=True)] * options["byzantine"]
        spread = Statistic(value, value, value)
        return Report(nodes=nodes + liars, accuracy=spread, measures=[ACCURACY], virtual_time_s=2.0, wall_time_s=0.01)


@pytest.fixture
def pretend(monkeypatch):
    def install(*args, **options):
        pretended = Pretended(*args, **options)
        monkeypatch.setattr(search, "run_here", pretended)
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
    assert best.attacks == len(search.ATTACKS)


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
    assert "advice where nodes know few classes, fewer than 5 honest neighbors for each liar" in result.stderr


def test_a_model_that_diverged_is_called_so():
    assert _figure(1e30) == "diverged"
    assert _figure(0.51234) == "0.512"


def test_the_winner_has_no_values_of_an_earlier_plan_in_its_folder(tmp_path, pretend):
    pretend({})
    for wished, rounds, partition in (({"rounds": 7, "partition": "iid"}, 7, "iid"), ({}, 40, "shards:2")):
        winner = write_plan(plan_of(tmp_path, nodes=3, **wished), tmp_path / "out")
        document = tomllib.loads((winner / "federation.toml").read_text())
        assert document["training"]["rounds"] == rounds
        assert document["task"]["partition"] == partition  # without a wish that of the simulation


def test_a_federation_with_a_time_limit_is_planned_from_another_folder_by_relative_paths(
    tmp_path, pretend, monkeypatch
):
    pretend({})
    base = write_plan(plan_of(tmp_path, nodes=3, rounds=7), tmp_path / "out") / "federation.toml"
    base.write_text(base.read_text().replace("rounds = 7 ", "time_s = 9.0 "))
    monkeypatch.chdir(tmp_path)
    wishes = PlanWishes(task="out/winner", rounds=3)
    found = make_plan(wishes, Path("other"), within_s=60.0, jobs=1, tell=silent)
    document = tomllib.loads((write_plan(found, Path("other")) / "federation.toml").read_text())
    assert document["training"]["rounds"] == 3
    assert "time_s" not in document["training"]


def test_the_best_get_a_closer_look_also_where_the_first_one_is_as_short_as_the_pilot(tmp_path, pretend):
    pretend({"q8": 0.3})
    assert plan_of(tmp_path, nodes=6, rounds=3).winner.seeds == 3


def test_a_system_is_not_looked_at_closer_before_there_is_another_to_compare_with(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: clock.now))
    find = search.find_graphs

    def slowly(*args):
        clock.now += 45.0
        return find(*args)

    monkeypatch.setattr(search, "find_graphs", slowly)

    class HalfASecondARound(Pretended):
        def __call__(self, jobs, run_job, count, *, until, **options):
            for job in jobs:
                clock.now += 0.5 * job.options["rounds"]
                if clock.now > until:
                    clock.now = until
                    return
                yield from super().__call__([job], run_job, count, **options)

        def report(self, options):
            return msgspec.structs.replace(super().report(options), wall_time_s=0.5 * options["rounds"])

    monkeypatch.setattr(search, "run_here", pretended := HalfASecondARound({}))
    make_plan(PlanWishes(nodes=6), tmp_path / "out", within_s=100.0, jobs=1, tell=silent)
    rounds = [job.options["rounds"] for job in pretended.jobs]
    assert rounds.count(5) > 2
    assert 40 not in rounds[:4]


def test_where_a_closer_look_would_show_no_more_the_time_serves_to_look_at_more_systems(tmp_path, pretend, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: clock.now))

    class TwentySecondsEach(Pretended):
        def __call__(self, jobs, run_job, count, *, until, **options):
            for job in jobs:
                clock.now += 20.0
                if clock.now > until:
                    clock.now = until
                    return
                yield from super().__call__([job], run_job, count, **options)

        def report(self, options):
            return msgspec.structs.replace(super().report(options), wall_time_s=20.0)

    monkeypatch.setattr(search, "run_here", pretended := TwentySecondsEach({}))
    found = make_plan(PlanWishes(nodes=6, rounds=3), tmp_path / "out", within_s=100.0, jobs=1, tell=silent)
    assert len(pretended.jobs) == 1 + found.tried == 4  # the exact run that says how long such a run takes
    assert found.hurried


def test_a_promise_of_privacy_is_simulated_for_all_rounds_for_fewer_would_take_less_noise(tmp_path, pretend):
    pretend({})
    base = write_plan(plan_of(tmp_path, nodes=3, rounds=40), tmp_path / "out") / "federation.toml"
    base.write_text(base.read_text() + "\n[privacy]\nepsilon = 3.0\ndelta = 1e-3\n")
    pretended = pretend({})
    found = make_plan(PlanWishes(task=str(base)), tmp_path / "private", within_s=1.0, jobs=1, tell=silent)
    assert found.winner.rounds == 40
    assert {job.options.get("rounds") for job in pretended.jobs} == {40}


def test_no_time_for_one_run_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "run_here", lambda *_, **__: (_ for _ in ()))
    with pytest.raises(UserError, match="not even the first system"):
        plan_of(tmp_path, nodes=6)


def test_the_winner_is_a_federation_that_check_accepts_and_every_figure_has_its_command(tmp_path, pretend):
    pretend({"q8": 0.3, "momentum": 0.1})
    found = plan_of(tmp_path, nodes=6, rounds=7, loss=0.1, seed=3)
    winner = write_plan(found, tmp_path / "out")
    document = tomllib.loads((winner / "federation.toml").read_text())
    assert document["gossip"]["compressor"] == "q8"
    assert document["training"] | {"rounds": 7, "method": "momentum"} == document["training"]
    assert document["federation"]["seed"] == 3
    assert len(document["node"]) == 6
    assert CliRunner().invoke(check, [str(winner)]).exit_code == 0
    evidence = json.loads((tmp_path / "out" / "plan.json").read_text())
    words = shlex.split(evidence["ranking"][0]["commands"][0])
    assert words[:3] == ["p2pfl", "sim", "run"]
    assert {"--rounds", "7", "--world", "--seed", "3"} <= set(words)


TEXT = """\
# ours
[federation]
name = "a" # keep
topology = "ring"

[training]
rounds = 5
# method = "variate"   # how

[gossip]
rule = "mean"
"""


def test_other_values_leave_the_rest_of_a_federation_file_as_it_is():
    changed = with_values(TEXT, {("training", "method"): "momentum", ("gossip", "compressor"): "q8"})
    assert 'name = "a" # keep' in changed
    assert 'method = "momentum"   # how' in changed
    assert tomllib.loads(changed)["gossip"] == {"rule": "mean", "compressor": "q8"}
    assert "rounds" not in tomllib.loads(with_values(TEXT, {("training", "rounds"): None}))["training"]
    assert with_values("x = 1\n", {("gossip", "rule"): "mean"}).count("[gossip]") == 1


@pytest.mark.parametrize(
    "text", ['gossip = { rule = "mean" }\n', '[gossip]\nrule = """\nmean"""\n', "gossip.rule = 'a'\n"]
)
def test_a_file_that_cannot_be_changed_by_lines_is_not_changed_wrongly(text):
    with pytest.raises(UserError, match="line by line"):
        with_values(text, {("gossip", "rule"): "cs+:b=1"})


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


def test_the_first_look_runs_as_arrays_what_these_can_simulate_and_the_last_one_is_exact(tmp_path, pretend):
    pretended = pretend({"q8": 0.3})
    found = plan_of(tmp_path, nodes=6)
    ways = {(job.options["method"].partition(":")[0], job.options.get("arrays", False)) for job in pretended.jobs}
    assert ("variate", True) in ways
    assert ("tracking", False) in ways
    assert ("tracking", True) not in ways
    assert not any(one.arrays for one in found.ranking)
    assert 0 < found.by_arrays < found.runs
    lied_to = pretend({})
    make_plan(PlanWishes(nodes=5, liars=1), tmp_path / "liars", within_s=60.0, jobs=1, tell=silent)
    assert not any(job.options.get("arrays") for job in lied_to.jobs if job.options["byzantine"])


def test_bytes_and_time_of_arrays_are_scaled_by_the_system_that_was_run_as_both(tmp_path, monkeypatch):
    class HalfAsMuch(Pretended):
        def report(self, options):
            found = super().report(options)
            if options.get("arrays"):
                found.virtual_time_s = None
                for node in found.nodes:
                    node.bytes_sent //= 2
            return found

    monkeypatch.setattr(search, "run_here", HalfAsMuch({}, ends_after=4))
    found = plan_of(tmp_path, nodes=6)
    assert found.interrupted
    assert all(one.arrays for one in found.ranking)
    assert found.winner.bytes_per_day == 1_002
    assert found.winner.time_s > 0
    assert "--arrays --clock in-step" in command_of(found, found.winner, HONEST, 0)


def test_what_arrays_found_before_the_first_exact_run_is_scaled_once_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "Report", SimpleNamespace(from_json=lambda one: one))
    monkeypatch.setattr(search, "result_of", lambda one: one.result)
    bench = search.Bench(wishes=PlanWishes(nodes=5), folder=None, world=tmp_path, count=1, tell=silent)
    other, rough, exact = (
        search.Trial(system=name, attack=HONEST, seed=0, rounds=4, arrays=arrays)
        for name, arrays in (("b", True), ("a", True), ("a", False))
    )
    for trial, busiest, time_s in ((other, 300, 0.0), (rough, 100, 0.0), (exact, 200, 8.0)):
        result = search.TrialResult(worst=0.9, mean=0.9, busiest=busiest, time_s=time_s, took_s=1.0)
        assert bench._read(trial, SimpleNamespace(main_measure=ACCURACY, result=result))
    assert [(bench.results[one].busiest, bench.results[one].time_s) for one in (other, rough)] == [
        (600, 8.0),
        (200, 8.0),
    ]
