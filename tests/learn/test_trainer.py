from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.sgd import sgd

from p2pfl.chance import generator
from p2pfl.config import TaskConfig, TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn import NodeContext, QuadraticTask, RoundStart, draw_batches, learner_for, make_learner, seeded
from p2pfl.methods import Method, Variate


def dropout_model():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def test_every_node_starts_from_the_same_model_which_the_seed_alone_decides(learner):
    torch.manual_seed(99)
    first = learner(seed=1, node=0).initial()
    torch.manual_seed(98)
    np.testing.assert_array_equal(learner(seed=1, node=5).initial(), first)
    assert not np.array_equal(learner(seed=2).initial(), first)


def test_building_and_training_leave_torchs_generator_as_it_was(learner):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    mine = learner(model=dropout_model)
    mine.train(RoundStart(mine.initial()), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_round_is_a_function_of_seed_node_and_round(learner):
    def outcome(*, seed=0, node=0, round_index=0):
        mine = learner(model=dropout_model, seed=seed, node=node)
        start = np.full(mine.size, 0.1, dtype=np.float32)
        return mine.train(RoundStart(start), round_index).vector

    first = outcome()
    np.testing.assert_array_equal(outcome(), first)
    for other in ({"seed": 1}, {"node": 1}, {"round_index": 1}):
        assert not np.array_equal(outcome(**other), first)


def test_an_adjusted_loss_adds_the_logarithm_of_each_classs_share_and_scores_without_it(learner):
    training = TrainingConfig(local_steps=1, batch_size=1000, learning_rate=1.0)
    plain, mine = (learner(training=replace(training, logit_adjust=weight)) for weight in (0.0, 0.5))
    labels = mine.train_set.targets
    classes = mine.classes
    shares = (1.0 + torch.bincount(labels, minlength=classes)) / (len(labels) + classes)
    assert torch.allclose(mine.prior, 0.5 * shares.log())
    start = mine.initial()
    weight = torch.from_numpy(start.copy()).requires_grad_()
    mine.model.flat.load(start)
    parts = {place.name: weight[place.part].view(place.shape) for place in mine.model.flat.places}
    outputs = torch.func.functional_call(mine.model.module, parts, mine.train_set.inputs)
    functional.cross_entropy(outputs + 0.5 * shares.log(), labels).backward()
    after = mine.train(RoundStart(start), 0).vector
    np.testing.assert_allclose(after, start - weight.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert not np.allclose(after, plain.train(RoundStart(start), 0).vector, atol=1e-4)
    assert mine.evaluate(start, "local") == plain.evaluate(start, "local")


def test_a_loss_is_adjusted_for_class_labels_alone(learner):
    training = TrainingConfig(logit_adjust=1.0)
    with pytest.raises(UserError, match=r"training.logit_adjust.*class labels"):
        learner(training=training, loss=functional.cross_entropy)
    context = NodeContext(node=0, nodes=3, name="a", seed=0, base_dir=Path())
    with pytest.raises(UserError, match=r"training.logit_adjust.*its own learner"):
        learner_for(QuadraticTask(), context, training)


def trained(mine, rounds, start=None):
    vector = mine.initial() if start is None else start
    for index in rounds:
        vector = mine.train(RoundStart(vector), index).vector
    return vector


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "adamw"}])
def test_what_a_kept_optimizer_remembers_is_in_the_next_round_and_survives_a_restart(learner, optimizer):
    training = TrainingConfig(learning_rate=0.01, local_steps=3, keep_optimizer=True, **optimizer)
    whole, used = learner(training=training), learner(training=training)
    expected = trained(whole, range(4))
    half = trained(used, range(2))
    after = learner(training=training)
    assert trained(after, range(2, 4), half).tobytes() != expected.tobytes()
    after.load_local_state(used.local_state())
    assert trained(after, range(2, 4), half).tobytes() == expected.tobytes()
    forgetful = learner(training=replace(training, keep_optimizer=False))
    assert trained(forgetful, range(4)).tobytes() != expected.tobytes()
    assert forgetful.local_state() == {}


def test_a_dropped_round_leaves_nothing_in_a_kept_optimizer(learner):
    training = TrainingConfig(learning_rate=0.01, momentum=0.9, keep_optimizer=True)
    mine, other = (learner(training=training) for _ in range(2))
    model = trained(mine, range(1))
    trained(other, range(1))
    assert not np.isfinite(mine.train(RoundStart(np.full_like(model, np.nan)), 1).vector).all()
    assert trained(mine, (1, 2), model).tobytes() == trained(other, (1, 2), model).tobytes()


@pytest.mark.long
def test_a_kept_adam_goes_on_as_torchs_own(learner):
    training = TrainingConfig(optimizer="adam", learning_rate=0.01, local_steps=4, batch_size=50, keep_optimizer=True)
    mine = learner(training=training)
    plain = nn.Linear(4, 3)
    mine.state_dict(mine.initial())
    plain.load_state_dict(mine.model.module.state_dict())
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    inputs, targets = mine.train_set.inputs, mine.train_set.targets
    for _ in range(8):
        optimizer.zero_grad()
        functional.cross_entropy(plain(inputs), targets).backward()
        optimizer.step()
    vector = trained(mine, range(2))
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in plain.parameters()]).numpy()
    np.testing.assert_allclose(np.sort(vector), np.sort(expected), rtol=1e-4, atol=1e-6)


