"""What is written is what was there, whatever the format, and others can read it."""

from __future__ import annotations

import io
import json
import pickle
import time
import tracemalloc
import zipfile
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topologies import (
    FORMATS,
    NPZ_NAMES,
    Topology,
    TopologyError,
    UnwritableError,
    build,
    read_topology,
    resolve,
    write_topology,
)
from topologies.cli import topology
from topologies.files import lists, markup

ODD_NAMES = ["a b", "é", "пять", '"quoted"', "&amp;", "&#65;", "<x>", "#1", "[]", "()", "% name", "%", "١", "a\nb", "-"]
NAMES = st.one_of(
    st.sampled_from(ODD_NAMES),
    st.integers(0, 12).map(str),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=4),
)


@st.composite
def graphs(draw):
    nodes = draw(st.integers(1, 8))
    pairs = [(i, j) for i in range(nodes) for j in range(i + 1, nodes)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    names = draw(st.none() | st.lists(NAMES, min_size=nodes, max_size=nodes, unique=True))
    weight = st.floats(5e-324, 1e300)
    weights = draw(st.none() | st.lists(weight, min_size=len(edges), max_size=len(edges))) if edges else None
    return Topology("by hand", nodes, edges, names=names or (), weights=weights)


def labelled(topology):
    """Nodes and edges by what they are called: `1, 0` as names are the numbers in another order."""
    called = topology.names or tuple(map(str, range(topology.nodes)))
    weights = [1.0] * len(topology.edges) if topology.weights is None else topology.weights.tolist()
    return set(called), {
        (frozenset((called[i], called[j])), w) for (i, j), w in zip(topology.edges, weights, strict=True)
    }


@pytest.mark.parametrize("form", FORMATS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(topology=graphs())
def test_a_graph_is_the_same_after_it_was_written_and_read(tmp_path, form, topology):
    """Or the writer says that the format cannot hold this name, a named node without edges, or weights."""
    path = tmp_path / "graph"
    try:
        write_topology(topology, path, form)
    except TopologyError as error:
        weighted = form == "adjlist" and topology.weights is not None
        assert error.key in {"names"} | ({"weights"} if weighted else set())  # noqa: PT017 - most graphs can be written
        assert form in {"edgelist", "adjlist", "graphml"}
        return
    assert labelled(read_topology(path, form=form)) == labelled(topology)


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"edgelist"}))
def test_nodes_keep_their_order_and_those_without_edges_stay(tmp_path, form):
    topology = Topology("", 5, [(0, 4), (1, 3)], names=["e", "d", "c", "b", "a"])
    write_topology(topology, tmp_path / "graph", form)
    read = read_topology(tmp_path / "graph", form=form)
    assert read == topology
    assert read.names == topology.names


def test_an_edge_list_keeps_numbered_nodes_without_edges(tmp_path):
    write_topology(Topology("", 5, [(1, 3)]), tmp_path / "g.edges")
    assert read_topology(tmp_path / "g.edges") == Topology("", 5, [(1, 3)])


def test_json_keeps_spec_and_seed_but_no_closed_form(tmp_path):
    write_topology(build("torus", 12, seed=7), tmp_path / "g.json")
    read = resolve(str(tmp_path / "g.json"))
    assert (read.spec, read.seed, read.formula) == ("torus", 7, None)


def test_the_path_of_a_file_that_was_converted_does_not_become_a_spec(tmp_path):
    (tmp_path / "secret.edges").write_text("0 1\n")
    write_topology(read_topology(tmp_path / "secret.edges"), tmp_path / "g.json")
    assert "secret" not in (tmp_path / "g.json").read_text()
    assert read_topology(tmp_path / "g.json").spec == str(tmp_path / "g.json")


