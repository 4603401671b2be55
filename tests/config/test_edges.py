"""`[[edge]]` gives single edges a compressor of their own, and every mistake in it is located."""

from __future__ import annotations

import pytest

from p2pfl.config import federation_mistakes, load_config

PATH = ('topology = "ring"', 'topology = "path"')


def edge(between='["pi2", "pi1"]', compressor='"q8"'):
    lines = [f"{key} = {value}\n" for key, value in (("between", between), ("compressor", compressor)) if value]
    return "\n[[edge]]\n" + "".join(lines)


def test_one_edge_uses_its_own_compressor_and_the_others_that_of_all(valid_text, write):
    federation = load_config(write(valid_text + edge()))
    assert federation.edge_compressors == {(1, 2): "q8"}
    assert [federation.compressor_of(*pair) for pair in ((1, 2), (2, 1), (0, 1))] == ["q8", "q8", "q4"]


def test_an_edge_of_any_round_of_a_schedule_may_have_one(valid_text, write):
    text = valid_text.replace('"ring"', '"base:k=1"') + edge('["pi0", "pi2"]') + edge('["pi0", "pi1"]')
    federation = load_config(write(text))
    assert not set(federation.schedule[0]) >= set(federation.edges)
    assert set(federation.edge_compressors) == set(federation.edges) == {(0, 1), (0, 2)}


@pytest.mark.parametrize(
    ("text", "key", "said", "value", "allowed"),
    [
        (edge('["pi2", "pi0"]'), "between", "not neighbors in the graph", ["pi2", "pi0"], "pi2 with pi1; pi0 with pi1"),
        (edge('["pi1", "pi9"]'), "between", "no such node", "pi9", "pi0, pi1, pi2"),
        (edge('["pi1", "pi1"]'), "between", "pi1 twice", ["pi1", "pi1"], "two neighbors"),
        (edge("[1, 2]"), "between", "wrong type", "a list of 2", "two neighbors"),
        (edge(compressor=None), "compressor", "is missing", None, "none"),
        (edge(compressor='"q8"\ngamma = 1'), "gamma", "unknown key", 1, "between, compressor"),
    ],
)
def test_a_mistake_names_its_key_its_value_and_what_is_allowed(*, valid_text, write, text, key, said, value, allowed):
    path = write(valid_text.replace(*PATH) + text)
    (mistake,) = federation_mistakes(path)
    assert (mistake.file, mistake.key, mistake.value) == (str(path), f"edge[0].{key}", value)
    assert said in mistake.message
    assert allowed in mistake.allowed


@pytest.mark.parametrize("second", ['["pi1", "pi2"]', '["pi2", "pi1"]'])
def test_an_edge_that_is_there_twice_names_both_tables(valid_text, write, second):
    (mistake,) = federation_mistakes(write(valid_text + edge() + edge(second, '"sign"')))
    assert (mistake.key, mistake.message) == ("edge[1].between", "edge[0] and edge[1] are between the same nodes")


def test_every_mistake_in_every_table_is_found_at_once(valid_text, write):
    text = valid_text.replace(*PATH) + edge('["pi0", "pi2"]', '"q3"') + edge('["pi8", "pi9"]', None)
    assert [mistake.key for mistake in federation_mistakes(write(text))] == [
        "edge[0].compressor",
        "edge[0].between",
        "edge[1].compressor",
        "edge[1].between",
        "edge[1].between",
    ]


@pytest.mark.parametrize("table", ["edge = 3\n", "edge = [1]\n", '[edge]\nbetween = ["pi0", "pi1"]\n'])
def test_edge_must_be_a_list_of_tables(valid_text, write, table):
    text = table + valid_text if table.startswith("edge") else valid_text + table
    (mistake,) = federation_mistakes(write(text))
    assert (mistake.key, mistake.allowed) == ("edge", "[[edge]] once for each edge")


def test_without_usable_members_the_names_are_not_complained_about_too(valid_text, write):
    text = valid_text.replace('name = "pi1"', 'name = "../pi1"') + edge()
    assert [mistake.key for mistake in federation_mistakes(write(text))] == ["node[1].name"]


def test_without_a_graph_the_names_are_still_looked_up(valid_text, write):
    text = valid_text.replace('"ring"', '"rng"') + edge() + edge('["pi0", "pi9"]')
    assert [mistake.key for mistake in federation_mistakes(write(text))] == ["federation.topology", "edge[1].between"]


def test_where_members_may_change_all_edges_have_one_compressor(valid_text, write, keys):
    text = valid_text.replace("seed = 0", f'seed = 0\nadmin = ["{keys[3]}"]') + edge()
    (mistake,) = federation_mistakes(write(text))
    assert (mistake.key, mistake.message) == ("edge", "cannot be combined with federation.admin")
