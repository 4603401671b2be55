"""`topology list` and `topology info`, as commands of their own."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import networkx as nx
import pytest
from click.testing import CliRunner

from p2pfl.cli.main import main
from topologies import (
    FAMILIES,
    GONE,
    FactorBudget,
    TopologyError,
    build,
    build_schedule,
    conductance_bounds,
    connectivity,
    parse,
    plain_extremes,
    spectral,
)
from topologies.cli import COMMANDS, topology
from topologies.cli.info import GROUPS
from topologies.metrics import describe

PROMISED = {
    "nodes",
    "edges",
    "connected",
    "components",
    "degree",
    "algebraic_connectivity",
    "laplacian_max_eigenvalue",
    "mixing_rate",
    "rounds_to_consensus",
    "messages_to_consensus",
    "diameter",
    "method",
    "residual",
    "certified",
    "seconds",
}


def call(*arguments):
    return CliRunner().invoke(topology, arguments, catch_exceptions=False)


def test_a_mixing_rate_below_one_is_never_written_as_one():
    assert "mixing rate               1 - 1.31595e-09\n" in call("info", "ring", "-n", "100000").stdout
    assert " 1 - 1.31595e-09 " in call("compare", "ring", "-n", "100000").stdout
    assert "mixing rate               1\n" in call("info", "erdos-renyi:p=0.0", "-n", "9").stdout


SAY_WHAT_THEY_ARE = {
    *("spec", "seed", "nodes", "edges", "connected", "components", "degree", "diameter"),
    *("laplacian max eigenvalue", "seconds"),
}


def test_info_explains_each_of_its_words_when_asked():
    plain, explained = call("info", "ring", "-n", "16"), call("info", "ring", "-n", "16", "--explain")
    assert "--explain" in plain.stderr
    assert "--explain" not in call("info", "ring", "-n", "16", "--format", "json").stderr
    figures, _, meaning = explained.stdout.partition("\nWhat the words mean:\n")
    words = {line.partition("  ")[0] for line in figures.splitlines()} - SAY_WHAT_THEY_ARE
    known = {word.replace("mixing certified", "certified").replace("messages to", "rounds to") for word in words}
    text = " ".join(meaning.split())
    assert [word for word in sorted(known) if word not in text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_and_fits_a_hundred_columns(name):
    said = call(name, "--help").stdout
    assert f"\n    p2pfl topology {name}" in said
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize("spec", ["ring", "random-regular", "erdos-renyi:p=0.01", "star"])
def test_info_as_json_has_every_promised_field(spec):
    result = call("info", spec, "-n", "36", "--format", "json")
    assert result.exit_code == 0
    assert set(json.loads(result.stdout)) >= PROMISED


def test_info_on_a_disconnected_graph_says_so_and_succeeds():
    result = call("info", "circulant:offsets=2", "-n", "8")
    assert result.exit_code == 0
    assert "rounds to consensus       -\n" in result.stdout
    assert "connected                 no\n" in result.stdout


def test_importing_the_package_loads_neither_numpy_nor_networkx_and_the_commands_never_torch():
    code = """
import sys, topologies, topologies.cli
assert not {"numpy", "networkx", "torch", "p2pfl"} & set(sys.modules)
topologies.cli.topology(["info", "random-regular", "-n", "20"], standalone_mode=False)
assert not {"torch", "p2pfl", "scipy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("missing", ["converged", "mixing_converged"])
def test_what_did_not_converge_ends_with_exit_code_4(monkeypatch, missing):
    found = describe.survey(build("ring", 5)) | {missing: False}
    monkeypatch.setattr(describe, "survey", lambda *_, **__: found)
    assert invoked("info", "ring", "-n", "5") == 4


def test_what_should_be_certified_and_is_not_ends_with_exit_code_4(monkeypatch):
    found = describe.survey(build("ring", 5)) | {"certified": False}
    monkeypatch.setattr(describe, "survey", lambda *_, **__: found)
    assert invoked("info", "ring", "-n", "5") == 0
    assert invoked("info", "ring", "-n", "5", "--certify") == 4


ASKED = ("info", "random-regular", "-n", "3000", "--format", "json")


@pytest.mark.parametrize(("given", "code"), [((), 4), (("--within", "1ms"), 4), (("--within", "1h"), 0)])
def test_what_is_known_when_its_time_is_over_is_told_with_exit_code_4(monkeypatch, capsys, given, code):
    monkeypatch.setattr("topologies.cli.info.LIMITS_S", (1e-3, 1e9))
    monkeypatch.setattr("topologies.eigen.CHEAP", FactorBudget(core=9, fill=9.0))
    exit_code, said = invoked(*ASKED, *given), capsys.readouterr()
    found, whole = json.loads(said.out), describe.survey(build("random-regular", 3000))
    assert (exit_code or 0, found["converged"], "--within gives" in said.err) == (code, not code, bool(code))
    assert (found["algebraic_connectivity"] > whole["algebraic_connectivity"]) is bool(code)
    assert found["diameter_bounds"] == whole["diameter_bounds"]
    assert found.keys() == whole.keys()


def test_a_proof_that_is_asked_for_has_no_time_by_default(monkeypatch):
    monkeypatch.setattr("topologies.cli.info.LIMITS_S", (1e-9, 1e-9))
    assert invoked("info", "watts-strogatz", "-n", "1500", "--certify") == 0
    assert invoked("info", "watts-strogatz", "-n", "1500") == 4


def test_bytes_to_consensus_are_messages_times_the_model():
    found = json.loads(call("info", "torus", "-n", "36", "--model-bytes", "400K", "--format", "json").stdout)
    assert found["bytes_to_consensus"] == 400_000 * found["messages_to_consensus"]
    assert found["bytes_per_round_busiest_node"] == 4 * 400_000


def test_a_schedule_is_described_too():
    found = json.loads(call("info", "base:k=1", "-n", "25", "--format", "json").stdout)
    assert (found["exact_after"], found["period"], found["rounds_to_consensus"]) == (9, 9, 9)


def invoked(*arguments):
    return topology(arguments, standalone_mode=False)


def test_a_misspelt_subcommand_is_answered_with_the_nearest():
    result = call("compair", "ring")
    assert result.exit_code == 2
    assert "Did you mean 'compare'?" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["attack", "ring", "-n", "6"],
        ["design", "-n", "5"],
        ["simulate", "ring", "-n", "6"],
        ["simulate", "base:k=1", "-n", "6"],
    ],
)
def test_a_seed_that_numpy_does_not_have_is_a_mistake(arguments):
    with pytest.raises(TopologyError, match=r"seed: no such seed \(found -1\); allowed: a whole number from 0"):
        call(*arguments, "--seed", "-1")


