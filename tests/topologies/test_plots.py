"""Pictures: that the right one is drawn, with what it has to show, or a mistake is told before anything is computed."""

from __future__ import annotations

import errno
import logging
import sys

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from topologies import (
    Topology,
    TopologyError,
    UnwritableError,
    _segments,
    build,
    describe,
    draw_single,
    is_circulant_in_order,
    layout,
    mixing_matrix,
    save,
)
from topologies.cli import topology
from topologies.plots import decay

HEADS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def call(*arguments):
    return CliRunner().invoke(topology, ["plot", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.long
@pytest.mark.parametrize("suffix", HEADS)
def test_a_graph_is_drawn_in_the_format_of_the_suffix_and_always_in_the_same_bytes(tmp_path, suffix):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    assert call("barbell", "-n", 8, "-o", first).stderr == f"picture: {first}\n"
    call("barbell", "-n", 8, "-o", second)
    assert first.read_bytes().startswith(HEADS[suffix])
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(
    "drawn",
    [
        Topology("two", 2, [(0, 1)]),
        Topology("$x^$", 3, [(0, 1), (1, 2)], names=["$_$", "a\nb", "x" * 99]),
        build("torus", 12),
        build("path", 30),
        build("complete", 5),
    ],
    ids=lambda drawn: f"{drawn.spec}-{drawn.nodes}",
)
def test_any_small_graph_can_be_drawn(tmp_path, drawn):
    draw_single(drawn, tmp_path / "g.png")
    assert (tmp_path / "g.png").stat().st_size > 10_000


def test_a_graph_in_parts_is_not_drawn(tmp_path):
    with pytest.raises(TopologyError, match="2 components") as caught:
        draw_single(Topology("parts", 4, [(0, 1), (2, 3)]), tmp_path / "g.png")
    assert caught.value.exit_code == 3


def test_a_graph_file_is_drawn_with_its_names(tmp_path):
    (tmp_path / "g.edges").write_text("kitchen hall\nhall garden\n")
    call(tmp_path / "g.edges", "-o", tmp_path / "g.svg")
    assert "<!-- kitchen -->" in (tmp_path / "g.svg").read_text()


def texts(path):
    return path.read_text(encoding="utf-8").partition("<svg")[2]


def test_the_picture_says_what_info_says(tmp_path):
    call("ring", "-n", 12, "-o", tmp_path / "g.svg")
    rounds = describe(build("ring", 12))["rounds_to_consensus"]
    assert f"<!-- ring: 12 nodes, 12 edges, {rounds} rounds to consensus -->" in texts(tmp_path / "g.svg")
    assert "= 0.2679, 2 times" in texts(tmp_path / "g.svg")
    assert "2 edges between 6 and 6 nodes" in texts(tmp_path / "g.svg")


def test_the_measured_decay_falls_by_the_rate_that_the_eigenvalues_predict():
    for last in (110, 400):
        matrix = mixing_matrix(build("path", 10))
        rounds, distances = decay(matrix, last)
        rate = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2]
        middle = len(rounds) // 2
        fall = (distances[-1] / distances[middle]) ** (1 / (rounds[-1] - rounds[middle]))
        assert fall == pytest.approx(rate, rel=1e-3)


def test_what_wraps_around_is_drawn_as_two_stubs_and_no_edge_crosses_the_picture():
    torus = build("torus", 36)
    segments = _segments(layout(torus), torus.ends)
    assert len(segments) == 72 + 12
    assert np.linalg.norm(segments[:, 0] - segments[:, 1], axis=1).max() == 1.0
    assert layout(build("grid", 36)).period is None, "nothing of it does"


def test_a_file_that_merely_claims_to_be_a_torus_is_not_drawn_as_one():
    claimed = Topology("torus", 36, build("random-regular", 36).ends)
    assert layout(claimed).period is None


@pytest.mark.parametrize("spec", ["ring", "circulant:offsets=1-3", "complete", "exponential"])
def test_a_circulant_graph_is_drawn_as_a_circle_whatever_it_is_called(spec):
    drawn = Topology("by hand", 12, build(spec, 12).ends)
    assert is_circulant_in_order(drawn)
    assert np.allclose(np.linalg.norm(layout(drawn).points, axis=1), 1.0)


@pytest.mark.parametrize("drawn", [build("path", 30), build("star", 12), build("barbell", 16)])
def test_no_two_nodes_lie_on_one_spot(drawn):
    points = layout(drawn).points
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert distances[~np.eye(drawn.nodes, dtype=bool)].min() > 0.02 * np.ptp(points, axis=0).max()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring", "-n", "1000000"], "from 2 to 2000"),
        (["ring", "-n", "1"], "from 2 to 2000"),
        (["complete", "-n", "1000"], "too dense"),
    ],
)
def test_what_cannot_be_drawn_says_why(tmp_path, arguments, message):
    with pytest.raises(TopologyError, match=message):
        call(*arguments, "-o", tmp_path / "g.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["g.jpg", "g", "none/g.png"])
def test_a_target_that_cannot_be_is_told_before_the_graph_is_looked_at(tmp_path, name):
    with pytest.raises(TopologyError, match="output"):
        call("no such graph", "-o", tmp_path / name)


@pytest.mark.parametrize("suffix", HEADS)
def test_a_picture_that_fails_leaves_the_old_one_and_nothing_beside_it(tmp_path, monkeypatch, suffix):
    def half(_figure, file, **_):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / f"g{suffix}"
    target.write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(UnwritableError, match="No space left"):
        call("ring", "-n", 5, "-o", target)
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(target, b"old")]


def test_a_picture_goes_where_a_link_leads(tmp_path):
    (tmp_path / "link.PNG").symlink_to("there.png")
    call("ring", "-n", 5, "-o", tmp_path / "link.PNG")
    assert (tmp_path / "link.PNG").is_symlink()
    assert (tmp_path / "there.png").read_bytes().startswith(HEADS[".png"])


def test_without_matplotlib_the_extra_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        call("ring", "-n", 5, "-o", tmp_path / "g.png")
    assert caught.value.name == "matplotlib"


def test_a_path_is_an_open_circle_and_a_grid_of_networkx_needs_no_more_than_springs():
    points = layout(build("path", 9)).points
    assert np.allclose(np.linalg.norm(points, axis=1), 1.0)
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 5))
    points = layout(Topology("", 15, grid.edges)).points
    assert np.ptp(points[:, 0]) > np.ptp(points[:, 1])


def test_fonts_that_a_machine_lacks_are_no_lines_on_the_terminal(tmp_path, caplog):
    class Noisy:
        def savefig(self, file, **options):
            logging.getLogger("matplotlib.font_manager").warning("findfont: Font family ['STIXGeneral'] not found.")
            file.write(b"picture")

    save(Noisy(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == b"picture"
    assert caplog.text == ""
    assert logging.getLogger("matplotlib.font_manager").isEnabledFor(logging.WARNING)
