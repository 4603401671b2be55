"""Every mistake in a federation file names file, key, value and what is allowed."""

from __future__ import annotations

import pytest

from p2pfl.config import DisconnectedGraph, federation_mistakes, load_config
from p2pfl.errors import UserError

ONE_LINE = [
    ("seed = 0", "seed = -1", "federation.seed", -1, "whole number from 0"),
    ("seed = 0", "seed = 1.5", "federation.seed", 1.5, "whole number"),
    ('name = "ward-7"', 'name = ".hidden"', "federation.name", ".hidden", "not starting with a dot"),
    ('name = "ward-7"', "", "federation.name", None, "A-Z"),
    ('topology = "ring"', 'topology = "rng"', "federation.topology", "rng", "did you mean 'ring'"),
    ('topology = "ring"', 'topology = "hypercube"', "federation.topology", 3, "2 or 4"),
    ('topology = "ring"', 'topolgy = "ring"', "federation.topolgy", "ring", "topology"),
    ('name = "digits"', "name = 3", "task.name", 3, "text"),
    ("rounds = 40", "rounds = 40\ntime_s = 60", "training.time_s", 60, "one of the two"),
    ("rounds = 40", "time_s = 0", "training.time_s", 0, "above 0"),
    ("local_steps = 20", "local_steps = 5\nlocal_epochs = 1", "training.local_epochs", 1, "one of the two"),
    ('optimizer = "sgd"', 'optimizer = "sdg"', "training.optimizer", "sdg", "sgd, adam, adamw"),
    ("learning_rate = 0.2", "learning_rate = 0", "training.learning_rate", 0, "above 0"),
    ('# method = "variate:beta=0.1"', 'method = "fedprox"', "training.method", "fedprox", "prox:mu=0.01"),
    ('# method = "variate:beta=0.1"', 'method = "a.py:b,mu"', "training.method", "a.py:b,mu", "file.py:object,key=1"),
    ('compressor = "q4"', 'compressor = "q5"', "gossip.compressor", "q5", "q8, q4, q2"),
    ('# share = "*"', "share = 3", "gossip.share", 3, "a list of texts"),
    ('# share = "*"', 'share = ["head.*", " "]', "gossip.share", ["head.*", " "], "a list of texts"),
    ('rule = "mean"', 'rule = "median:b=0"', "gossip.rule", "median:b=0", "trimmed-mean:b=1"),
    ("# gamma = 1.0", "gamma = 1.01", "gossip.gamma", 1.01, "up to 1"),
    ("# max_wait_s = 5.0", "max_wait_s = false", "gossip.max_wait_s", False, "above 0"),
    ("# audit_every = 64", "audit_every = 1" + "0" * 400, "gossip.audit_every", None, "whole number"),
    ("10.0.0.1:8470", "10.0.0.1", "node[1].address", "10.0.0.1", "host:port"),
    ("10.0.0.1:8470", "10.0.0.1:65536", "node[1].address", "10.0.0.1:65536", "65535"),
    ("10.0.0.1:8470", "10.0.0.0:8470", "node[1].address", "10.0.0.0:8470", "different"),
    ('name = "pi1"', 'name = "../pi1"', "node[1].name", "../pi1", "A-Z"),
    ('name = "pi1"', 'name = "pi0"', "node[1].name", "pi0", "different"),
    ("[gossip]", "[gosip]", "gosip", "a table of 2", "gossip"),
    ("[gossip]", "[features]\n[gossip]", "features", "a table of 0", None),
]


@pytest.mark.parametrize(("right", "wrong", "key", "value", "allowed"), ONE_LINE)
def test_a_wrong_line_is_located(*, valid_text, write, right, wrong, key, value, allowed):
    assert right in valid_text
    path = write(valid_text.replace(right, wrong, 1))
    (mistake,) = federation_mistakes(path)
    assert (mistake.file, mistake.key) == (str(path), key)
    assert value is None or (mistake.value, type(mistake.value)) == (value, type(value))
    assert allowed is None or allowed in mistake.allowed
    with pytest.raises(UserError, match=r"federation\.toml"):
        load_config(path)


