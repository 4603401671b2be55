"""What a node takes from its disk where its federation file has changed between two starts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from p2pfl.config import load_node
from p2pfl.core import Freeze
from p2pfl.engine import entry, image
from p2pfl.errors import StorageError, UserError
from p2pfl.learn.privacy import Ledger
from p2pfl.node import make_engine, read_learned, read_setup, recover, snapshot_header
from p2pfl.storage import State, Store

FROZEN = {"incarnation": 0, "seq": 1, "version": 0, "echo": None, "weight": 1.0, "staleness": 1.0, "pace_s": 0.0}
KEPT, ANEW = (True, True), (False, False)
"""whether a request is pending, and whether the replicas are trusted."""


def setup_of(field):
    return read_setup(field.federation(), load_node(field.folder / "node0", field.federation()))


def save(field, *pending):
    """Node 0's state with requests on their way to these neighbors."""
    setup = setup_of(field)
    engine = make_engine(setup, None)
    for peer in pending:
        engine.run(Freeze(peer=peer, audit=False, **FROZEN))
    picture = image(engine.state, with_replicas=True)
    with closing(Store.open(setup.node.state_dir, durability="exchange")) as store:
        header = picture.header | snapshot_header(setup)
        store.checkpoint(State(header=header, arrays=picture.arrays, blobs=picture.blobs))


def recovered(field):
    setup = setup_of(field)
    with closing(Store.open(setup.node.state_dir, durability="exchange")) as store:
        edges = recover(setup, store).edges
    return {peer: (edge.record.pending is not None, edge.record.has_replicas) for peer, edge in edges.items()}


@pytest.mark.parametrize(
    ("edges", "first", "second"),
    [
        ({"node1": "q8"}, KEPT, KEPT),
        ({"node1": "q8", "node2": "q8"}, KEPT, ANEW),
        ({}, ANEW, KEPT),
        ({"node1": "q4"}, ANEW, KEPT),
        ({"node1": "q8", "node2": "none"}, KEPT, KEPT),
    ],
)
def test_a_request_that_was_encoded_otherwise_begins_its_edge_anew_and_no_other(ward, edges, first, second):
    """Sent again it would be read as what it is not."""
    field = ward(3)
    field.edges = {("node0", "node1"): "q8"}
    field.write()
    save(field, 1, 2)
    field.edges = {("node0", name): spec for name, spec in edges.items()}
    field.write()
    assert recovered(field) == {1: first, 2: second}


def test_an_edge_with_nothing_on_its_way_goes_on_with_another_compressor(ward):
    field = ward(3)
    save(field, 1)
    field.tables["gossip"]["compressor"] = "q8"
    field.write()
    assert recovered(field) == {1: ANEW, 2: (False, True)}


def test_a_log_written_with_another_compressor_is_not_replayed_on_a_snapshot_from_before(ward):
    """The newest snapshot is damaged: the one before it says how its own log is to be read, and not the next one."""
    field = ward(3)
    save(field, 1)
    field.tables["gossip"]["compressor"] = "q8"
    field.write()
    restarted(field, 2)
    newest = max((field.folder / "node0" / "state").glob("snapshot-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    field.tables["gossip"]["compressor"] = "none"
    field.write()
    assert recovered(field) == {1: ANEW, 2: ANEW}


def restarted(field, peer):
    """Node 0 comes back as it would, and freezes one request to this neighbor."""
    setup = setup_of(field)
    with closing(Store.open(setup.node.state_dir, durability="exchange")) as store:
        engine = make_engine(setup, recover(setup, store))
        picture = image(engine.state, with_replicas=True)
        header = picture.header | snapshot_header(setup)
        store.checkpoint(State(header=header, arrays=picture.arrays, blobs=picture.blobs))
        change = engine.run(Freeze(peer=peer, audit=False, **FROZEN)).change
        store.append(*entry(change))
        store.flush()


@pytest.fixture
def ward_of_torch(ward):
    """A model with two layers, of which the first is shared."""
    field = ward(3, task={"name": "digits"}, gossip={"share": "1.*"})
    save(field)
    return field


def test_with_other_tensors_shared_the_state_is_refused_with_both_filters(ward_of_torch):
    ward_of_torch.tables["gossip"]["share"] = ["*"]
    ward_of_torch.write()
    with pytest.raises(UserError, match="another model, of which other tensors are shared; remove it") as caught:
        recovered(ward_of_torch)
    assert (caught.value.key, caught.value.value) == ("share", ["1.*"])
    assert caught.value.allowed.startswith("['*'], or a folder of its own")
    assert caught.value.file == str(ward_of_torch.folder / "node0" / "state")
    with pytest.raises(UserError, match="of which other tensors are shared"):
        read_learned(ward_of_torch.folder / "node0")


def test_other_patterns_for_the_same_tensors_change_nothing(ward_of_torch):
    ward_of_torch.tables["gossip"]["share"] = ["1.weight", "1.bias"]
    ward_of_torch.write()
    assert recovered(ward_of_torch) == {1: (False, True), 2: (False, True)}


def test_a_compressor_that_does_not_fit_the_model_is_found_before_anything_is_opened(ward):
    field = ward(3)
    field.edges = {("node0", "node1"): "top-k:5000"}
    field.write()
    with pytest.raises(UserError, match="5000 values to keep") as caught:
        setup_of(field)
    assert (caught.value.file, caught.value.key) == (str(field.folder / "federation.toml"), "edge[0].compressor")


def with_a_ledger(field):
    """Node 0's setup, whose state has a ledger."""
    field.write()
    setup = setup_of(field)
    with closing(Store.open(setup.node.state_dir, durability="exchange")) as store:
        state = make_engine(setup, None).state
        state.ledger = Ledger(unit="record", word="w")
        picture = image(state, with_replicas=True)
        header = picture.header | snapshot_header(setup)
        store.checkpoint(State(header=header, arrays=picture.arrays, blobs=picture.blobs))
    return setup


@pytest.mark.parametrize("complete", [True, False])
def test_a_ledger_from_a_disk_that_has_lost_something_is_known_to_lack_entries(ward, monkeypatch, complete):
    setup = with_a_ledger(ward(2))
    monkeypatch.setattr("p2pfl.node.assembly.plan_by", lambda _: "a plan")
    with closing(Store.open(setup.node.state_dir, durability="exchange")) as store:
        loaded = replace(store.load(), complete=complete)
        monkeypatch.setattr(store, "load", lambda: loaded)
        assert recover(setup, store).ledger.is_whole == complete


def test_rounds_that_are_not_private_do_not_continue_a_log_with_a_ledger(ward):
    """Else an older snapshot would bring that ledger back, as if they had not been."""
    setup = with_a_ledger(ward(2))
    with closing(Store.open(setup.node.state_dir, durability="exchange")) as store:
        assert recover(setup, store).ledger is None
        with pytest.raises(StorageError, match="until a checkpoint succeeds: rounds that are not private"):
            store.append("budget", {})