@pytest.mark.parametrize("form", ["edgelist", "adjlist", "graphml", "gml", "json", "npz"])
def test_the_usual_libraries_read_what_is_written(tmp_path, form):
    topology = Topology("", 5, [(0, 1), (1, 2), (2, 3)], names=["v", "w", "x", "y", "z"])
    if form == "edgelist":
        topology = Topology("", 4, topology.edges, names=topology.names[:4])
    path = tmp_path / f"g.{form}"
    write_topology(topology, path, form)
    readers = {
        "edgelist": nx.read_edgelist,
        "adjlist": nx.read_adjlist,
        "graphml": nx.read_graphml,
        "gml": nx.read_gml,
        "json": lambda file: nx.node_link_graph(json.loads(file.read_text()), edges="edges"),
        "npz": lambda file: nx.from_scipy_sparse_array(scipy.sparse.load_npz(file)),
    }
    found = readers[form](path)
    expected = topology.to_networkx()
    if form != "npz":
        expected = nx.relabel_nodes(expected, dict(enumerate(topology.names)))
    assert nx.utils.graphs_equal(nx.Graph(found.edges), nx.Graph(expected.edges))
    assert set(found) == set(expected)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("g.edges", nx.write_edgelist),
        (
            "g.edgelist",
            lambda graph, path: nx.write_weighted_edgelist(
                nx.Graph([(i, j, {"weight": 1}) for i, j in graph.edges]), path
            ),
        ),
        ("g.adjlist", nx.write_adjlist),
        ("g.graphml", nx.write_graphml),
        ("g.gml", nx.write_gml),
        ("g.json", lambda graph, path: path.write_text(json.dumps(nx.node_link_data(graph, edges="links")))),
        ("G.JSON", lambda graph, path: path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))),
        ("g.npz", lambda graph, path: scipy.sparse.save_npz(path, nx.to_scipy_sparse_array(graph, format="coo"))),
    ],
)
def test_what_the_usual_libraries_write_can_be_read(tmp_path, name, write):
    graph = nx.circulant_graph(7, [1, 2])
    write(graph, tmp_path / name)
    assert nx.utils.graphs_equal(read_topology(tmp_path / name).to_networkx(), graph)


def test_the_nodes_of_a_grid_of_networkx_have_the_names_that_it_prints(tmp_path):
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(nx.grid_2d_graph(2, 2), edges="edges")))
    assert read_topology(tmp_path / "g.json").names == ("(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)")


def test_an_edge_list_that_counts_from_one_has_names(tmp_path):
    (tmp_path / "g.txt").write_text("10 2\n2 1\n")
    read = read_topology(tmp_path / "g.txt")
    assert read.names == ("1", "2", "10")
    assert read.edges == ((0, 1), (1, 2))


def test_a_number_with_a_leading_zero_is_a_name(tmp_path):
    (tmp_path / "g.txt").write_text("00 1\n")
    assert read_topology(tmp_path / "g.txt").names == ("00", "1")


def test_an_adjacency_list_may_name_each_edge_from_both_sides(tmp_path):
    (tmp_path / "g.adjlist").write_text("0 1 2\n1 0\n2 0\n")
    assert read_topology(tmp_path / "g.adjlist").edges == ((0, 1), (0, 2))


def test_gml_takes_labels_as_names_and_ignores_what_else_is_drawn(tmp_path):
    text = (
        'Creator "x"\ngraph\n[ directed 0\n node [ id 7 label "caf&#233;&#10;bar" graphics [ x 1.5e0 ] ]\n'
        ' node [ id 9 label "&lt;" ]\n edge [ source 7 target 9 value -1 ] ]\n'
    )
    (tmp_path / "g.gml").write_text(text)
    assert read_topology(tmp_path / "g.gml").names == ("café\nbar", "<")


def test_a_family_has_to_be_told_how_many_nodes_and_a_file_not(tmp_path):
    write_topology(build("ring", 5), tmp_path / "g.json")
    assert resolve(str(tmp_path / "g.json")).nodes == 5
    assert resolve(str(tmp_path / "g.json"), 5).nodes == 5
    with pytest.raises(TopologyError, match=r"has 5 nodes \(found 6\)"):
        resolve(str(tmp_path / "g.json"), 6)
    with pytest.raises(TopologyError, match="-n N"):
        resolve("ring")
    with pytest.raises(TopologyError, match="did you mean 'ring'"):
        resolve("rinng")


def test_a_federation_calls_the_nodes_of_a_file_as_it_likes(tmp_path):
    (tmp_path / "g.edges").write_text("b 0\nc b\n")
    assert build(str(tmp_path / "g.edges"), 4, names=["a", "b", "c", "d"]).edges == ((0, 1), (1, 2))


