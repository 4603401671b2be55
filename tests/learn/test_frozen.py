"""Parameters that are not trained: no part of the vector, made by the task, and equal on all nodes or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl import Federation, load_federation
from p2pfl.config import NOT_FROZEN, TrainingConfig, federation_text, load_config, load_node, node_file
from p2pfl.crypto import FederationMismatch
from p2pfl.errors import UserError
from p2pfl.learn import FlatModule, RoundStart, Task, from_safetensors, learner_for, to_safetensors
from p2pfl.node import binding, make_node, read_setup
from sim import World, simulate

BODY, HEAD = 4 * 8 + 8, 8 * 3 + 3
BEFORE = "7e0c12f150ed30591e8538caf8574bcb"
FILE = """
import torch
from p2pfl import Task

def model():
    body = torch.nn.Linear(4, 8).requires_grad_(False)
    torch.nn.init.constant_(body.bias, {bias})
    return torch.nn.Sequential(body, torch.nn.Tanh(), torch.nn.Linear(8, 3))

task = Task(model=model, data=lambda node: ((torch.randn(20, 4), torch.arange(20) % 3), None))
"""


class Frozen(nn.Module):
    """A frozen body of 40 parameters, and a head of 27 that is trained."""

    def __init__(self, bias=0.5):
        super().__init__()
        self.body = nn.Linear(4, 8).requires_grad_(requires_grad=False)
        nn.init.constant_(self.body.bias, bias)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(torch.tanh(self.body(inputs)))


def task_of(model=Frozen, **fields):
    def data(node):
        rng = np.random.default_rng(node.node)
        inputs = rng.standard_normal((60, 4)).astype(np.float32)
        pair = (inputs, inputs[:, :3].argmax(axis=1))
        return pair, pair

    return Task(name="mine", model=model, data=data, **fields)


@pytest.fixture
def frozen(context):
    """Make the learner of a model with a frozen body."""

    def make(model=Frozen, *, share=("*", NOT_FROZEN), **fields):
        training = TrainingConfig(learning_rate=0.2, local_steps=10)
        return learner_for(task_of(model, **fields), context(nodes=8), training, share)

    return make


def test_what_is_not_trained_is_in_no_vector_and_in_every_export(frozen):
    mine = frozen()
    assert (mine.size, mine.frozen, mine.personal, mine.local_state()) == (HEAD, BODY, 0, {})
    ended = mine.train(RoundStart(mine.initial()), 0).vector
    whole = mine.state_dict(ended)
    assert list(whole) == ["body.weight", "body.bias", "head.weight", "head.bias"]
    assert (whole["body.bias"] == 0.5).all()
    other = frozen()
    np.testing.assert_array_equal(from_safetensors(other, to_safetensors(mine, ended, {})), ended)
    assert other.evaluate(ended, "test") == mine.evaluate(ended, "test")


def test_without_the_key_all_is_shared_by_the_layout_and_the_digest_of_before(frozen):
    mine = frozen(share=("*",))
    assert (mine.size, mine.frozen, mine.digest) == (BODY + HEAD, BODY, b"")
    assert mine.shape_digest.hex() == BEFORE


def test_training_does_not_depend_on_whether_frozen_values_are_sent(frozen):
    without, sent = frozen(), frozen(share=("*",))
    ended = [one.state_dict(one.train(RoundStart(one.initial()), 0).vector) for one in (without, sent)]
    assert all(np.array_equal(ended[0][name], ended[1][name]) for name in ended[1])


def test_the_digest_tells_bodies_apart_and_no_heads(frozen):
    mine, again, other = frozen(), frozen(), frozen(lambda: Frozen(bias=0.25))
    assert len(mine.digest) == 32
    assert mine.digest == again.digest != other.digest
    assert mine.shape_digest == other.shape_digest
    assert frozen(digest=b"schema").digest not in (mine.digest, b"schema")
    assert frozen(lambda: nn.Linear(4, 3), digest=b"schema").digest == b"schema"


def test_a_frozen_name_of_a_trained_tensor_is_trained_and_a_buffer_is_shared():
    class Tied(Frozen):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8)
            self.body.weight.requires_grad_()
            self.fixed = nn.Parameter(self.body.weight.data, requires_grad=False)

    flat = FlatModule(Tied(), "mine", ("*", NOT_FROZEN))
    assert {"fixed", "norm.running_mean"} <= {place.name for place in flat.places}
    assert (flat.frozen, flat.size) == (8, 4 * 8 + HEAD + 4 * 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_every_dtype_has_a_digest(dtype):
    module = Frozen()
    module.body.to(dtype)
    assert len(FlatModule(module, "mine", ("*", NOT_FROZEN)).frozen_digest()) == 32


def test_a_personal_body_may_differ_from_node_to_node(frozen):
    mine = frozen(share=("head.*", NOT_FROZEN))
    assert (mine.size, mine.frozen, mine.personal, mine.digest) == (HEAD, 0, BODY, b"")


def test_a_model_of_which_nothing_is_trained_is_a_mistake_of_the_task(frozen):
    with pytest.raises(UserError, match="nothing of the model is trained"):
        frozen(lambda: nn.Linear(4, 3).requires_grad_(requires_grad=False))


def test_nodes_with_other_bodies_refuse_each_other_and_say_why(tmp_path):
    members = [make_node(tmp_path, name, 9000 + n) for n, name in enumerate("ab")]
    text = federation_text(name="f", topology="ring", task="task.py:task", members=members)
    (tmp_path / "federation.toml").write_text(text, encoding="utf-8")

    def made(bias):
        (tmp_path / "task.py").write_text(FILE.format(bias=bias), encoding="utf-8")
        federation = load_config(tmp_path)
        return binding(read_setup(federation, load_node(node_file(federation, "a"), federation)))

    first, second, again = (made(bias) for bias in (1, 2, 1))
    theirs = dict(second.sections)
    assert first == again
    assert [name for name, value in first.sections if theirs[name] != value] == ["schema"]
    assert "frozen weights" in str(FederationMismatch(b"", ("schema",)))


@pytest.mark.long
def test_a_simulation_sends_what_is_trained_alone():
    keys = {"nodes": 3, "rounds": 4, "compressor": "none", "evaluate_every": 0}
    federation, whole = (Federation(task=task_of(), **keys, **own) for own in ({}, {"share_frozen": True}))
    kept, sent = (simulate(one, world=World(), references=False) for one in (federation, whole))
    assert kept.accuracy == sent.accuracy
    assert sent.bytes_sent - kept.bytes_sent >= 4 * BODY * 3 * 4


@pytest.mark.long
def test_real_nodes_learn_around_a_frozen_body():
    report = Federation(task=task_of(), nodes=3, rounds=4, compressor="none").run()
    assert report.accuracy.min > 0.5


def test_new_federations_do_not_send_frozen_values_and_older_files_still_do(tmp_path):
    federation = Federation(nodes=2, rounds=1)
    federation.save(tmp_path / "saved")
    file = tmp_path / "saved/federation.toml"
    assert load_config(file).gossip.share_frozen is False
    file.write_text(file.read_text(encoding="utf-8").replace("share_frozen = false\n", ""), encoding="utf-8")
    assert load_config(file).gossip.share_frozen is True
    assert load_federation(file).config.gossip.patterns == ("*",)
