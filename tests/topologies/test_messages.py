"""What is refused names what would be right; no family is broken by default."""

from __future__ import annotations

import networkx as nx
import pytest
from click.testing import CliRunner

from p2pfl.cli.main import main
from topologies import TopologyError, build, build_schedule
from topologies.cli import COMMANDS, topology
from topologies.errors import GONE
from topologies.families import FAMILIES
from topologies.metrics.cuts import conductance_bounds
from topologies.spectral import plain_extremes

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
    with pytest.raises(TopologyError, match=rf"^topology: {name} is gone; use \S"):
        build(f"{name}:size=4", 9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["augment", "ring", "-n", "9", "--add", "1"], "augment is gone; use p2pfl topology design SPEC --add K"),
        (["info", "ring", "-n", "9", "--within", "1s"], "info --within is gone; use Ctrl-C"),
        (["info", "ring", "-n", "9", "--near=1ms"], "--near is gone; use --far"),
        (["attack", "ring", "-n", "9", "--repeat", "3"], "--repeat is gone; use --seed"),
        (["simulate", "ring", "-n", "9", "--mode", "gossip"], "--mode is gone; use simulate without it"),
        (["info", "ring", "-n", "9", "--weights", "max-degree"], "max-degree is gone; use metropolis or best-constant"),
        (["convert", "ring", "-n", "9", "ring.metis"], ".metis is gone; use edgelist"),
        (["convert", "ring", "-n", "9", "ring", "--to", "mtx"], "mtx is gone; use edgelist"),
        (["info", "ring.mtx"], ".mtx is gone; use edgelist"),
    ],
)
def test_what_is_gone_from_the_commands_says_what_to_use(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        main(["topology", *arguments])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


MISSPELT = [("--json", True), ("--csv", False)]


@pytest.mark.parametrize(("option", "suggested"), MISSPELT)
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
