"""Worlds of nodes that only gossip: a learner that never moves its model, graphs, settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from open_world import OpenPlan, OpenWorld

from p2pfl.compress import make_compressor
from p2pfl.config import TrainingConfig
from p2pfl.core import Settings, parse_staleness
from p2pfl.learn import LocalRound, NodeContext, QuadraticLearner, QuadraticTask
from sim import LinkSpec

# Nodes, and the edges of each round: of one round, or of as many as it takes until they repeat.
GRAPHS = {
    "pair": (2, (((0, 1),),)),
    "path": (3, (((0, 1), (1, 2)),)),
    "triangle": (3, (((0, 1), (0, 2), (1, 2)),)),
    "ring": (4, (((0, 1), (0, 3), (1, 2), (2, 3)),)),
    "star": (5, (((0, 1), (0, 2), (0, 3), (0, 4)),)),
    "one-peer-hypercube": (4, (((0, 1), (2, 3)), ((0, 2), (1, 3)))),
    "turning-triangle": (3, (((0, 1),), ((1, 2),), ((0, 2),))),
    "round-robin": (5, (((0, 1), (2, 4)), ((0, 2), (3, 4)), ((0, 3), (1, 2)), ((0, 4), (1, 3)), ((1, 4), (2, 3)))),
    "path-that-rests": (3, (((0, 1), (1, 2)), (), ((0, 1),))),
}
KINDS = (
    *("none", "float16", "q8", "q4", "q2", "sign", "rotate+q2", "rotate+sign"),
    *("top-k:0.4", "top-k:1+q8", "top-k:0.5+rotate+q4", "random-k:0.4", "random-k:2+q4", "q4+zstd", "top-k:0.4+zstd"),
    *("bf16", "fragment:1", "fragment:2", "fragment:3+bf16"),
)
"""of compressors: every stage, and every kind of chain."""
D = 5


def few(part):
    """Settings of a property that looks at whole worlds: so much fewer examples, and none made smaller."""
    return settings(
        max_examples=settings.default.max_examples // part,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )


class StillLearner:
    """Never moves its model: what remains is gossip alone."""

    shape_digest = b"still-still-stil"

    def __init__(self, model, samples):
        self.model = np.asarray(model)
        self.size = self.model.size
        self.samples = samples

    def initial(self):
        return self.model

    def train(self, start, round_index):
        return LocalRound(vector=start.model.copy(), steps=1, learning_rate=0.0, samples=self.samples, loss=0.0)

    def evaluate(self, vector, part):
        return None

    def local_state(self):
        return {}

    def load_local_state(self, state):
        pass

    def state_dict(self, vector):
        return {}


def quadratic_learners(samples, **training):
    """One for each node: its own optimum and its own curvatures."""
    task = QuadraticTask(size=4, condition=10.0, samples=list(samples))
    plain = {"rounds": 10**6, "local_steps": 5, "learning_rate": 0.1, "batch_size": 10}
    config = TrainingConfig(**(plain | training))
    nodes = len(samples)
    contexts = [NodeContext(node=k, nodes=nodes, name=str(k), seed=3, base_dir=Path()) for k in range(nodes)]
    return tuple(QuadraticLearner(task, context, config) for context in contexts)


def core_settings(**changes):
    defaults = {
        "rounds": 30,
        "time_s": None,
        "closing_rounds": 10,
        "staleness": parse_staleness("hinge-polynomial:4,0.5"),
        "speed_limit": 1.0,
        "start_wait_s": 2.0,
        "linger_s": 5.0,
        "max_wait_s": 1.0,
        "exchanges_per_s": 200.0,
        "audit_every": 4,
    }
    return Settings(**(defaults | changes))


def make_world(
    graph,
    seed,
    *,
    link=None,
    slow=(),
    compressor="q8",
    own=(),
    samples=None,
    rounds=30,
    round_s=None,
    learner=StillLearner,
    rule=None,
    weighted=False,
    **changes,
):
    """`learner` is called with each node's first model (D,) and its n. `weighted`: edges with the largest weights."""
    nodes, rounds_of_edges = GRAPHS[graph] if isinstance(graph, str) else graph
    chance = np.random.default_rng(seed)
    counts = samples or [int(n) for n in chance.integers(1, 200, nodes)]
    edges = tuple(sorted({edge for edges in rounds_of_edges for edge in edges}))
    busy = np.bincount(np.ravel(edges))
    shares = {edge: min(0.5, 1.0 / float(max(busy[list(edge)]))) for edge in edges} if weighted else {}
    learners = tuple(learner(chance.normal(size=D) * 3, n) for n in counts)
    return OpenWorld(
        OpenPlan(
            edges=edges,
            schedule=rounds_of_edges if len(rounds_of_edges) > 1 else (),
            learners=learners,
            settings=core_settings(rounds=rounds, **changes),
            compressor=make_compressor(compressor),
            rule=rule,
            shares=shares,
            edge_compressors={edge: make_compressor(spec) for edge, spec in zip(edges, own, strict=False)},
            dtype=np.float64,
            links=link or LinkSpec(),
            slow=slow,
            seed=seed,
            default_round_s=0.05,
            round_s={0: 0.02, 1: 0.3} if round_s is None else round_s,
        )
    )
