"""From a state and a log back to the very same bits: redo, image and restore, entries and changes."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair import Pair, asking, picture, replayed

from p2pfl.compress import make_compressor
from p2pfl.config import TrainingConfig
from p2pfl.core import (
    ApplyReply,
    ApplyRequest,
    Best,
    Bootstrap,
    CommitRound,
    EdgeRecord,
    RequestApplied,
    ResetEdge,
)
from p2pfl.engine import Codecs, EdgesWereChanged, Engine, NodeState, change, entry, image, redo, restore
from p2pfl.errors import StorageError
from p2pfl.learn import LocalRound
from p2pfl.learn.privacy import Ledger, Spend
from p2pfl.methods import Method, Variate, make_method


def eventful(**options):
    """A pair that has seen every kind of change, with one transaction under way."""
    pair = Pair(**{"beta": 0.1} | options)
    for step in range(6):
        pair.exchange(factor=float(step))
        model = pair.engines[step % 2].state.model
        pair.train(step % 2, model * model.dtype.type(0.9), samples=20 + step, rho=1.5)
    pair.train(0, None)
    for index in (0, 1):
        pair.run(index, ResetEdge(peer=1 - index, incarnation=3))
    pair.run(1, Bootstrap(peers=(0,)))
    pair.seq = 0
    pair.exchange(factor=2.0)
    assert isinstance(pair.apply_request(pair.freeze(), factor=3.0), RequestApplied)
    return pair


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spec", ["none", "q4"])
def test_the_log_alone_gives_back_the_state_bit_for_bit(spec, dtype):
    pair = eventful(spec=spec, dtype=dtype)
    for index, engine in enumerate(pair.engines):
        assert picture(log_of(pair, index)) == picture(engine.state)


@pytest.mark.parametrize("spec", ["tracking", "momentum", "outer", "fair:q=1"])
def test_what_a_method_keeps_and_has_heard_comes_back_from_log_and_image(spec):
    method = make_method(spec, TrainingConfig())
    pair = eventful(method=method)
    for index, engine in enumerate(pair.engines):
        state = log_of(pair, index)
        taken = image(state, with_replicas=True)
        back = restore(json.loads(json.dumps(taken.header)), taken.arrays, taken.blobs)
        for found in (state, back):
            assert found.channels.tobytes() == engine.state.channels.tobytes()
            assert found.terms == engine.state.terms
            assert found.kept.keys() == engine.state.kept.keys() == set(method.kept)
            for name, vector in found.kept.items():
                assert vector.tobytes() == engine.state.kept[name].tobytes()
            for peer, edge in found.edges.items():
                assert edge.kept.keys() == engine.state.edges[peer].kept.keys()
                assert all(
                    kept.tobytes() == engine.state.edges[peer].kept[name].tobytes() for name, kept in edge.kept.items()
                )


def test_whatever_leaves_the_node_must_be_on_disk_before_and_nothing_else_hurries():
    """Requests, answers and a new start; an applied answer or a round may be lost with the power."""
    pair = Pair()
    request = pair.freeze()
    applied = ApplyRequest(peer=0, request=request, factor=1.0, weight=1.0, version=1, pace_s=0.0)
    reply = pair.engines[1].run(applied)
    assert reply.urgent
    assert not pair.engines[0].run(ApplyReply(peer=1, reply=reply.event.reply)).urgent
    tick = CommitRound(version=1, trained=False, rho=0.0, elapsed_s=0.0, least_samples=0.0)
    assert not pair.engines[0].run(tick).urgent
    assert pair.engines[0].run(Bootstrap(peers=(1,))).urgent
    assert pair.engines[0].run(asking(1, seq=2)).urgent


def through_json(header):
    return json.loads(json.dumps(header))


def test_a_node_goes_on_from_an_image_as_if_nothing_had_happened():
    pair, twin = eventful(), eventful()
    for engine in twin.engines:
        taken = image(engine.state, with_replicas=True)
        engine.state = restore(through_json(taken.header), taken.arrays, taken.blobs)
    for both in (pair, twin):
        both.apply_reply(both.engines[1].state.edges[0].record.reply)
        for _ in range(3):
            both.exchange(factor=4.0, audit=True)
    for one, other in zip(pair.engines, twin.engines, strict=True):
        assert picture(one.state) == picture(other.state)


def test_an_image_without_replicas_keeps_the_model_and_says_that_the_edge_must_begin_anew():
    state = eventful().engines[0].state
    taken = image(state, with_replicas=False)
    assert sorted(taken.arrays) == ["model"]
    assert taken.header["whole"] is False
    assert taken.blobs == {}
    again = restore(through_json(taken.header), taken.arrays, taken.blobs)
    assert again.model.tobytes() == state.model.tobytes()
    assert again.edges[1].kept == {}
    record = again.edges[1].record
    assert (record.incarnation, record.seq, record.pending, record.has_replicas) == (3, 0, None, False)
    assert record.resyncs == state.edges[1].record.resyncs
    assert not np.any(again.edges[1].own)


def test_an_image_does_not_change_when_the_engine_goes_on():
    pair = eventful()
    taken = image(pair.engines[0].state, with_replicas=True)
    before = {name: array.tobytes() for name, array in taken.arrays.items()}, through_json(taken.header)
    pair.apply_reply(pair.engines[1].state.edges[0].record.reply)
    pair.train(0, pair.engines[0].state.model + np.float32(1))
    assert ({name: array.tobytes() for name, array in taken.arrays.items()}, through_json(taken.header)) == before


def test_a_restored_state_can_be_written_although_the_arrays_could_not():
    taken = image(eventful().engines[0].state, with_replicas=True)
    for array in taken.arrays.values():
        array.flags.writeable = False
    again = restore(taken.header, taken.arrays, taken.blobs)
    again.channels += 1.0
    again.edges[1].own += 1.0


def test_what_the_learner_keeps_for_itself_comes_back_by_name():
    state = Pair().engines[0].state
    state.local = {"bn.num_batches_tracked": np.array(7)}
    taken = image(state, with_replicas=True)
    again = restore(taken.header, taken.arrays, taken.blobs)
    assert {name: int(value) for name, value in again.local.items()} == {"bn.num_batches_tracked": 7}


def test_rounds_trained_without_a_ledger_are_counted_and_no_others():
    """Failed rounds, mixing, and a count taken over from neighbors tell nothing of a node's own rows."""
    pair = Pair()
    state = pair.engines[0].state
    pair.train(0, None)
    pair.run(0, CommitRound(version=1, trained=False, rho=0.0, elapsed_s=0.0, alone=0, least_samples=0))
    pair.run(0, Bootstrap(peers=(1,), rounds=9))
    assert (state.rounds, state.unpaid) == (9, 0)
    for ledger, unpaid in ((None, 1), (Ledger(unit="record", word="w"), 1), (None, 2)):
        state.ledger = ledger
        pair.train(0, state.model * np.float32(0.9))
        assert state.unpaid == unpaid
    taken = image(state, with_replicas=True)
    assert restore(through_json(taken.header), taken.arrays, taken.blobs).unpaid == 2


