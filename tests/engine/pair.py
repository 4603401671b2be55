"""Two engines with one edge between them, driven operation by operation."""

from __future__ import annotations

import copy

import numpy as np

from p2pfl.compress import make_compressor
from p2pfl.core import ApplyReply, ApplyRequest, CommitRound, Freeze
from p2pfl.engine import Codecs, Engine, NodeSeen, NodeState, change, entry, redo
from p2pfl.learn import LocalRound
from p2pfl.methods import Method, Variate

SIZE = 300


class Pair:
    """Engines 0 (initiator) and 1; `changes` are what each has to make durable, in order."""

    def __init__(self, *, spec="q8", dtype=np.float32, beta=0.0, samples=(30, 90), size=SIZE, seed=0, method=None):
        self.method = method or (Variate(beta) if beta else Method())
        chance = np.random.default_rng(seed)
        self.codecs = Codecs(make_compressor(spec))
        self.engines = []
        for index in (0, 1):
            model = chance.normal(size=size).astype(dtype)
            state = NodeState.new(model, samples[index], (1 - index,), method=self.method)
            self.engines.append(Engine(index=index, state=state, codecs=self.codecs, method=self.method))
        self.start = [copy.deepcopy(engine.state) for engine in self.engines]
        self.changes = ([], [])
        self.seq = 0

    def run(self, index, operation):
        outcome = self.engines[index].run(operation)
        if outcome.change is not None:
            self.changes[index].append(outcome.change)
        return outcome.event

    def freeze(self, *, audit=False):
        self.seq += 1
        return self.run(0, asking(1, seq=self.seq, version=self.seq, weight=15.0, audit=audit)).request

    def apply_request(self, request, factor=15.0):
        return self.run(
            1, ApplyRequest(peer=0, request=request, factor=factor, weight=15.0, version=self.seq, pace_s=0.0)
        )

    def apply_reply(self, reply):
        return self.run(0, ApplyReply(peer=1, reply=reply))

    def exchange(self, factor=15.0, *, audit=False):
        return self.apply_reply(self.apply_request(self.freeze(audit=audit), factor).reply)

    def total(self):
        return sum(e.state.samples * e.state.model.astype(np.float64) for e in self.engines)

    def train(self, index, vector, *, samples=None, rho=1.0, least=0.0, steps=5, rate=0.1, local=None, loss=0.0):
        """One local round that ended at `vector`; None: training failed."""
        engine = self.engines[index]
        state = engine.state
        outcome = None
        if vector is not None:
            outcome = LocalRound(
                vector=vector,
                steps=steps,
                learning_rate=rate,
                samples=samples or state.samples,
                loss=loss,
                local=local or {},
            )
        engine.outcomes.put(None if outcome is None else (state.model.copy(), outcome))
        return self.run(
            index,
            CommitRound(version=state.version + 1, trained=True, rho=rho, elapsed_s=1.0, least_samples=least),
        )


def asking(peer, **changes):
    """The operation that makes a request."""
    plain = {"incarnation": 0, "seq": 1, "version": 1, "echo": None, "weight": 1.0, "staleness": 1.0, "pace_s": 0.0}
    return Freeze(peer=peer, **({"audit": False} | plain | changes))


def replayed(start, changes, codecs, method):
    """The state that a log leads to, entry by entry as they are read from the disk."""
    state = copy.deepcopy(start)
    for done in changes:
        kind, header, blobs = entry(done)
        again = change(kind, header, [bytes(blob) for blob in blobs], state.model.dtype)
        redo(state, again, codecs=codecs, method=method)
    return state


def picture(state):
    """Every bit of a state, comparable."""
    edges = {
        peer: (edge.own.tobytes(), edge.peer.tobytes(), flow_of(edge).tobytes(), repr(edge.record))
        for peer, edge in state.edges.items()
    }
    plain = (state.samples, state.version, state.rounds, state.terms, state.elapsed_s, state.alone, state.lifetime)
    return state.model.tobytes(), plain, edges


def flow_of(edge):
    return edge.kept.get("flow", np.zeros_like(edge.own))


def correction(state, beta):
    """The control variate (d,) of a node in that state."""
    method = Variate(beta)
    return method.begin(NodeSeen.of(state, method))["correction"]
