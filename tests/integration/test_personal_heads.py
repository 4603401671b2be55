"""Nodes that gossip a part of their model: what goes out, what stays, and what a crash may take."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy

from p2pfl.config import load_node
from p2pfl.core import Reply, Request
from p2pfl.errors import UserError
from p2pfl.net import SessionTable
from p2pfl.node import read_learned, read_setup, replay
from p2pfl.storage import peek

pytestmark = pytest.mark.usefixtures("lone")

# Each node's labels are shifted by another number: no head can be right for all, one backbone can.
SHIFTED = """
import torch
from torch import nn
from p2pfl import Task
from p2pfl.learn.digits import load_digits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, inputs):
        return self.head(torch.relu(self.backbone(inputs)))


def data(node):
    (inputs, targets), (tests, answers) = load_digits()
    rows = torch.from_numpy(node.partition(targets.numpy(), "iid"))
    shift = 3 * node.node
    return (inputs[rows], (targets[rows] + shift) % 10), (tests, (answers + shift) % 10)


task = Task(model=Net, data=data)
"""

# `count` grows by one in every round that ends well, and by nothing else.
COUNTED = """
import time
import torch
from torch import nn
from p2pfl import Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(8, 1)
        self.count = nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return self.shared(inputs) - self.count


def data(node):
    return (torch.zeros(4, 8), torch.zeros(4, 1)), None


def loss(outputs, targets):
    time.sleep(0.01)
    return outputs.mean()