def test_design_for_more_nodes_than_a_graph_has_names_the_number_of_nodes():
    with pytest.raises(TopologyError, match="nodes: impossible size"):
        call("design", "-n", "2000001")


# -- `topology info`: lambda_2 comes first, and what a graph is too large for is named.


def test_lambda_2_is_the_first_figure_after_what_the_graph_is():
    for spec in ("torus", "base:k=1"):
        lines = call("info", spec, "-n", "16").stdout.splitlines()
        names = [line.partition("  ")[0] for line in lines]
        assert names[names.index("components") + 1] == "algebraic connectivity"


def test_a_cut_of_a_graph_with_even_degrees_is_even():
    graph = build("random-regular:degree=4", 200)
    found = connectivity(graph, spectral.plain_extremes(graph)).edges
    assert found.method == "degree, spectrum and sweep cut"
    assert (found.lower, found.upper) == (4, nx.edge_connectivity(graph.to_networkx()))


def test_figures_that_a_graph_is_too_large_for_are_named(monkeypatch):
    monkeypatch.setattr(describe, "cut_points", lambda _: None)
    large = call("info", "torus", "-n", "16").stdout
    assert "not computed              too large for: bridges, cut nodes\n" in large
    assert "\nbridges" not in large
    assert json.loads(call("info", "torus", "-n", "16", "--format", "json").stdout)["bridges"] is None


# -- `topology list`: complete in every format, and readable in a hundred columns.