@pytest.mark.parametrize(
    ("ledger", "unpaid"),
    [
        (None, 7),
        (Ledger(unit="record", word="w"), 7),
        (Ledger(unit="record", word="w", spent=(Spend(1.0, 0.1, 3),)), 0),
        (Ledger(unit="record", word="w", order=2), 0),
    ],
)
def test_of_a_state_of_an_earlier_version_all_rounds_count_unless_some_are_known_to_be_paid(ledger, unpaid):
    """There a budget could begin behind rounds without one."""
    state = Pair().engines[0].state
    state.rounds, state.ledger = 7, ledger
    taken = image(state, with_replicas=True)
    del taken.header["unpaid"]
    assert restore(taken.header, taken.arrays, taken.blobs).unpaid == unpaid


@pytest.mark.parametrize("header", [{}, {"format": 2}, {"format": 4}, {"format": "3"}])
def test_a_state_of_another_format_is_refused(header):
    with pytest.raises(StorageError, match="format"):
        restore(header, {}, {})


def test_a_log_entry_of_an_unknown_kind_is_refused():
    with pytest.raises(StorageError, match="unknown log entry"):
        change("surprise", {}, [], np.dtype(np.float32))


PERSONAL = {"seen": np.array(7), "head.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 2))}


def named_bits(arrays):
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


def log_of(pair, index):
    """The state that the log of one node alone leads to."""
    return replayed(pair.start[index], pair.changes[index], pair.codecs, pair.method)


def test_what_the_learner_keeps_for_itself_is_committed_with_the_round():
    pair = Pair()
    pair.train(0, pair.engines[0].state.model + np.float32(1), local=PERSONAL)
    assert named_bits(pair.engines[0].state.local) == named_bits(PERSONAL)
    assert named_bits(log_of(pair, 0).local) == named_bits(PERSONAL)


def test_a_round_that_is_made_in_the_memory_of_the_model_is_committed_and_logged_as_a_whole():
    pair, rest = Pair(), {"version": 1, "trained": True, "rho": 1.0, "elapsed_s": 0.0, "least_samples": 0.0}
    state = pair.engines[0].state
    expected, memory = state.model + np.float32(1), state.model.ctypes.data

    def make(model):
        model += 1
        return LocalRound(vector=model, steps=1, learning_rate=0.1, samples=30, loss=0.0, local=PERSONAL)

    pair.engines[0].outcomes.put(make)
    assert not pair.run(0, CommitRound(**rest)).failed
    assert state.model.ctypes.data == memory
    assert state.rounds == state.version == 1
    again = log_of(pair, 0)
    assert state.model.tobytes() == again.model.tobytes() == expected.tobytes()
    assert named_bits(again.local) == named_bits(PERSONAL)
    assert picture(again) == picture(state)


@pytest.mark.parametrize("after", ["a mixing round", "a failed round", "a round that is no number"])
def test_a_round_that_does_not_count_leaves_what_the_learner_keeps(after):
    pair = Pair()
    model = pair.engines[0].state.model
    pair.train(0, model + np.float32(1), local=PERSONAL)
    if after == "a mixing round":
        pair.run(0, CommitRound(version=2, trained=False, rho=0.0, elapsed_s=1.0, least_samples=0.0))
    else:
        ended = None if after == "a failed round" else model * np.float32(np.nan)
        assert pair.train(0, ended, local={"seen": np.array(8)}).failed
    for state in (pair.engines[0].state, log_of(pair, 0)):
        assert named_bits(state.local) == named_bits(PERSONAL)


def test_a_change_of_the_graph_is_replayed_as_it_happened():
    """What stays keeps its memory; what is new is empty, also in the place of an edge that there was before."""
    state = NodeState.new(np.arange(3, dtype=np.float32), 5, (1, 2, 7))
    for peer, edge in state.edges.items():
        edge.own += peer
        edge.kept["flow"] = np.full(3, peer, np.float32)
        edge.record.seq = peer
    wanted = EdgesWereChanged(added=(0, 7), dropped=(1, 7))
    kind, header, blobs = entry(wanted)
    read = change(kind, json.loads(json.dumps(header)), blobs, np.dtype(np.float32))
    assert read == wanted
    stays = state.edges[2]
    redo(state, read, codecs=Codecs(make_compressor("none")), method=Method())
    assert list(state.edges) == [0, 2, 7]
    assert state.edges[2] is stays
    for peer in (0, 7):
        assert not state.edges[peer].own.any()
        assert state.edges[peer].kept == {}
        assert state.edges[peer].record == EdgeRecord()


def test_the_best_figure_survives_in_log_and_snapshot_and_is_of_no_other_model():
    pair = Pair()
    for version, best in ((1, None), (2, Best(0.25, 1))):
        tick = CommitRound(version=version, trained=False, rho=0.0, elapsed_s=0.0, least_samples=0.0, best=best)
        pair.run(0, tick)
        kind, header, blobs = entry(pair.changes[0][-1])
        again = change(kind, json.loads(json.dumps(header)), blobs, np.dtype(np.float32))
        state = copy.deepcopy(pair.start[0])
        redo(state, again, codecs=pair.codecs, method=pair.method)
        header = json.loads(json.dumps(image(state, with_replicas=False).header))
        assert state.best == restore(header, {"model": state.channels}, {}).best == best
    pair.run(0, Bootstrap(peers=(1,)))
    assert pair.engines[0].state.best is None


# -- Three engines, each edge with a compressor of its own, in any order of rounds and exchanges: whatever happens, both
# ends of an edge hold the same bits, and a log gives back those of its node.

SIZE, METHOD = 600, Variate()
EDGES = ((0, 1), (0, 2), (1, 2))
CHAINS = (
    "none",
    "float16",
    "q8",
    "q4",
    "q2",
    "sign",
    "bf16",
    "rotate+sign",
    "rotate+q2",
    "top-k:0.05",
    "top-k:40+q8",
    "random-k:0.1",
    "random-k:40+q4",
    "random-k:0.2+bf16",
    "q4+zstd",
    "top-k:0.1+q4+zstd",
)


class Triangle:
    """`specs` for the three edges. An operation that the core would not ask for now is left out."""

    def __init__(self, specs):
        made = dict(zip(EDGES, map(make_compressor, specs), strict=True))
        start = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
        self.engines = []
        for index in range(3):
            peers = tuple(peer for peer in range(3) if peer != index)
            codecs = Codecs(make_compressor("none"), {p: made[min(index, p), max(index, p)] for p in peers})
            state = NodeState.new(start + np.float32(index), 10 * (index + 1), peers, method=METHOD)
            self.engines.append(Engine(index=index, state=state, codecs=codecs, method=METHOD))
        self.starts = [copy.deepcopy(engine.state) for engine in self.engines]
        self.logs = [[], [], []]
        self.requests, self.replies = {}, {}
        self.seq = dict.fromkeys(EDGES, 0)

    def run(self, index, operation):
        outcome = self.engines[index].run(operation)
        if outcome.change is not None:
            self.logs[index].append(outcome.change)
        return outcome.event

    def train(self, index):
        engine = self.engines[index]
        start = engine.state.model.copy()
        step = np.random.default_rng(engine.state.version).standard_normal(SIZE).astype(np.float32)
        local = LocalRound(vector=start + step, steps=3, learning_rate=0.1, samples=10 + index, loss=0.0)
        engine.outcomes.put((start, local))
        version = engine.state.version + 1
        self.run(index, CommitRound(version=version, trained=True, rho=0.7, elapsed_s=1.0, least_samples=0.0))

    def advance(self, edge):
        """The next of the three steps of a transaction."""
        first, second = edge
        if edge in self.replies:
            self.run(first, ApplyReply(peer=second, reply=self.replies.pop(edge)))
            self.check(edge)
        elif edge in self.requests:
            request = self.requests.pop(edge)
            event = self.run(
                second, ApplyRequest(peer=first, request=request, factor=4.0, weight=9.0, version=1, pace_s=0.0)
            )
            self.replies[edge] = event.reply
        else:
            self.seq[edge] += 1
            incarnation = self.engines[first].state.edges[second].record.incarnation
            seq = self.seq[edge]
            freeze = asking(second, incarnation=incarnation, seq=seq, weight=5.0, audit=seq % 2 == 0)
            self.requests[edge] = self.run(first, freeze).request

    def reset(self, edge):
        """Both ends, as after messages were lost that the core cannot repeat."""
        self.requests.pop(edge, None)
        self.replies.pop(edge, None)
        self.seq[edge] = 0
        incarnation = self.engines[edge[0]].state.edges[edge[1]].record.incarnation + 1
        for index, peer in (edge, edge[::-1]):
            self.run(index, ResetEdge(peer=peer, incarnation=incarnation))

    def check(self, edge):
        first, second = (self.engines[a].state.edges[b] for a, b in (edge, edge[::-1]))
        assert first.own.tobytes() == second.peer.tobytes()
        assert first.peer.tobytes() == second.own.tobytes()
        assert first.record.chain == second.record.chain

    def recovered(self, index):
        return replayed(self.starts[index], self.logs[index], self.engines[index].codecs, METHOD)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(0, 2)),
        st.tuples(st.just("advance"), st.sampled_from(EDGES)),
        st.tuples(st.just("advance"), st.sampled_from(EDGES)),
        st.tuples(st.just("reset"), st.sampled_from(EDGES)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(specs=st.tuples(*[st.sampled_from(CHAINS)] * 3), steps=STEPS)
def test_any_order_of_rounds_and_exchanges_leaves_equal_replicas_and_logs_that_tell_all(specs, steps):
    triangle = Triangle(specs)
    for step, what in steps:
        getattr(triangle, step)(what)
    for index, engine in enumerate(triangle.engines):
        assert picture(triangle.recovered(index)) == picture(engine.state)