task = Task(model=Net, data=data, loss=loss)
"""
COUNTING = {"local_steps": 1, "learning_rate": 1.0, "rounds": 100, "method": "plain"}


@pytest.fixture
def field(ward):
    """Make a federation of three nodes whose task is this text."""

    def make(text, *, share, **training):
        made = ward(3, training=training, task={"name": "task.py:task"}, gossip={"share": share})
        (made.folder / "task.py").write_text(text, encoding="utf-8")
        return made

    return make


def learned(field, index):
    return read_learned(field.folder / field.names[index])


def rounds_on_disk(field):
    return replay(peek(field.folder / "node0" / "state")).rounds


def head_of(node):
    return np.concatenate([array.ravel() for array in node.learner.local_state().values()])


@pytest.fixture
def bodies(monkeypatch):
    """The payload of every Request and Reply that a node sends."""
    sent = []
    send = SessionTable.send

    def watched(self, peer, session, message):
        if isinstance(message, Request | Reply):
            sent.append(bytes(message.body))
        send(self, peer, session, message)

    monkeypatch.setattr(SessionTable, "send", watched)
    return sent


@pytest.mark.long
@pytest.mark.usefixtures("patient")
async def test_one_backbone_and_personal_heads_learn_what_no_shared_head_can(field, start, finish, bodies):
    schedule = {"rounds": 25, "local_steps": 10, "learning_rate": 0.3}
    apart = field(SHIFTED, share="backbone.*", **schedule)
    results = await finish(start(apart), rounds=25)
    assert min(result.accuracy for result in results) > 0.85
    assert min(result.local_accuracy for result in results) > 0.85
    nodes = [learned(apart, index) for index in range(3)]
    for one, other in ((0, 1), (1, 2), (2, 0)):
        assert np.abs(nodes[one].vector - nodes[other].vector).max() < 1e-3
        assert np.abs(head_of(nodes[one]) - head_of(nodes[other])).max() > 0.1
    assert {len(body) for body in bodies} == {4 * (64 * 32 + 32)}
    for node in nodes:
        rows = node.learner.local_state()["head.weight"]
        assert not any(row.tobytes() in body for row in rows for body in bodies)
        exported = safetensors.numpy.load(node.export("test"))
        assert sorted(exported) == ["backbone.bias", "backbone.weight", "head.bias", "head.weight"]
        np.testing.assert_array_equal(exported["head.weight"], rows)

    together = field(SHIFTED, share="*", **schedule)
    results = await finish(start(together), rounds=25)
    assert sum(result.accuracy for result in results) < 1.2  # an image has one label for all three


@pytest.mark.long
async def test_nodes_with_other_heads_mix(field, start, finish):
    made = field(SHIFTED, share="backbone.*", rounds=5)
    nodes = start(made, 0, 1)
    (made.folder / "task.py").write_text(SHIFTED.replace("32, 10", "32, 14"), encoding="utf-8")
    nodes += start(made, 2)
    results = await finish(nodes, rounds=5)
    assert all(result.exchanges for result in results)
    assert [node.setup.learner.personal for node in nodes] == [330, 330, 462]
    assert len({node.setup.learner.shape_digest for node in nodes}) == 1


@pytest.mark.long
@pytest.mark.parametrize("durability", ["exchange", "snapshot"])
async def test_after_a_crash_the_personal_part_is_that_of_the_round_at_which_the_node_resumes(
    field, start, finish, durability
):
    made = field(COUNTED, share="shared.*", **COUNTING)
    made.write_node("node0", durability=durability, snapshot_s=0.1)
    nodes, resumed = start(made), 0
    for _ in range(2):
        await nodes[0].until(lambda resumed=resumed: nodes[0].rounds > resumed and rounds_on_disk(made) > resumed)
        await nodes[0].break_off()
        stands = learned(made, 0)
        assert head_of(stands).tolist() == [stands.rounds]
        resumed = stands.rounds
        nodes[0] = start(made, 0)[0]
    results = await finish(nodes, rounds=100)
    assert results[0].steps == results[0].rounds - resumed
    assert [head_of(learned(made, index)).tolist() for index in range(3)] == [[row.rounds] for row in results]


@pytest.mark.long
async def test_a_round_that_the_engine_drops_takes_its_personal_part_with_it(field, start, finish):
    failing = COUNTED.replace("return outputs.mean()", "return outputs.mean() * (1e20 if spent() else 1.0)").replace(
        "class Net", "calls = []\n\n\ndef spent():\n    calls.append(1)\n    return len(calls) == 5\n\n\nclass Net"
    )
    too_far = failing.replace("self.shared(inputs) - self.count", "self.shared(inputs + 1) - self.count")
    made = field(too_far, share="shared.*", **COUNTING | {"rounds": 8})
    results = await finish(start(made), rounds=8)
    assert [result.failed_rounds for result in results] == [1] * 3
    assert [head_of(learned(made, index)).tolist() for index in range(3)] == [[row.rounds - 1] for row in results]


async def test_the_personal_part_is_kept_in_one_copy(field, start, finish):
    nodes = start(field(SHIFTED, share="backbone.*", rounds=3))
    await finish(nodes, rounds=3)
    for node in nodes:
        kept, state = node.setup.learner.local_state(), node.application.thread.engine.state
        assert list(kept) == ["head.weight", "head.bias"]
        assert all(state.local[name] is array for name, array in kept.items())


def durability_of(made):
    federation = made.federation()
    return read_setup(federation, load_node(made.folder / "node0", federation)).durability


async def test_a_large_personal_part_that_is_trained_makes_a_large_model(field):
    large = COUNTED.replace("torch.zeros(1)", "torch.zeros(300_000)").replace("self.count\n", "self.count[0]\n")
    frozen = large.replace("torch.zeros(300_000)", "torch.zeros(300_000), requires_grad=False")
    assert [durability_of(field(text, share="shared.*")) for text in (COUNTED, large, frozen)] == [
        "exchange",
        "snapshot",
        "exchange",
    ]


async def test_the_head_of_a_task_that_has_changed_is_refused_with_the_folder(field, start, finish):
    made = field(SHIFTED, share="backbone.*", rounds=2)
    await finish(start(made), rounds=2)
    (made.folder / "task.py").write_text(SHIFTED.replace("32, 10", "32, 14"), encoding="utf-8")
    with pytest.raises(UserError, match=r"head.bias.*\(10,\).*\(14,\)") as caught:
        await start(made, 0)[0].result()
    assert caught.value.file == str(made.folder / "node0" / "state")
