"""Gradient inversion rebuilds rows from two successive models: of digits, and through a small CNN."""

import numpy as np
import pytest
import torch
from audit_kit import digits_task, federation_of, learners_of, pictures, small_cnn

from p2pfl.learn import loss_of
from sim import InversionSettings, Rebuilder, invert, labels_of, matched, observe_simulated, span_of, variation


def rebuilt(task, iterations, rounds=2, rate=0.1):
    federation = federation_of(task, 2, rounds=rounds)
    learners = learners_of(federation)
    observed = observe_simulated(federation, learners, 0)
    rebuilder = Rebuilder(
        learner=learners[0], federation=federation, settings=InversionSettings(iterations=iterations, rate=rate)
    )
    return rebuilder.by_inversion(observed, rounds)


def test_digits_are_rebuilt_from_two_successive_models():
    found = rebuilt(digits_task(), 60)

    assert found.psnr_db > 25
    assert found.share(20.0) == 1.0


def test_digits_are_rebuilt_through_a_small_cnn():
    found = rebuilt(digits_task(small_cnn, pictures), 60)

    assert found.psnr_db > 20


@pytest.mark.long
def test_rounds_of_two_steps_are_unrolled():
    (learner, *_) = learners_of(federation_of(digits_task()))
    inputs, targets = learner.train_set.rows(torch.tensor([3, 11]))
    start, rate = learner.initial(), 0.5
    learner.model.flat.load(start)
    for row in (0, 1):
        learner.model.module.zero_grad()
        loss_of(learner.task)(learner.model.module(inputs[row : row + 1]), targets[row : row + 1]).backward()
        with torch.no_grad():
            for one in learner.model.module.parameters():
                one.sub_(rate * one.grad)
    way = (start - learner.model.flat.vector()) / rate

    found = invert(
        learner.model.module,
        learner.model.flat.places,
        start,
        way,
        loss=loss_of(learner.task),
        shape=(64,),
        labels=targets,
        steps=2,
        learning_rate=rate,
        settings=InversionSettings(iterations=150, smoothness=1e-4),
    )

    truth = inputs.numpy()
    assert [match.row for match in matched(found.inputs, truth, span_of(truth))] == [0, 1]
    assert min(match.psnr_db for match in matched(found.inputs, truth, span_of(truth))) > 18


@pytest.mark.parametrize("labels", [[3], [1, 7], [2, 2, 5]])
def test_labels_are_read_off_the_last_bias(labels):
    told = np.full(10, 0.1)
    for label in labels:
        told[label] -= 1 / len(labels)

    assert labels_of(told, len(labels)).tolist() == labels


def test_smooth_pictures_have_less_variation_than_noise():
    flat, noise = torch.full((1, 64), 0.5), torch.rand(1, 64, generator=torch.Generator().manual_seed(0))

    assert float(variation(flat)) == 0.0
    assert float(variation(noise)) > 0.4
    assert float(variation(torch.rand(3, 7))) == 0.0


def test_inputs_that_are_no_real_numbers_are_left_out_with_the_reason():
    def tokens(node):
        generator = torch.Generator().manual_seed(node.node)
        return (torch.randint(0, 9, (8, 5), generator=generator), torch.arange(8) % 2), None

    model = lambda: torch.nn.Sequential(torch.nn.EmbeddingBag(9, 4), torch.nn.Linear(4, 2))  # noqa: E731
    federation = federation_of(digits_task(model, tokens), 2)

    assert "not real numbers" in Rebuilder(learner=learners_of(federation)[0], federation=federation).why_not


def test_a_regression_is_left_out_with_the_reason():
    def values(node):
        rows = torch.linspace(0, 1, 24).reshape(8, 3)
        return (rows, rows.sum(1, keepdim=True)), None

    task = digits_task(lambda: torch.nn.Linear(3, 1), values)
    task = type(task)(name="sum", model=task.model, data=values, loss=torch.nn.functional.mse_loss)
    federation = federation_of(task, 2)

    assert (
        Rebuilder(learner=learners_of(federation)[0], federation=federation).why_not
        == "the task is not to tell classes"
    )