def listed(*arguments):
    result = CliRunner().invoke(topology, ["list", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_page_fits_a_hundred_columns_without_colors_or_trailing_spaces_in_a_pipe():
    lines = listed().splitlines()
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in listed()
    assert all(line == line.rstrip() for line in lines)


def test_the_page_shows_every_family_once_under_what_a_federation_can_run():
    page = listed()
    for kind, title in GROUPS.items():
        group = page.partition(title)[2].split("\n\n")[1]
        specs = [parse(line.split()[0]).name for line in group.splitlines() if line[:1].isalpha()]
        assert specs == [name for name, family in FAMILIES.items() if family.kind.value == kind]


def test_one_family_is_told_with_its_source():
    assert all(family.source in listed(name) for name, family in FAMILIES.items())


@pytest.mark.parametrize("form", ["json", "csv"])
def test_every_fact_about_every_family_is_in_the_data(form):
    text = listed("--format", form)
    rows = json.loads(text) if form == "json" else list(csv.DictReader(io.StringIO(text)))
    assert [row["name"] for row in rows] == list(FAMILIES)
    for row, family in zip(rows, FAMILIES.values(), strict=True):
        assert (row["rule"], row["degree"], row["source"]) == (family.rule, family.degree, family.source)
        assert all((family.rule, family.degree, family.source))
        assert row["algebraic_connectivity"] == family.connectivity
        assert row["live"] in ({True, "yes"} if family.kind.value != "directed" else {False, "no"})
        assert all(key in row["parameters"] for key in family.parameters)


def test_every_spec_that_is_shown_can_be_typed():
    for row in json.loads(listed("--format", "json")):
        assert parse(row["spec"]).name == row["name"]


def test_one_family_is_told_in_full_with_what_its_parameters_mean_and_allow():
    page = listed("torus")
    assert "parameter dims" in page
    assert "such as 4x5x6" in page
    assert "live                    yes" in page
    assert json.loads(listed("torus", "--format", "json"))["allowed"]["rows"] == "a whole number from 2 to 1000000000"


def test_an_unknown_family_is_refused_with_the_nearest():
    with pytest.raises(TopologyError, match="did you mean 'torus'"):
        listed("toruss")


# -- What is refused names what would be right; no family is broken by default.

SIZES = [
    ("barbell", 7, "6 or 8"),
    ("barbell:path=5", 8, "7 or 9"),
    ("torus", 7, "6 or 8"),
    ("grid", 13, "12 or 14"),
    ("torus:rows=4", 10, "8 or 12"),
    ("torus:cols=5", 3, "such as 10"),
    ("torus:rows=3,cols=4", 10, "allowed: 12, rows times cols"),
    ("random-regular:degree=3", 9, "8 or 10 nodes"),
    ("random-regular:degree=6", 4, "; 7 nodes"),
    ("watts-strogatz:k=10", 7, "at least 11 nodes"),
    ("barabasi-albert:m=9", 7, "at least 10 nodes"),
]


@pytest.mark.parametrize(("spec", "nodes", "said"), SIZES)
def test_sizes_near_an_impossible_one_are_named(spec, nodes, said):
    with pytest.raises(TopologyError) as refused:
        build(spec, nodes)
    assert said in str(refused.value)


@pytest.mark.parametrize("sides", ["rows=4", "cols=4", "rows=3,cols=4", "rows=1", "cols=1,rows=9"])
def test_a_torus_is_built_exactly_when_its_sides_fit(sides):
    given = dict(part.split("=") for part in sides.split(","))
    for nodes in range(1, 26):
        pairs = [
            {"rows": str(rows), "cols": str(nodes // rows)} for rows in range(2, nodes // 2 + 1) if nodes % rows == 0
        ]
        fits = any(given.items() <= pair.items() for pair in pairs)
        try:
            built = build(f"torus:{sides}", nodes).nodes == nodes
        except TopologyError:
            built = False
        assert built == fits


@pytest.mark.parametrize("spec", FAMILIES)
def test_a_negative_seed_is_refused_by_every_family(spec):
    make = build if FAMILIES[spec].build else build_schedule
    with pytest.raises(TopologyError, match=r"seed: no such seed .found -1.; allowed: a whole number from 0"):
        make(spec, 9, -1)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "list"])
def test_a_negative_seed_is_refused_by_every_command(name):
    with pytest.raises(TopologyError, match="no such seed"):
        CliRunner().invoke(topology, [name, "ring", "-n", "9", "--seed", "-1"], catch_exceptions=False)


@pytest.mark.parametrize("name", GONE["topology"])
def test_a_family_that_is_gone_says_what_to_use(name):
    with pytest.raises(TopologyError, match=rf"^topology: {name} is gone: use \S"):
        build(f"{name}:size=4", 9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["augment", "ring", "-n", "9", "--add", "1"], "augment is gone: use p2pfl topology design SPEC --add K"),
        (["info", "ring", "-n", "9", "--near=1ms"], "topology info --help' for help. Error: --near is gone: use --far"),
        (["info", "ring", "-n", "9", "--weights", "max-degree"], "max-degree is gone: use metropolis or best-constant"),
        (["convert", "ring", "-n", "9", "ring.metis"], ".metis is gone: use edgelist"),
        (["convert", "ring", "-n", "9", "ring", "--to", "mtx"], "mtx is gone: use edgelist"),
        (["info", "ring.mtx"], ".mtx is gone: use edgelist"),
        (["list", "wheel"], "wheel is gone: use hierarchical"),
        (["info", "d-cliques:inter=fractal", "-n", "20"], "d-cliques:inter: fractal is gone: use ring or full"),
    ],
)
def test_what_is_gone_from_the_commands_says_what_to_use(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        main(["topology", *arguments])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("option", "suggested"), [("--json", True), ("--csv", False)])
def test_json_leads_to_its_format(capsys, option, suggested):
    with pytest.raises(SystemExit) as ended:
        main(["topology", "info", "ring", "-n", "8", option])
    assert (ended.value.code, f"--format {option[2:]}" in capsys.readouterr().err) == (2, suggested)


@pytest.mark.parametrize("spec", ["ring", "star", "barbell", "watts-strogatz", "complete"])
def test_the_conductance_lies_within_its_bounds(spec):
    graph = build(spec, 8, 1)
    low, high = conductance_bounds(graph, plain_extremes(graph), None)
    plain = graph.to_networkx()
    sets = [[node for node in range(8) if number >> node & 1] for number in range(1, 255)]
    exact = min(nx.conductance(plain, side) for side in sets)
    assert low <= exact <= high
    assert low > 0.0


def test_the_table_tells_conductance_from_the_cut():
    lines = CliRunner().invoke(topology, ["info", "barbell", "-n", "12"]).stdout.splitlines()
    cut = next(line for line in lines if line.startswith("thinnest cut"))
    assert "conductance" not in cut
    assert any(line.startswith("conductance ") for line in lines)