def test_a_round_takes_the_rate_of_its_schedule_and_says_so(learner):
    training = TrainingConfig(learning_rate=0.2, schedule="cosine:rounds=5,to=0.5")
    mine, half = learner(training=training), learner(training=TrainingConfig(learning_rate=0.1))
    start = mine.initial()
    assert mine.train(RoundStart(start), 0).learning_rate == 0.2
    outcome, expected = (one.train(RoundStart(start), 5) for one in (mine, half))
    assert outcome.learning_rate == expected.learning_rate == 0.1
    assert outcome.vector.tobytes() == expected.vector.tobytes()
    timed = learner(training=replace(training, schedule="cosine:time_s=5,to=0.5"))
    assert timed.train(RoundStart(start, elapsed_s=6.0), 5).vector.tobytes() == expected.vector.tobytes()


def test_a_round_does_not_depend_on_the_rounds_before_it(learner):
    training = TrainingConfig(optimizer="adam", learning_rate=0.01)
    fresh, used = (learner(model=dropout_model, training=training) for _ in range(2))
    start = fresh.initial()
    used.train(RoundStart(start, {"correction": np.ones_like(start)}, Variate()), 0)
    np.testing.assert_array_equal(used.train(RoundStart(start), 1).vector, fresh.train(RoundStart(start), 1).vector)


def round_digest():
    task = TaskConfig(options={"partition": "shards:2"})
    place = {"seed": 7, "node_index": 3, "node_count": 8, "node_name": "d", "base_dir": Path()}
    mine = make_learner(task, TrainingConfig(), **place, local={}, local_dir=Path())
    outcome = mine.train(RoundStart(mine.initial()), 5)
    return hashlib.sha256(mine.shape_digest + outcome.vector.tobytes()).hexdigest()


@pytest.mark.long
def test_another_process_computes_the_same_round():
    code = "import faces, runpy, torch\ntorch.set_num_threads(1)\n"
    code += f"print(runpy.run_path({__file__!r})['round_digest']())"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert other.stdout.strip() == round_digest()


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.0, 0.01), (0.9, 0.0), (0.9, 0.01)])
def test_training_has_the_bits_of_a_plain_loop_of_torch(learner, momentum, decay):
    """With the steps of `torch.optim.SGD`, which itself would import torch's compiler for a second."""
    training = TrainingConfig(local_steps=5, batch_size=16, learning_rate=0.1, momentum=momentum, weight_decay=decay)
    mine = learner(model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), training=training)
    plain = mine.task.model()
    plain.load_state_dict({k: torch.from_numpy(v) for k, v in mine.state_dict(mine.initial()).items()})
    weights, kept = list(plain.parameters()), [None] * 4
    given = {"lr": 0.1, "momentum": momentum, "weight_decay": decay}
    for rows in draw_batches(training, mine.samples, generator(0, "batches", 0, 2)):
        plain.zero_grad()
        functional.cross_entropy(plain(mine.train_set.inputs[rows]), mine.train_set.targets[rows]).backward()
        with torch.no_grad():
            sgd(weights, [each.grad for each in weights], kept, **given, dampening=0.0, nesterov=False, maximize=False)
    expected = torch.cat([each.detach().flatten() for each in weights]).numpy()
    assert mine.train(RoundStart(mine.initial()), 2).vector.tobytes() == expected.tobytes()


def test_a_correction_adds_to_the_gradient_of_the_data(learner):
    training = TrainingConfig(local_steps=1, batch_size=50, learning_rate=0.5)
    mine = learner(training=training)
    start, correction = mine.initial(), np.full(mine.size, 0.25, dtype=np.float32)
    plain, pulled = (
        mine.train(
            RoundStart(start, {} if c is None else {"correction": c}, None if c is None else Variate()), 0
        ).vector
        for c in (None, correction)
    )
    np.testing.assert_allclose(pulled, plain - 0.5 * correction, atol=1e-6)


class Downhill(Method):
    """Each gradient is one more."""

    def gradient(self, g, w, start):
        return g + 1