@pytest.mark.parametrize(
    "staleness",
    ["hinge", "hinge:1", "polynomial:-1", "constant:2", "constant:0", "none:1", "polynomial:x", "polynomal:1", "", 3],
)
def test_a_wrong_staleness_lists_the_right_ones(valid_text, write, staleness):
    value = f'"{staleness}"' if isinstance(staleness, str) else staleness
    text = valid_text.replace('# staleness = "hinge-polynomial:4,0.5"', f"staleness = {value}")
    (mistake,) = federation_mistakes(write(text))
    assert (mistake.key, mistake.value) == ("gossip.staleness", staleness)
    assert "hinge-polynomial:B,A" in mistake.allowed
    assert mistake.message == "not a text" if staleness == 3 else "staleness" in mistake.message


@pytest.mark.parametrize("change", [lambda key: key[:-1], lambda key: key + "=", lambda key: "B" + key[1:], str.lower])
def test_a_mistyped_key_is_found(valid_text, write, keys, change):
    (mistake,) = federation_mistakes(write(valid_text.replace(keys[1], change(keys[1]))))
    assert mistake.key == "node[1].key"
    assert mistake.message.startswith("pi1: ")
    assert "p2pfl key" in mistake.allowed
    assert ("mistyped" in mistake.message) == (len(mistake.value) == len(keys[1]))


def test_a_repeated_key_names_both_nodes(valid_text, write, keys):
    (mistake,) = federation_mistakes(write(valid_text.replace(keys[2], keys[0])))
    assert mistake.key == "node[2].key"
    assert "node[0] (pi0) and node[2] (pi2)" in mistake.message


def test_all_mistakes_are_found_at_once(valid_text, write):
    text = valid_text.replace("rounds = 40", "rounds = 0").replace('"mean"', '"hampl"').replace(":8470", "")
    assert [mistake.key for mistake in federation_mistakes(write(text))] == [
        "training.rounds",
        "gossip.rule",
        "node[0].address",
        "node[1].address",
        "node[2].address",
    ]


def test_one_node_is_no_federation(valid_text, write):
    alone = "[[node]]".join(valid_text.split("[[node]]")[:2])
    (mistake,) = federation_mistakes(write(alone))
    assert (mistake.key, mistake.value) == ("node", 1)


@pytest.mark.parametrize("text", ['node = 3\n[federation]\nname = "x"\n', 'node = ["a"]\n[federation]\nname = "x"\n'])
def test_node_must_be_a_list_of_tables(write, text):
    (mistake,) = federation_mistakes(write(text))
    assert (mistake.key, mistake.allowed) == ("node", "[[node]] once for each node")


@pytest.mark.parametrize("table", ["federation", "task", "training", "gossip"])
def test_a_table_that_is_none_is_a_mistake_and_no_crash(write, table):
    assert table in [mistake.key for mistake in federation_mistakes(write(f"{table} = 3\n"))]


def test_a_syntax_error_names_the_line(valid_text, write):
    path = write(valid_text.replace("[task]", "[task", 1))
    line = valid_text.splitlines().index("[task]") + 1
    (mistake,) = federation_mistakes(path)
    assert mistake.file == f"{path}:{line}"


@pytest.mark.parametrize("seed", ["1" + "0" * 5000, "0x1" + "0" * 5000, "[" * 100_000])
def test_what_python_cannot_read_or_write_out_is_a_mistake_and_no_crash(valid_text, write, seed):
    """Decimal numbers of more than 4,300 digits and brackets without end stop Python's own parser."""
    mistakes = federation_mistakes(write(valid_text.replace("seed = 0", f"seed = {seed}")))
    assert len(mistakes) == 1
    assert len(str(mistakes[0])) < 500


def test_a_missing_file_and_a_binary_one_are_mistakes(tmp_path):
    (missing,) = federation_mistakes(tmp_path / "federation.toml")
    (tmp_path / "federation.toml").write_bytes(b"\xff\xfe")
    (binary,) = federation_mistakes(tmp_path / "federation.toml")
    assert "No such file" in missing.message
    assert "UTF-8" in binary.message


def test_a_disconnected_graph_names_its_parts_and_has_its_own_exit_code(valid_text, write, tmp_path):
    (tmp_path / "graph.edges").write_text("pi0 pi2\n", encoding="utf-8")
    path = write(valid_text.replace('"ring"', '"graph.edges"'))
    with pytest.raises(DisconnectedGraph, match=r"2 parts.*pi0 pi2 \| pi1") as caught:
        load_config(path)
    assert (caught.value.exit_code, caught.value.key) == (3, "federation.topology")
