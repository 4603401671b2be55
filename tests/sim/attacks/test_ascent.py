"""The attack that climbs: which way it goes, how far, and what it knows of a task's loss."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sights import MODELS, bowl, sight

from p2pfl.errors import UserError
from p2pfl.learn import Task, TensorSamples
from sim import FARTHER, MOST_SAMPLES, STEPS, Slope, parse_attack, response, slope_for, spread_around

ASCENT = parse_attack("ascent")


def test_every_victim_is_led_the_way_in_which_the_loss_rises_from_the_mean_of_the_honest():
    mean = np.mean([MODELS[node] for node in (0, 1, 2, 3, 6)], axis=0)
    for peer in (0, 1):
        way = ASCENT.tell(sight(peer=peer, own=MODELS[4])) - MODELS[peer]
        assert way @ mean == pytest.approx(np.linalg.norm(way) * np.linalg.norm(mean))


@pytest.mark.parametrize("rule", ["mean", "hampel:b=1", "trimmed-mean:b=1"])
def test_it_goes_as_far_as_raises_the_loss_most_behind_the_victims_rule(rule):
    seen = sight(rule=rule, liars=frozenset({4}), edges=((0, 1), (0, 2), (0, 3), (0, 4)))
    uphill = np.mean([MODELS[node] for node in (0, 1, 2, 3, 5, 6)], axis=0)
    way = uphill / np.linalg.norm(uphill) * spread_around(seen)
    tried = [MODELS[0] + farther * way for farther in FARTHER]
    best = max(tried, key=lambda lie: bowl(response(seen, lie))[0])
    assert ASCENT.tell(seen) == pytest.approx(best)


def test_what_it_costs_is_bounded():
    asked = []
    ASCENT.tell(sight(slope=lambda model: asked.append(1) or bowl(model)))
    assert len(asked) == STEPS + len(FARTHER)


def test_on_a_plain_it_shows_the_victim_its_own_model():
    shown = ASCENT.tell(sight(slope=lambda model: (0.0, np.zeros_like(model))))
    assert np.array_equal(shown, MODELS[0])


def east(model):
    """A loss that rises along the first coordinate alone."""
    return float(model[0]), np.eye(len(model))[0]


def test_foreign_leaves_out_what_raises_the_victims_own_loss_and_nothing_else():
    ascent, foreign = (
        parse_attack(name).tell(sight(own_slope=lambda: east)) - MODELS[0] for name in ("ascent", "foreign")
    )
    assert ascent[0] > 0
    assert foreign[0] == pytest.approx(0.0)
    assert np.linalg.norm(foreign[1:]) > 0
    west = sight(own_slope=lambda: lambda model: (-float(model[0]), -np.eye(len(model))[0]))
    assert parse_attack("foreign").tell(west) == pytest.approx(ASCENT.tell(west)), "what lowers it is no matter"
    assert parse_attack("foreign").tell(sight()) == pytest.approx(ASCENT.tell(sight())), "a real node knows no more"


@pytest.mark.parametrize("rule", ["mean", "hampel:b=1", "trimmed-mean:b=1"])
def test_adapt_raises_the_loss_behind_the_rule_at_least_as_much_as_each_attack_that_it_tries(rule):
    seen = sight(rule=rule, liars=frozenset({4}), edges=((0, 1), (0, 2), (0, 3), (0, 4)), own_slope=lambda: east)
    adapted = bowl(response(seen, parse_attack("adapt").tell(seen)))[0]
    assert adapted >= max(bowl(response(seen, parse_attack(name).tell(seen)))[0] for name in ("ascent", "foreign"))
    for name in ("dissensus", "spectral", "alie", "mimic"):
        way = parse_attack(name).tell(seen) - MODELS[0]
        if np.linalg.norm(way) > 0:
            way *= spread_around(seen) / np.linalg.norm(way)
            assert all(adapted >= bowl(response(seen, MODELS[0] + farther * way))[0] - 1e-9 for farther in FARTHER)


@pytest.mark.parametrize("spec", ["ascent", "foreign", "adapt", "sleeper:ascent@3", "flood:ascent"])
def test_it_is_known_to_need_a_loss_also_within_another(spec):
    assert parse_attack(spec).climbs
    with pytest.raises(UserError, match=r"cannot be climbed.*digits"):
        slope_for(parse_attack(spec), object())


def test_other_attacks_are_not_given_a_loss():
    assert slope_for(parse_attack("spectral"), object()) is None


# -- the loss of a task ------------------------------------------------------------------------------------------------


class Halves(torch.nn.Module):
    """One trained tensor, one frozen, and a dropout that must not be asked for chance."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        self.frozen = torch.nn.Parameter(torch.tensor([3.0]), requires_grad=False)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, inputs):
        return self.dropout(inputs) @ self.weight + self.frozen


def learner_of(count=4):
    inputs = torch.arange(2.0 * count).reshape(count, 2)
    task = Task(
        name="halves",
        model=Halves,
        data=lambda _context: None,
        loss=lambda out, targets: ((out - targets) ** 2).mean(),
    )
    model = SimpleNamespace(module=Halves().train(), share=("*",))
    return SimpleNamespace(model=model, task=task, train_set=TensorSamples(inputs, torch.ones(count)))


def test_a_slope_is_the_mean_loss_and_its_gradient_and_leaves_the_learner_as_it_was():
    learner, model = learner_of(), np.array([0.5, 1.0, 2.0], np.float32)
    loss, gradient = Slope(learner)(model)
    inputs, targets = (tensor.double().numpy() for tensor in (learner.train_set.inputs, learner.train_set.targets))
    off = inputs @ model[:2] + model[2] - targets
    assert loss == pytest.approx((off**2).mean())
    assert gradient == pytest.approx([*(2 * off @ inputs / len(off)), 0.0])
    assert learner.model.module.weight.tolist() == [1.0, -2.0]
    assert learner.model.module.weight.grad is None
    assert learner.model.module.training


def test_other_channels_have_no_slope():
    loss, gradient = Slope(learner_of())(np.ones(9))
    assert loss > 0
    assert gradient[:2].all()
    assert not gradient[3:].any()


def test_of_many_samples_evenly_spaced_ones_count():
    (inputs, _), count = Slope(learner_of(3 * MOST_SAMPLES)).batch, 3 * MOST_SAMPLES
    assert inputs[:, 0].tolist() == list(range(0, 2 * count, 6))