@pytest.mark.parametrize(("method", "follows"), [(Variate(), True), (Downhill(), False)])
def test_a_parameter_that_the_loss_does_not_use_follows_its_correction_and_no_other_method(learner, method, follows):
    class Spare(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.spare = nn.Parameter(torch.zeros(2, dtype=torch.float16))

    mine = learner(model=Spare, training=TrainingConfig(local_steps=2, learning_rate=0.5))
    outcome = mine.train(RoundStart(mine.initial(), {"correction": np.ones(mine.size, dtype=np.float32)}, method), 0)
    spare = mine.state_dict(outcome.vector)["spare"]
    assert spare.tolist() == ([-1.0, -1.0] if follows else [0.0, 0.0])


def test_start_and_correction_are_left_as_they_are(learner):
    mine = learner()
    start, correction = mine.initial(), np.ones(mine.size, dtype=np.float32)
    before = start.copy()
    mine.train(RoundStart(start, {"correction": correction}, Variate()), 0)
    np.testing.assert_array_equal(start, before)
    np.testing.assert_array_equal(correction, np.ones(mine.size, dtype=np.float32))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimizer_lowers_the_loss_and_reports_what_it_did(learner, optimizer):
    training = TrainingConfig(optimizer=optimizer, learning_rate=0.02, local_steps=30, batch_size=20)
    mine = learner(training=training)
    outcome = mine.train(RoundStart(mine.initial()), 0)
    assert (outcome.steps, outcome.learning_rate, outcome.samples) == (30, 0.02, mine.samples)
    assert mine.evaluate(outcome.vector, "local").loss < mine.evaluate(mine.initial(), "local").loss


def test_a_diverging_round_is_reported_not_raised(learner):
    mine = learner(loss=lambda outputs, _: 1e30 * outputs.square().mean())
    outcome = mine.train(RoundStart(mine.initial()), 0)
    assert not np.isfinite(outcome.vector).all()


def test_batch_norm_counts_its_batches_across_rounds(learner):
    mine = learner(model=lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    for round_index in range(2):
        mine.train(RoundStart(mine.initial()), round_index)
    assert mine.local_state()["0.num_batches_tracked"] == 40
    assert mine.state_dict(mine.initial())["0.num_batches_tracked"] == 40


def test_the_users_exception_and_its_line_are_in_the_error(learner):
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("the sky fell")
        return functional.cross_entropy(outputs, targets)

    mine = learner(loss=loss)
    line = loss.__code__.co_firstlineno + 3
    with pytest.raises(LearningError, match=rf"mine: training failed: .*sky fell \(test_trainer.py, line {line}\)"):
        mine.train(RoundStart(mine.initial()), 0)
    with pytest.raises(LearningError, match="evaluation failed"):
        mine.evaluate(mine.initial(), "local")


def test_accuracy_and_loss_are_means_over_all_samples_whatever_the_batches(learner, monkeypatch):
    mine = learner()
    whole = mine.evaluate(mine.initial(), "local")
    monkeypatch.setattr("p2pfl.learn.evaluation.BATCH", 7)
    parts = mine.evaluate(mine.initial(), "local")
    assert parts.accuracy == whole.accuracy
    assert parts.loss == pytest.approx(whole.loss, abs=1e-6)
    assert parts.samples == 50


def test_a_metric_sees_the_whole_set_at_once(learner, monkeypatch):
    monkeypatch.setattr("p2pfl.learn.evaluation.BATCH", 7)
    mine = learner(metrics={"rows": lambda outputs, targets: len(outputs) + len(targets)})
    assert mine.evaluate(mine.initial(), "local").metrics == {"rows": 100.0}


def test_regression_has_no_accuracy_and_a_missing_test_set_no_score(learner):
    inputs = np.ones((6, 4), dtype=np.float64)
    pair = (inputs, np.ones((6, 1)))
    mine = learner(model=lambda: nn.Linear(4, 1), loss=functional.mse_loss, data=(pair, None))
    assert mine.evaluate(mine.initial(), "local").accuracy is None
    assert mine.evaluate(mine.initial(), "test") is None


def test_evaluation_is_without_dropout_and_leaves_the_mode_as_it_was(learner):
    mine = learner(model=dropout_model)
    mine.model.module.train()
    scores = [mine.evaluate(mine.initial(), "local").loss for _ in range(2)]
    assert scores[0] == scores[1]
    assert mine.model.module.training


def test_a_lazy_dataset_is_read_row_by_row(learner):
    class Counting(torch.utils.data.Dataset):
        reads = 0

        def __len__(self):
            return 30

        def __getitem__(self, row):
            Counting.reads += 1
            return torch.full((4,), float(row)), row % 3

    mine = learner(data=(Counting(), Counting()), training=TrainingConfig(local_steps=2, batch_size=5))
    Counting.reads = 0
    mine.train(RoundStart(mine.initial()), 0)
    assert Counting.reads == 10
    assert mine.evaluate(mine.initial(), "test").accuracy is not None


@pytest.mark.parametrize(
    ("training", "key"),
    [
        (TrainingConfig(optimizer="lion"), "training.optimizer"),
        (TrainingConfig(optimizer="adam", momentum=0.9), "training.momentum"),
    ],
)
def test_an_impossible_optimizer_is_the_users_mistake(learner, training, key):
    with pytest.raises(UserError) as caught:
        learner(training=training)
    assert caught.value.key == key


def test_the_generator_is_put_back_even_when_training_fails():
    def fail():
        torch.rand(1)
        raise KeyError

    before = torch.get_rng_state()
    with pytest.raises(KeyError), seeded(1):
        fail()
    assert torch.equal(torch.get_rng_state(), before)
