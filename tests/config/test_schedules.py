"""A schedule as a federation's topology: read once, the same on every node, bound into the federation's identity."""

from __future__ import annotations

from fractions import Fraction

import pytest

from p2pfl.cli import exit_code
from p2pfl.config import federation_id, federation_mistakes, load_config
from p2pfl.config.charter import sections
from topologies import FAMILIES, Family, GraphKind, MixingMatrix, Schedule

TURNING = (((0, 1),), ((1, 2),), ((0, 1), (0, 2)))


def schedule_of(wanted, rounds, *, directed=False):
    half = Fraction(1, 2)
    mixings = []
    for edges in rounds:
        shares = dict.fromkeys(edges, half) | ({} if directed else {(j, i): half for i, j in edges})
        mixings.append(MixingMatrix.of(wanted.nodes, shares))
    return Schedule(wanted.spec, wanted.nodes, mixings, wanted.seed, directed=directed)


@pytest.fixture
def family(monkeypatch):
    """Make a family of schedules known: `family(name, rounds)`."""

    def family(name, rounds, kind=GraphKind.SCHEDULE):
        new = Family(
            rule="",
            degree="",
            kind=kind,
            schedule=lambda wanted: schedule_of(wanted, rounds, directed=kind is GraphKind.DIRECTED),
        )
        monkeypatch.setitem(FAMILIES, name, new)

    return family


@pytest.fixture
def on(valid_text, write):
    """The path of a federation of three on that topology."""
    return lambda spec: write(valid_text.replace('"ring"', f'"{spec}"'))


def test_the_edges_are_the_union_and_the_schedule_has_those_of_each_round(family, on):
    family("turning", TURNING)
    federation = load_config(on("turning"))
    assert federation.edges == ((0, 1), (0, 2), (1, 2))
    assert federation.schedule == TURNING
    assert federation.edges_at_once == pytest.approx(4 / 3)
    assert federation.neighbors(2) == (0, 1)
    assert federation.degrees == (2, 1, 1)


def test_a_graph_that_stands_still_has_no_schedule(on):
    federation = load_config(on("ring"))
    assert federation.schedule == ()
    assert federation.edges_at_once == 3
    assert federation.degrees == (2, 2, 2)


def test_other_rounds_on_the_same_union_make_another_federation_by_its_edges(family, on):
    """Two nodes whose rounds differ would wait for exchanges that the other does not want."""
    ids, edges = set(), set()
    for rounds in (TURNING, TURNING[::-1], TURNING[1:] + TURNING[:1], (((0, 1), (0, 2), (1, 2)),)):
        family("turning", rounds)
        federation = load_config(on("turning"))
        assert federation.edges == ((0, 1), (0, 2), (1, 2))
        ids.add(federation_id(federation))
        edges.add(dict(sections(federation))["edges"])
    ids.add(federation_id(load_config(on("ring"))))
    edges.add(dict(sections(load_config(on("ring"))))["edges"])
    assert len(ids) == len(edges) == 5


def test_a_directed_graph_is_refused_and_undirected_ones_are_named(family, on):
    family("arrows", (((0, 1), (1, 2)),), kind=GraphKind.DIRECTED)
    family("turning", TURNING)
    (mistake,) = federation_mistakes(on("arrows"))
    assert (exit_code(mistake), mistake.key, mistake.value) == (2, "federation.topology", "arrows")
    assert "arrows: is directed" in mistake.message
    assert "ring" in mistake.allowed
    assert "turning" in mistake.allowed
