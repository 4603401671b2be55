"""What is written is what was there, whatever the format, and others can read it."""

from __future__ import annotations

import json
import stat

import networkx as nx
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topologies import Topology, TopologyError, build
from topologies.families import resolve
from topologies.files import FORMATS, read_topology, write_topology
from topologies.files.content import SUFFIXES

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


def test_every_format_has_a_suffix_and_every_suffix_a_format():
    assert set(SUFFIXES.values()) == set(FORMATS)


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


def test_a_target_keeps_its_mode_and_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.edges").write_text("old")
    (tmp_path / "real.edges").chmod(0o640)
    (tmp_path / "link.edges").symlink_to("real.edges")
    write_topology(build("ring", 3), tmp_path / "link.edges")
    assert (tmp_path / "link.edges").is_symlink()
    assert stat.S_IMODE((tmp_path / "real.edges").stat().st_mode) == 0o640
    assert read_topology(tmp_path / "real.edges") == build("ring", 3)


def test_a_graph_that_cannot_be_written_leaves_the_target_as_it_was(tmp_path):
    (tmp_path / "g.adjlist").write_text("old")
    with pytest.raises(TopologyError, match="cannot hold"):
        write_topology(Topology("", 2, [(0, 1)], names=["a", "b c"]), tmp_path / "g.adjlist")
    with pytest.raises(TopologyError, match="folder that exists"):
        write_topology(build("ring", 3), tmp_path / "none" / "g.json")
    assert (tmp_path / "g.adjlist").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "g.adjlist"]