def test_a_graph_that_cannot_be_written_leaves_the_target_as_it_was(tmp_path):
    (tmp_path / "g.adjlist").write_text("old")
    with pytest.raises(TopologyError, match="cannot hold"):
        write_topology(Topology("", 2, [(0, 1)], names=["a", "b c"]), tmp_path / "g.adjlist")
    with pytest.raises(TopologyError, match="folder that exists"):
        write_topology(build("ring", 3), tmp_path / "none" / "g.json")
    assert (tmp_path / "g.adjlist").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "g.adjlist"]


# -- A file that holds no simple undirected graph is refused, with the place; no file can do more than that.

XML = "<graphml><graph edgedefault='undirected'>\n<node id='a'/><node id='b'/>\n{}\n</graph></graphml>"
GML = "graph [\nnode [ id 1 ] node [ id 2 ]\n{}\n]"
BOMB = (
    "<?xml version='1.0'?>\n<!DOCTYPE graphml [<!ENTITY a 'aaaaaaaaaa'>"
    + "".join(f"<!ENTITY {y} '{f'&{x};' * 10}'>" for x, y in zip("abcdefghij", "bcdefghijk", strict=True))
    + "]><graphml><graph><node id='&k;'/></graph></graphml>"
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.edges", "", "empty file"),
        ("g.edges", "# nothing\n", "no edges"),
        ("g.edges", "0 1\n1 2\n\n1 0\n", r"g\.edges:4: the same edge twice.*g\.edges:1"),
        ("g.edges", "0 1\n1 1\n", r"g\.edges:2: .*itself"),
        ("g.edges", "0 1 0.5\n1 2\n", r"g\.edges:2: an edge without a weight; allowed: .* on every edge, or on none"),
        ("g.edges", "0 1 -0.5\n", r"g\.edges:1: impossible weight \(found '-0.5'\); allowed: a number above 0"),
        ("g.edges", "0 1 nan\n", "weight"),
        ("g.edges", "0 1 0\n", "weight"),
        ("g.edges", "0 1 {'weight': -1}\n", "weight"),
        ("g.edges", "0 1 {'color': 'red'}\n", "not an edge"),
        ("g.edges", "0 1\n0\n", r"g\.edges:2: not an edge"),
        ("g.edges", "# nodes: 2\n0 1\n1 2\n", "3 nodes are named, where there should be 2"),
        ("g.edges", "# nodes: 999999999999\n0 1\n", "impossible number of nodes"),
        ("g.edges", b"0 1\n\xff 2\n", r"g\.edges:2: not UTF-8"),
        ("g.adjlist", "0 1 2\n1 2 2\n", r"g\.adjlist:2: the same edge twice"),
        ("g.adjlist", "0 1\n1 1\n", r"g\.adjlist:2: .*itself"),
        ("g.adjlist", "# nothing\n", "no nodes"),
        ("g.graphml", "no", r"g\.graphml: not GraphML: .*line 1"),
        ("g.graphml", "<html/>", "not GraphML"),
        ("g.graphml", "<graphml/>", "not GraphML"),
        ("g.graphml", BOMB, r"g\.graphml:2: a document type"),
        ("g.graphml", XML.format("<edge source='a' target='c'/>"), r"g\.graphml: edge a, c: unknown node .*'c'"),
        ("g.graphml", XML.format("<edge source='a'/>"), r"g\.graphml: a node without .*'target'"),
        ("g.graphml", XML.format("<edge source='a' target='a'/>"), r"g\.graphml: edge a, a: .*itself"),
        ("g.graphml", XML.format("<edge source='a' target='b' directed='true'/>"), "directed"),
        (
            "g.graphml",
            XML.format("<edge source='a' target='b'/>\n<edge source='b' target='a'/>"),
            r"same edge twice .*'a, b'",
        ),
        ("g.graphml", XML.format("<node id='a'/>"), "same node twice"),
        ("g.graphml", XML.format("<hyperedge/>"), "hyperedge"),
        ("g.graphml", XML.format("<graph/>"), r"g\.graphml:3: a second graph"),
        ("g.graphml", XML.format("<node id='c'>\n<graph><node id='d'/></graph></node>"), r"l:4: a second graph"),
        ("g.graphml", XML.format("<node id='a'/><edge source='a' target='c'/>"), "same node twice"),
        ("g.graphml", XML.format("<edge source='a' target='b' directed='1'/>"), r"g\.graphml:3: a directed edge"),
        ("g.graphml", XML.format("<node id='c'><data key='none'>1</data></node>"), "not GraphML: .*no key"),
        ("g.graphml", "<graphml><graph>" + "<a>" * 200_000, "not GraphML"),
        ("g.graphml", BOMB.encode("utf-16-le"), r"g\.graphml:1: a zero byte"),
        ("g.graphml", XML.replace("undirected", "directed").format(""), "a directed graph"),
        (
            "g.graphml",
            XML.replace("<graph ", "<key id='d' for='edge' attr.name='weight'/><graph ").format(
                "<edge source='a' target='b'><data key='d'>-2</data></edge>"
            ),
            r"g\.graphml: edge a, b: .*weight .*2",
        ),
        ("g.gml", "graph", "not GML: .*found EOF"),
        ("g.gml", "graph [ node ]", "not GML"),
        ("g.gml", "graph [ node [ id 1 ]", "not GML: .*found EOF"),
        ("g.gml", "nodes [ ]", "not GML: .*no graph"),
        ("g.gml", "]", "not GML"),
        ("g.gml", "graph [ node 3 ]", "not GML"),
        ("g.gml", "graph [ node [ label 3 ] ]", "no 'id'"),
        ("g.gml", GML.replace("node", "directed 1 node", 1).format(""), "directed"),
        ("g.gml", GML.format("edge [ source 1 target 3 ]"), "not GML: .*undefined target 3"),
        (
            "g.gml",
            GML.format("edge [ source 1 target 2 ]\nedge [ source 2 target 1 ]"),
            r"not GML: edge #1 \(2--1\) is duplicated",
        ),
        ("g.gml", GML.format("edge [ source 1 target 2 weight -1.5 ]"), r"g\.gml: edge 1, 2: .*weight"),
        ("g.gml", "[" * 100_000, "not GML"),
        ("g.gml", "graph [ a " * 50_000, "not GML"),
        ("g.json", "[" * 100_000, "not JSON"),
        ("g.json", "[1]", "node-link"),
        ("g.json", '{"directed": true, "edges": []}', "directed"),
        ("g.json", '{"edges": [{"source": 0}]}', "edge 0"),
        ("g.json", '{"edges": 3}', "node-link"),
        ("g.json", '{"edges": [], "links": []}', "node-link"),
        ("g.json", '{"nodes": [], "edges": []}', "impossible number of nodes"),
        ("g.json", '{"nodes": [1], "edges": []}', "nodes that are none"),
        ("g.json", '{"nodes": [{"id": null}], "edges": []}', "not a node"),
        ("g.json", '{"nodes": [{"id": "\\ud800"}], "edges": []}', "no text"),
        ("g.json", '{"nodes": [{"id": 1}, {"id": "1"}], "edges": []}', "same node twice"),
        ("g.json", '{"nodes": [{"id": 0}], "edges": [{"source": 0, "target": 1}]}', r"edge 0: unknown node"),
        ("g.json", '{"edges": [{"source": 0, "target": 1}, {"source": 1, "target": 0}]}', "edge 1: the same edge"),
        ("g.json", '{"edges": [{"source": 0, "target": 1, "weight": NaN}]}', "weight"),
        ("g.json", '{"edges": [{"source": 0, "target": 1, "weight": true}]}', "weight"),
        ("g.json", '{"graph": {"spec": 3}, "nodes": [{"id": 0}], "edges": []}', "where a graph comes from"),
        ("g.json", '{"graph": {"spec": "\\u001b[31m"}, "nodes": [{"id": 0}], "edges": []}', "not a spec"),
        ("g.json", '{"edges": [' + "[" * 900 + "]" * 900 + "]}", r"not an edge \(found 'a list of 1'\)"),
        ("g.npz", b"no", "not a sparse matrix"),
        ("g.csv", "0 1\n", r"g\.csv: .*suffix.*\.graphml"),
    ],
)
def test_a_file_that_is_no_simple_graph_is_refused_with_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TopologyError, match=message):
        read_topology(tmp_path / name)


