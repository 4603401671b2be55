"""What a node's vectors will take is counted from its state, and is what they take in the end."""

from __future__ import annotations

import numpy as np
import pytest
from pair import Pair

from p2pfl.compress import make_compressor
from p2pfl.engine import SMALL, Codecs, NodeState, memory_plan
from p2pfl.methods import Method, Tracking, Variate


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spec", ["q4", "fragment:3", "fragment:3+bf16"])
def test_the_plan_is_what_an_engine_holds_after_an_exchange(spec, dtype):
    pair = Pair(spec=spec, dtype=dtype, beta=0.1, size=900)
    engine = pair.engines[0]
    plan = memory_plan(engine.state, engine.codecs, engine.method)
    for each in pair.engines:
        each.state.terms = (0.5,)
    reply = pair.apply_request(pair.freeze()).reply
    bodies = len(engine.state.edges[1].record.pending.body) + len(reply.body)
    pair.apply_reply(reply)
    state, edge = engine.state, engine.state.edges[1]
    assert (plan.model, plan.replicas) == (state.channels.nbytes, edge.own.nbytes + edge.peer.nbytes)
    assert plan.flows == sum(kept.nbytes for kept in edge.kept.values())
    assert plan.scratch == state.scratch.nbytes
    assert bodies <= plan.messages <= bodies + 100
    assert plan.total == sum(getattr(plan, name) for name in plan.__slots__)


@pytest.mark.parametrize(("spec", "models"), [("q4", 0), ("none", 0), ("rotate+q2", 2), ("q4+zstd", 2)])
def test_a_large_vector_has_scratch_only_where_its_compressor_does_not_work_in_tiles(spec, models):
    codecs, size = Codecs(make_compressor(spec)), SMALL + 1
    state = NodeState.new(np.zeros(size, np.float32), 10, (1,))
    assert memory_plan(state, codecs, Method()).scratch == models * 4 * size


@pytest.mark.parametrize(
    ("spec", "method", "models"),
    [
        ("q4", Variate(), 1 + 6 * 2 + 6 + 2 + 2),
        ("q4", Method(), 1 + 6 * 2 + 2 + 1),
        ("fragment:10", Variate(), 1 + 6 + 2 + 1),
        ("fragment:10", Method(), 1 + 1 + 1),
        ("fragment:10", Tracking(), 2 * (1 + 6) + 2 + 3 + 1),
    ],
)
def test_so_many_models_with_six_neighbors_beside_messages(spec, method, models):
    """Replicas, flows, scratch of so small a vector, and those of a round: its start, what is given, what is added; one
    more without replicas, as measured (benchmarks/overhead.py).
    """
    codecs = Codecs(make_compressor(spec))
    state = NodeState.new(np.zeros(1000, np.float32), 10, tuple(range(1, 7)), method=method)
    state.fit_replicas(codecs.need_replicas)
    plan = memory_plan(state, codecs, method)
    assert (plan.total - plan.messages) / 4000 == pytest.approx(models)
