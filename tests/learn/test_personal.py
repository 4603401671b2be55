"""Personal tensors: trained by their node, scored by it, kept by it, and in no vector that leaves it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from p2pfl.config import NOT_FROZEN, TaskConfig, TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn import FlatModule, RoundStart, Task, from_safetensors, learner_for, make_learner, to_safetensors
from p2pfl.methods import Variate

BACKBONE, HEAD = 4 * 8 + 8, 8 * 3 + 3
NORMED = ["head.norm.weight", "head.norm.bias", "head.norm.running_mean", "head.norm.running_var"]


class Split(nn.Module):
    """A backbone of 40 parameters and a head of 27, with BatchNorm before it if that is asked for."""

    def __init__(self, *, classes=3, normed=False):
        super().__init__()
        self.backbone = nn.Linear(4, 8)
        layers = [("norm", nn.BatchNorm1d(8))] if normed else []
        self.head = nn.Sequential()
        for name, layer in [*layers, ("out", nn.Linear(8, classes))]:
            self.head.add_module(name, layer)

    def forward(self, inputs):
        return self.head(torch.relu(self.backbone(inputs)))


@pytest.fixture
def split(context):
    """Make the learner of a split model; `labels` maps the labels of the data."""

    def make(*, model=Split, node=0, seed=0, training=None, share=("backbone.*",), labels=lambda t: t, **fields):
        rng = np.random.default_rng(5)
        inputs = rng.standard_normal((60, 4)).astype(np.float32)
        targets = labels(inputs[:, :3].argmax(axis=1))
        task = Task(name="mine", model=model, data=lambda _: ((inputs, targets), (inputs, targets)), **fields)
        given = training or TrainingConfig(learning_rate=0.2, local_steps=10)
        return learner_for(task, context(seed=seed, node=node, nodes=8), given, share)

    return make


def tensors(learner, vector):
    return {name: array.copy() for name, array in learner.state_dict(vector).items()}


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


# -- what is shared -----------------------------------------------------------------------------------------------


def test_the_vector_holds_what_is_shared_and_nothing_else(split):
    mine = split()
    assert (mine.size, mine.personal) == (BACKBONE, HEAD)
    start = np.linspace(-1, 1, mine.size, dtype=np.float32)
    whole = mine.state_dict(start)
    parts = [whole["backbone.weight"].ravel(), whole["backbone.bias"]]
    np.testing.assert_array_equal(np.concatenate(parts), start)
    assert list(mine.local_state()) == ["head.out.weight", "head.out.bias"]


def test_nothing_personal_is_in_what_a_round_gives(split):
    mine = split()
    outcome = mine.train(RoundStart(mine.initial()), 0)
    shared = set(outcome.vector.tolist())
    assert outcome.vector.shape == (BACKBONE,)
    for value in mine.local_state().values():
        assert not shared & set(value.ravel().tolist())


def test_without_a_pattern_all_is_shared_as_ever(split):
    whole, named = split(share=("*",)), split(share=("backbone.*", "head.*"))
    assert whole.size == BACKBONE + HEAD
    assert whole.personal == 0
    assert whole.local_state() == {}
    assert named.shape_digest == whole.shape_digest
    np.testing.assert_array_equal(named.initial(), whole.initial())


def test_the_digest_covers_what_is_shared_alone(split):
    other = split(model=lambda: Split(classes=5, normed=True))
    assert other.shape_digest == split().shape_digest
    assert split(share=("head.*",)).shape_digest != split().shape_digest
    assert split(share=("*",)).shape_digest != split().shape_digest


def test_running_statistics_of_a_personal_layer_are_personal(split):
    mine = split(model=lambda: Split(normed=True))
    mine.train(RoundStart(mine.initial()), 0)
    local = mine.local_state()
    assert [name for name in local if "norm" in name] == [*NORMED, "head.norm.num_batches_tracked"]
    assert local["head.norm.running_mean"].any()
    assert local["head.norm.num_batches_tracked"] == 10


def test_places_are_those_in_the_vector_of_what_is_shared():
    module = Split(normed=True)
    module.head.out.bias.requires_grad_(requires_grad=False)
    places = FlatModule(module, "mine", ("head.norm.*", "head.out.bias", "backbone.bias")).places
    assert [(place.name, place.part.start, place.part.stop, place.trained) for place in places] == [
        ("backbone.bias", 0, 8, True),
        ("head.norm.weight", 8, 16, True),
        ("head.norm.bias", 16, 24, True),
        ("head.norm.running_mean", 24, 32, False),
        ("head.norm.running_var", 32, 40, False),
        ("head.out.bias", 40, 43, False),
    ]


def test_a_correction_does_not_pull_at_a_personal_tensor(split):
    free, pulled = (split(loss=lambda outputs, _: 0.0 * outputs.sum()) for _ in range(2))
    start = free.initial()
    before = free.local_state()
    outcome = pulled.train(RoundStart(start, {"correction": np.ones_like(start)}, Variate()), 0)
    np.testing.assert_allclose(outcome.vector, start - 10 * 0.2, atol=1e-5)
    assert same(pulled.local_state(), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_personal_tensor_of_another_type_keeps_its_bits(dtype):
    values = torch.linspace(-3, 3, 7).to(dtype) / 3

    def module(tensor):
        made = nn.Linear(2, 1)
        made.own = nn.Parameter(tensor)
        return made

    state = FlatModule(module(values), "mine", ("!own",)).local_state()
    fresh = module(torch.zeros(7, dtype=dtype))
    FlatModule(fresh, "mine", ("!own",)).load_local_state(state)
    assert fresh.own.dtype == dtype
    assert torch.equal(fresh.own, values)


# -- a node's own part --------------------------------------------------------------------------------------------


def test_a_round_trains_both_parts_and_the_next_goes_on_from_the_personal_one(split):
    mine = split()
    start, first = mine.initial(), mine.local_state()
    outcome = mine.train(RoundStart(start), 0)
    second = mine.local_state()
    assert not np.array_equal(outcome.vector, start)
    assert not np.array_equal(second["head.out.weight"], first["head.out.weight"])
    again = mine.train(RoundStart(start), 1)
    other = split()
    other.load_local_state(second)
    np.testing.assert_array_equal(other.train(RoundStart(start), 1).vector, again.vector)
    assert same(other.local_state(), mine.local_state())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_with_every_optimizer_a_round_is_the_one_of_the_whole_model(split, optimizer):
    training = TrainingConfig(optimizer=optimizer, learning_rate=0.05, local_steps=5)
    part, whole = split(training=training), split(training=training, share=("*",))
    outcome, expected = (one.train(RoundStart(one.initial()), 0) for one in (part, whole))
    assert same(tensors(part, outcome.vector), tensors(whole, expected.vector))


def test_each_node_scores_with_its_own_part(split):
    first, second = split(node=0), split(node=1, labels=lambda t: (t + 1) % 3)
    shared = first.initial()
    for index in range(20):
        shared = (first.train(RoundStart(shared), index).vector + second.train(RoundStart(shared), index).vector) / 2
    assert first.evaluate(shared, "test").accuracy > 0.9
    assert second.evaluate(shared, "test").accuracy > 0.9
    first.load_local_state(second.local_state())
    assert first.evaluate(shared, "test").accuracy < 0.5


def test_scoring_other_vectors_leaves_the_personal_part(split):
    mine = split()
    outcome = mine.train(RoundStart(mine.initial()), 0)
    before = mine.local_state()
    mine.evaluate(np.zeros_like(outcome.vector), "local")
    mine.state_dict(np.ones_like(outcome.vector))
    assert same(mine.local_state(), before)
    assert mine.evaluate(outcome.vector, "local") == mine.evaluate(outcome.vector, "local")


def test_another_node_made_from_a_learner_has_a_personal_part_of_its_own(split):
    first = split()
    fresh = first.local_state()
    first.train(RoundStart(first.initial()), 0)
    other = first.at_node(first.context, first.train_set, first.test_set)
    assert same(other.local_state(), fresh)
    kept = first.local_state()
    other.train(RoundStart(other.initial()), 0)
    assert same(first.local_state(), kept)
    assert same(other.local_state(), kept)


def test_where_nothing_is_personal_another_node_shares_the_module(split):
    first = split(share=("*",))
    assert first.at_node(first.context, first.train_set, None).model is first.model


def test_what_a_learner_gives_out_is_not_touched_by_later_rounds(split):
    mine = split(model=lambda: Split(normed=True))
    mine.train(RoundStart(mine.initial()), 0)
    given = mine.local_state()
    copies = {name: array.copy() for name, array in given.items()}
    mine.train(RoundStart(mine.initial()), 1)
    assert same(given, copies)


def test_the_personal_part_is_kept_in_one_copy(split):
    mine = split()
    mine.train(RoundStart(mine.initial()), 0)
    for one, other in zip(mine.local_state().values(), mine.local_state().values(), strict=True):
        assert one is other


# -- rounds that fail ---------------------------------------------------------------------------------------------


class Failing:
    """A loss that is `then` from its `at`-th call on."""

    def __init__(self, at, then):
        self.calls, self.at, self.then = 0, at, then

    def __call__(self, outputs, targets):
        self.calls += 1
        return functional.cross_entropy(outputs, targets) if self.calls < self.at else self.then(outputs)


def raises(_):
    raise RuntimeError("no more")


def test_a_round_that_raises_leaves_the_personal_part_as_it_was(split):
    mine = split(model=lambda: Split(normed=True), loss=Failing(16, raises))
    start = mine.initial()
    mine.train(RoundStart(start), 0)
    before, whole = mine.local_state(), tensors(mine, start)
    with pytest.raises(LearningError, match="no more"):
        mine.train(RoundStart(start), 1)
    assert same(mine.local_state(), before)
    assert same(tensors(mine, start), whole)


def test_a_round_that_ends_in_no_number_is_reported_and_leaves_the_personal_part(split):
    mine = split(model=lambda: Split(normed=True), loss=Failing(16, lambda outputs: outputs.sum() * float("nan")))
    start = mine.initial()
    mine.train(RoundStart(start), 0)
    whole = tensors(mine, start)
    assert np.isnan(mine.train(RoundStart(start), 1).vector).any()
    assert same(tensors(mine, start), whole)


def test_a_round_of_which_the_personal_part_alone_is_no_number_fails(split):
    class Loose(Split):
        def __init__(self):
            super().__init__()
            self.spare = nn.Parameter(torch.zeros(2))

        def forward(self, inputs):
            return super().forward(inputs) + 0 * self.spare.sum()

    mine = split(model=Loose, training=TrainingConfig(local_steps=1))
    start = mine.initial()
    whole = tensors(mine, start)
    mine.model.module.spare.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(LearningError, match="personal tensor is not finite"):
        mine.train(RoundStart(start), 0)
    assert same(tensors(mine, start), whole)


# -- restarts and files -------------------------------------------------------------------------------------------


def test_the_personal_part_survives_a_restart(split):
    mine, fresh = split(model=lambda: Split(normed=True)), split(model=lambda: Split(normed=True))
    outcome = mine.train(RoundStart(mine.initial()), 0)
    fresh.load_local_state(mine.local_state())
    assert same(tensors(fresh, outcome.vector), tensors(mine, outcome.vector))
    assert same(fresh.local_state(), mine.local_state())


def test_a_round_that_fails_after_a_restart_leaves_what_was_restored(split):
    mine, fresh = split(), split(loss=Failing(2, raises))
    outcome = mine.train(RoundStart(mine.initial()), 0)
    fresh.load_local_state(mine.local_state())
    with pytest.raises(LearningError, match="no more"):
        fresh.train(RoundStart(outcome.vector), 1)
    assert same(tensors(fresh, outcome.vector), tensors(mine, outcome.vector))


def test_the_personal_part_of_another_model_is_refused_by_name(split):
    with pytest.raises(UserError, match="another model") as caught:
        split().load_local_state(split(model=lambda: Split(classes=5)).local_state())
    assert (caught.value.key, caught.value.value, caught.value.allowed) == ("head.out.bias", "(5,)", "(3,)")


def test_an_exported_file_has_all_tensors_and_gives_both_parts_back(split):
    mine, other = split(), split(node=1)
    outcome = mine.train(RoundStart(mine.initial()), 0)
    content = to_safetensors(mine, outcome.vector, {})
    np.testing.assert_array_equal(from_safetensors(other, content), outcome.vector)
    assert same(other.local_state(), mine.local_state())
    plain = Split()
    from safetensors.torch import load  # noqa: PLC0415 - torch's side of the file

    plain.load_state_dict(load(content))
    assert torch.equal(plain.head.out.weight, mine.model.module.head.out.weight)


def test_the_models_of_the_guide_share_what_it_says():
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "personal-layers.md").read_text(encoding="utf-8")
    named = {"nn": nn, "torch": torch}
    for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        exec(block, named)
    heads = FlatModule(named["Model"](), "guide", ("backbone.*",))
    assert (heads.size, heads.personal) == (64 * 32 + 32, 32 * 10 + 10)
    adapted = FlatModule(nn.Sequential(named["Adapted"](nn.Linear(6, 4), 2), nn.ReLU()), "guide", ("*.lora_*",))
    assert [place.name for place in adapted.places] == ["0.lora_down", "0.lora_up"]
    assert (adapted.size, adapted.personal, adapted.local_state()) == (2 * (6 + 4), 28, {})


# -- mistakes -----------------------------------------------------------------------------------------------------


def test_a_pattern_that_matches_nothing_names_the_key_and_the_tensors_there_are(split):
    with pytest.raises(UserError) as caught:
        split(share=("backbone.*", "tail.*"))
    assert (caught.value.key, caught.value.value) == ("gossip.share", "tail.*")
    assert caught.value.allowed == "backbone.weight, backbone.bias, head.out.weight, head.out.bias"


def test_integer_tensors_cannot_be_shared(split):
    with pytest.raises(UserError) as caught:
        split(model=lambda: Split(normed=True), share=("*.num_batches_tracked",))
    assert caught.value.key == "gossip.share"


def test_a_task_with_a_learner_of_its_own_shares_all_or_nothing(tmp_path):
    place = {"seed": 0, "node_index": 0, "node_count": 2, "node_name": "a", "base_dir": tmp_path, "local": {}}
    given = {**place, "local_dir": tmp_path, "file": tmp_path / "federation.toml"}
    whole = make_learner(TaskConfig(name="quadratic"), TrainingConfig(), **given, share=("*", NOT_FROZEN))
    assert (whole.size, whole.personal) == (16, 0)
    with pytest.raises(UserError) as caught:
        make_learner(TaskConfig(name="quadratic"), TrainingConfig(), **given, share=("w",))
    assert (caught.value.key, caught.value.value, caught.value.allowed) == ("gossip.share", "w", "*")
    assert caught.value.file == str(tmp_path / "federation.toml")
