"""A linear layer's gradient for one row is that row: the attack is exact at batch 1."""

import numpy as np
import torch
from audit_kit import digits_task, federation_of, learners_of, pictures, small_cnn

from sim import Rebuilder, first_layer, observe_simulated, rank_one


def gradient(learner, rows):
    learner.model.module.zero_grad()
    inputs, targets = learner.train_set.rows(torch.tensor(rows))
    torch.nn.functional.cross_entropy(learner.model.module(inputs), targets).backward()
    return np.concatenate([one.grad.numpy().ravel() for one in learner.model.module.parameters()])


def test_the_row_of_a_gradient_is_found_to_the_last_digits():
    (learner, *_) = learners_of(federation_of(digits_task()))
    layer = first_layer(learner.model.module, learner.model.flat.places)

    found = rank_one(3.0 * gradient(learner, [5]), layer)

    np.testing.assert_allclose(found.inputs, learner.train_set.inputs[5].numpy(), atol=1e-5)
    assert found.rank_one > 1 - 1e-6


def test_of_several_rows_it_says_that_they_were_several():
    (learner, *_) = learners_of(federation_of(digits_task()))

    found = rank_one(gradient(learner, [1, 9, 17]), first_layer(learner.model.module, learner.model.flat.places))

    assert found.rank_one < 0.99


def test_a_gradient_without_a_bias_gives_nothing():
    (learner, *_) = learners_of(federation_of(digits_task()))

    assert (
        rank_one(np.zeros(learner.size, np.float32), first_layer(learner.model.module, learner.model.flat.places))
        is None
    )


def test_two_successive_models_give_away_the_row_of_each_round():
    federation = federation_of(digits_task(), rounds=4)
    learners = learners_of(federation)

    found = Rebuilder(learner=learners[0], federation=federation).exactly(observe_simulated(federation, learners, 0), 4)

    assert len(found.guesses) == 4
    assert found.psnr_db > 60
    assert found.share(20.0) == 1.0
    assert len({guess.match.row for guess in found.guesses}) > 1


def test_a_model_whose_first_layer_is_not_linear_is_left_out_with_the_reason():
    (learner, *_) = learners_of(federation_of(digits_task(small_cnn, pictures)))

    assert first_layer(learner.model.module, learner.model.flat.places) == "the first layer is not linear (Conv2d)"


def test_a_first_layer_without_a_bias_is_left_out_with_the_reason():
    (learner, *_) = learners_of(federation_of(digits_task(lambda: torch.nn.Linear(64, 10, bias=False))))

    assert (
        first_layer(learner.model.module, learner.model.flat.places) == "the first layer has no bias, or is not shared"
    )
