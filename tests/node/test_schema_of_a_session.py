"""Nodes whose tables are read by different schemas do not learn together, nor from an old state."""

from __future__ import annotations

import pytest

from p2pfl.config import HASH_BYTES, federation_text, load_config, load_node, node_file
from p2pfl.crypto import FederationMismatch
from p2pfl.engine import image
from p2pfl.errors import UserError
from p2pfl.net import control_binding
from p2pfl.node import binding, make_engine, make_node, read_learned, read_setup, recover, snapshot_header
from p2pfl.storage import State, Store

SCHEMA = 'target = "y"\nnumeric = ["x"]\nclasses = [0, 1]\n[stds]\nx = {std}\n'


@pytest.fixture
def setup(tmp_path):
    """One node, with that standard deviation in its schema."""
    (tmp_path / "t.csv").write_text("x,y\n1,0\n2,1\n")
    members = [make_node(tmp_path, name, 9000 + n, data={"path": "../t.csv"}) for n, name in enumerate("ab")]
    text = federation_text(name="f", topology="ring", task="csv", members=members, task_keys='schema = "schema.toml"\n')
    (tmp_path / "federation.toml").write_text(text, encoding="utf-8")

    def make(std=1.0):
        (tmp_path / "schema.toml").write_text(SCHEMA.format(std=std), encoding="utf-8")
        federation = load_config(tmp_path)
        return read_setup(federation, load_node(node_file(federation, "a"), federation))

    return make


def test_the_schema_and_nothing_else_tells_two_sessions_apart(setup):
    first, second, again = (binding(setup(std)) for std in (1.0, 2.0, 1.0))
    assert first == again
    theirs = dict(second.sections)
    assert [name for name, value in first.sections if theirs[name] != value] == ["schema"]
    assert "the schema of the tables" in str(FederationMismatch(b"", ("schema",)))
    assert [name for name, _ in control_binding(setup().federation).sections] == [name for name, _ in first.sections]
    assert dict(control_binding(setup().federation).sections)["schema"] == bytes(HASH_BYTES)


def test_a_state_of_another_schema_is_refused(setup, tmp_path):
    made = setup(1.0)
    engine = make_engine(made, None)
    store = Store.open(made.node.state_dir, durability="exchange")
    kept = image(engine.state, with_replicas=True)
    store.checkpoint(State(header=kept.header | snapshot_header(made), arrays=kept.arrays, blobs=kept.blobs))
    store.close()
    assert read_learned(tmp_path / "a").rounds == 0
    other = setup(2.0)
    store = Store.open(other.node.state_dir, durability="exchange")
    with pytest.raises(UserError, match="schema of the tables, pretrained model, kind of adapters or frozen weights"):
        recover(other, store)
    store.close()
    with pytest.raises(UserError, match="schema of the tables"):
        read_learned(tmp_path / "a")
