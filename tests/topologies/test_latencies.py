"""How far nodes are: options and files as people write them, and one clear error for what is no distance."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import TopologyError, build
from topologies.timing import latencies, read_far

NAMES = ("north", "south", "east-1")


@pytest.fixture
def file(tmp_path):
    def file(text):
        path = tmp_path / "d.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return file


def test_a_far_node_is_far_from_all_and_two_of_them_twice_as_far_from_each_other():
    found = latencies(5, far=[read_far("3-4=60ms"), read_far("0,3=0.01s")])
    ends = np.array([(0, 1), (1, 2), (2, 4), (3, 4)])
    assert found.of(ends) == pytest.approx([0.012, 0.002, 0.062, 0.132])
    assert found.matrix()[ends[:, 1], ends[:, 0]] == pytest.approx(found.of(ends))


def test_names_are_names_even_with_a_hyphen():
    assert latencies(3, names=NAMES, far=[read_far("east-1=5ms")]).far_s.tolist() == [0.0, 0.0, 0.005]


LINES = "a,b,ms\nnorth,south,10\nsouth,north,20\nsouth,east-1,.06s\n"
MATRIX = ",north,east-1,south\nnorth,0,2,10\neast-1,2,0,60\nsouth,20,60,0\n"


@pytest.mark.parametrize("text", [LINES, "\ufeff" + MATRIX, LINES.replace("\n", "\r\n\r\n")])
def test_lines_and_a_matrix_say_the_same_and_both_directions_count_half(file, text):
    found = latencies(3, names=NAMES, file=file(text))
    assert found.matrix() == pytest.approx(np.array([[0, 0.015, 0.002], [0.015, 0, 0.06], [0.002, 0.06, 0]]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no distances"),
        (b"\xff,b,3\n", "not a CSV file in UTF-8"),
        (
            "north,west,3\n",
            r"d\.csv:1: no such node \(found 'west'\); allowed: the nodes of the graph: north, south, east-1",
        ),
        ("0,1,3\n", r"no such node \(found '0'\)"),
        ("north,south\n", r"d\.csv:1: not a distance .*lines `a,b,60ms`, or a matrix"),
        ("north,south,fast\nnorth,east-1,soon\n", r"d\.csv:2: not a time \(found 'soon'\); allowed: a time, as 60ms"),
        ("north,south,-3\n", r"d\.csv:1: not a time \(found '-3'\)"),
        ("north,south,nan\nsouth,north,inf\n", r"d\.csv:2: not a time \(found 'inf'\)"),
        ("north,north,3\n", "from a node to itself"),
        ("north,south,3\nnorth,south,4\n", r"d\.csv:2: the same two nodes again"),
        (",north,south\nnorth,0,1\nsouth,1,0\n", r"the matrix has 2 of the graph's 3 nodes"),
        (",north,south,east-1\nnorth,0,1,2\nsouth,1,0\neast-1,2,1,0\n", r"d\.csv:3: not a line of the matrix"),
    ],
)
def test_a_file_that_tells_no_distances_of_these_nodes_is_refused(file, text, said):
    with pytest.raises(TopologyError, match=said):
        latencies(3, names=NAMES, file=file(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("28-29", "not a distance .*as 28-29=60ms"),
        ("3=60", "not a distance"),
        ("=60ms", "not a distance"),
        ("3=-1ms", "not a distance"),
        ("9=1ms", r"no such node \(found '9'\); allowed: the nodes of the graph: 0 to 4"),
        ("3-2=1ms", "an empty range"),
        ("2,1-3=1ms", "names a node twice"),
    ],
)
def test_what_is_no_far_node_is_refused(text, said):
    with pytest.raises(TopologyError, match=said):
        latencies(5, far=[read_far(text)])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TopologyError, match=r"distances: cannot read the distances: No such file"):
        latencies(3, file=tmp_path / "none.csv")


def test_a_graphs_edges_get_the_times_of_its_pairs(file):
    found = latencies(3, file=file("2,0,7\n"))
    assert found.of(build("ring", 3).ends).tolist() == [0.002, 0.007, 0.002]
