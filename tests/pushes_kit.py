"""A federation whose weighted sum of all models never changes, and what its disks must hold in the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from settled import require_edges_to_agree, settled_states

from p2pfl.config import load_config
from p2pfl.engine import NodeState


# Rounds that move each model far from its neighbors', and the weighted sum of all models not at all: in round r a node
# adds +g(r)/n or -g(r)/n, one more the first where the nodes are odd in number. What the sum is in the end shows if
# an exchange or a round was lost or done twice.
# Nobody trains in the last rounds before the file `go` is there. A node says ten times a second at most how far it is:
# whoever waits for a round asks for one that is some before those.
def pushes(last: int, round_s: float) -> str:
    """The task's file: models move in the first `last` rounds, of so many seconds each."""
    return f"""
import time
from pathlib import Path
import numpy as np
from p2pfl.learn.interface import LocalRound

SIZE = 24
GO = Path(__file__).with_name("go")


class Pushes:
    size = SIZE
    personal = 0
    shape_digest = b"pushes-of-sum-0."

    def __init__(self, node):
        self.node = node
        self.samples = 10 * (node + 1)
        self.sign = (-1) ** node

    def initial(self):
        return np.random.default_rng([7, self.node]).standard_normal(SIZE).astype(np.float32)

    def train(self, start, round_index):
        while round_index >= {last - 5} and not GO.exists():
            time.sleep(0.01)
        time.sleep({round_s})
        push = self.sign * np.random.default_rng([8, round_index]).standard_normal(SIZE) * 10 / self.samples
        push *= round_index < {last}  # of what follows until all are through, nodes take different numbers
        vector = (start.model + push).astype(np.float32)
        return LocalRound(vector=vector, steps=1, learning_rate=0.0, samples=self.samples, loss=0.0)

    def evaluate(self, vector, part):
        return None

    def local_state(self):
        return {{}}

    def load_local_state(self, state):
        pass

    def state_dict(self, vector):
        return {{"w": vector}}


class Task:
    def learner(self, context, training):
        return Pushes(context.node)


task = Task()
"""


PUSHES = pushes(30, 0.03)


def check_edges(folder: Path) -> list[NodeState]:
    """Both ends of each edge hold the same bits, and what one has given the other has got."""
    federation = load_config(folder)
    states = settled_states(federation, {member.name: folder / member.name / "state" for member in federation.members})
    require_edges_to_agree(federation, states)
    return states


def check_nothing_lost(folder: Path) -> None:
    """The edges agree, and the weighted sum of all models is what it must be."""
    states = check_edges(folder)
    counts = [10.0 * (index + 1) for index in range(len(states))]
    begun = [np.random.default_rng([7, index]).standard_normal(24).astype(np.float32) for index in range(len(states))]
    wanted = sum(n * x.astype(np.float64) for n, x in zip(counts, begun, strict=True))
    if len(states) % 2:
        wanted = wanted + sum(np.random.default_rng([8, index]).standard_normal(24) * 10 for index in range(30))
    found = sum(n * state.model.astype(np.float64) for n, state in zip(counts, states, strict=True))
    assert [state.samples for state in states] == counts
    np.testing.assert_allclose(found, wanted, atol=0.01)