@pytest.mark.parametrize("name", ["g.graphml", "g.gml"])
def test_what_networkx_would_read_is_small(tmp_path, monkeypatch, name):
    """It holds many times the size of a file."""
    write_topology(Topology("", 3, [(0, 1), (1, 2)]), tmp_path / name)
    monkeypatch.setattr(markup, "BYTES_LIMIT", (tmp_path / name).stat().st_size)
    assert read_topology(tmp_path / name).edge_count == 2
    monkeypatch.setattr(markup, "BYTES_LIMIT", markup.BYTES_LIMIT - 1)
    with pytest.raises(TopologyError, match=r"too large a file for this format .*edgelist"):
        read_topology(tmp_path / name)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp037", "none"])
def test_a_file_is_utf_8_whatever_encoding_it_declares(tmp_path, encoding):
    name, text = "g.graphml", f"<?xml version='1.0' encoding='{encoding}'?>\n" + XML.replace("'a'", "'é'").format("")
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_topology(tmp_path / name).names == ("é", "b")


def test_a_name_of_millions_of_signs_is_read_in_seconds(tmp_path):
    """Some releases of expat take quadratic time where such a name comes in portions."""
    name = "g.graphml"
    (tmp_path / name).write_text(XML.replace("'a'", f"'{'a' * 4_000_000}'").format(""))
    began = time.process_time()
    assert read_topology(tmp_path / name).nodes == 2
    assert time.process_time() - began < 5.0


