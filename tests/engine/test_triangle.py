"""Three engines, each edge with a compressor of its own, in any order of rounds and exchanges: whatever happens, both
ends of an edge hold the same bits, and a log gives back those of its node.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl.compress import make_compressor
from p2pfl.core.events import ApplyReply, ApplyRequest, CommitRound, Freeze, ResetEdge
from p2pfl.engine.arithmetic import Codecs
from p2pfl.engine.engine import Engine
from p2pfl.engine.state import NodeState
from p2pfl.learn.interface import LocalRound
from p2pfl.methods import Variate

sys.path.insert(0, str(Path(__file__).parent))
from pair import picture, replayed

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
            freeze = Freeze(
                peer=second,
                incarnation=incarnation,
                seq=self.seq[edge],
                version=1,
                echo=None,
                weight=5.0,
                staleness=1.0,
                pace_s=0.0,
                audit=self.seq[edge] % 2 == 0,
            )
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