def test_a_folder_and_a_missing_file_are_no_graphs(tmp_path):
    (tmp_path / "g.json").mkdir()
    with pytest.raises(TopologyError, match="directory"):
        read_topology(tmp_path / "g.json")
    with pytest.raises(TopologyError, match=r"No such file.*none\.json|none\.json.*No such file"):
        read_topology(tmp_path / "none.json")


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def archive(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_an_npz_file_is_never_unpickled(tmp_path):
    arrays = {"format": "csr", "shape": [2, 2], "indices": [0], "indptr": [0, 1, 1]}
    trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
    (tmp_path / "g.npz").write_bytes(archive(data=trap, **arrays))
    with pytest.raises(TopologyError, match="pickle"):
        read_topology(tmp_path / "g.npz")
    (tmp_path / "g.npz").write_bytes(archive(data=[1], p2pfl_names=trap, **arrays))
    with pytest.raises(TopologyError, match="pickle"):
        read_topology(tmp_path / "g.npz")
    (tmp_path / "g.npz").write_bytes(pickle.dumps(trap))
    with pytest.raises(TopologyError, match="not a sparse matrix"):
        read_topology(tmp_path / "g.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "arrays",
    [
        {"format": "csr", "shape": [2, 2], "data": [1], "indices": [7], "indptr": [0, 1, 1]},
        {"format": "csr", "shape": [2, 2], "data": [1], "indices": [0], "indptr": [0, 99, 1]},
        {"format": "csr", "shape": [2, 2], "data": [1], "indices": [0], "indptr": [0, -5, 1]},
        {"format": "coo", "shape": [2, 2], "data": [1], "row": [-1], "col": [0]},
        {"format": "coo", "shape": [10**12, 10**12], "data": [1], "row": [0], "col": [1]},
        {"format": "coo", "shape": [2, 3], "data": [1], "row": [0], "col": [1]},
        {"format": "coo", "shape": [2, 2], "data": [1.0], "row": [0], "col": [1]},
        {"format": "coo", "shape": [2, 2], "data": [2.0, 3.0], "row": [0, 1], "col": [1, 0]},
        {"format": "dia", "shape": [10**12, 10**12], "data": [[1.0]], "offsets": [0]},
        {"format": "os", "shape": [2, 2], "data": [1.0]},
        {"data": [1.0]},
        {
            "format": "coo",
            "shape": [2, 2],
            "data": [1, 1],
            "row": [0, 1],
            "col": [1, 0],
            "p2pfl_names": np.frombuffer(b"[1]", dtype=np.uint8),
        },
    ],
)
def test_an_archive_of_other_arrays_is_refused(tmp_path, arrays):
    (tmp_path / "g.npz").write_bytes(archive(**arrays))
    with pytest.raises(TopologyError):
        read_topology(tmp_path / "g.npz")


def test_an_archive_that_would_unpack_to_more_than_memory_holds_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "g.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("data.npy", b"\0" * 1_000_000)
    data = (tmp_path / "g.npz").read_bytes()
    lying = data.replace((1_000_000).to_bytes(4, "little"), (0xFFFFFFF0).to_bytes(4, "little"))
    (tmp_path / "g.npz").write_bytes(lying)
    with pytest.raises(TopologyError, match="too large"):
        read_topology(tmp_path / "g.npz")


@pytest.mark.long
@pytest.mark.parametrize("name", ["data", NPZ_NAMES])
def test_an_archive_of_zeros_is_refused_without_taking_the_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr(lists, "UNPACKED_LIMIT", 20_000_000)
    with (
        zipfile.ZipFile(tmp_path / "g.npz", "w", zipfile.ZIP_DEFLATED) as file,
        file.open(f"{name}.npy", "w") as array,
    ):
        for _ in range(40):
            array.write(bytes(1_000_000))
    assert (tmp_path / "g.npz").stat().st_size < 1_000_000
    tracemalloc.start()
    with pytest.raises(TopologyError, match="too large"):
        read_topology(tmp_path / "g.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_an_archive_of_more_edges_than_can_be_held_is_refused_before_they_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(lists, "EDGES_LIMIT", 2)
    write_topology(Topology("", 3, [(0, 1), (0, 2)]), tmp_path / "g.npz")
    assert read_topology(tmp_path / "g.npz").edge_count == 2
    write_topology(Topology("", 3, [(0, 1), (0, 2), (1, 2)]), tmp_path / "g.npz")
    with pytest.raises(TopologyError, match=r"too many edges.*allowed: up to 2"):
        read_topology(tmp_path / "g.npz")


def test_two_nodes_of_one_name_are_not_written(tmp_path):
    with pytest.raises(TopologyError, match="one name for each"):
        write_topology(Topology("", 2, [(0, 1)], names=["a", "a"]), tmp_path / "g.json")


def test_a_matrix_with_both_halves_of_every_edge_is_one_graph(tmp_path):
    matrix = scipy.sparse.csr_matrix(np.ones((3, 3)) - np.eye(3))
    scipy.sparse.save_npz(tmp_path / "g.npz", matrix)
    assert read_topology(tmp_path / "g.npz").edges == ((0, 1), (0, 2), (1, 2))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_a_failure_and_not_a_mistake():
    with pytest.raises(UnwritableError, match="No space left") as caught:
        write_topology(Topology("", 2, [(0, 1)]), Path("/dev/full"))
    assert caught.value.exit_code == 1


# -- `topology convert` as a command of its own.


def call(*arguments, text=None):
    return CliRunner().invoke(topology, [str(word) for word in arguments], input=text, catch_exceptions=False)


def test_a_family_can_be_written_and_a_file_written_anew(tmp_path):
    result = call("convert", "random-regular", "-n", 10, "--seed", 3, tmp_path / "g.graphml")
    assert (result.stdout, result.stderr) == ("", f"{tmp_path}/g.graphml: nodes 10, edges 20\n")
    call("convert", tmp_path / "g.graphml", tmp_path / "g.npz")
    assert read_topology(tmp_path / "g.npz") == build("random-regular", 10, 3)


def test_a_dash_is_standard_input_and_output():
    result = call("convert", "-", "-", "--from", "edgelist", "--to", "adjlist", text="0 1\n1 2\n")
    assert result.stdout == "0 1\n1 2\n2\n"
    written = json.loads(call("convert", "ring", "-n", 3, "-").stdout)
    assert written["graph"] == {"spec": "ring", "seed": 0}
    assert call("convert", "-", "-", "--to", "adjlist", text=json.dumps(written)).stdout == "0 1 2\n1 2\n2\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring", "-n", "5", "g.csv"], "suffix"),
        (["ring", "-n", "5", "g", "--to", "jsn"], "unknown format.*did you mean 'json'"),
        (["ring", "-n", "5", "-", "--to", "npz"], "needs a file"),
        (["complete", "-n", "100000", "g.json"], "more than can be held"),
        (["no/such/file", "g.json"], "No such file"),
    ],
)
def test_what_cannot_be_converted_says_why(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TopologyError, match=message):
        call("convert", *arguments)
    assert list(tmp_path.iterdir()) == []
