"""Poisoned data: what liars train on, and the test data that tell whether it worked."""

from __future__ import annotations

import pytest
import torch

from p2pfl.errors import UserError
from p2pfl.learn import DatasetSamples, TensorSamples, load_digits
from sim import parse_attack, trigger

LABELS = torch.tensor([0, 1, 2, 3, 4, 2, 0, 1])


def samples(inputs=None, labels=LABELS):
    return TensorSamples(torch.rand(len(labels), 64) if inputs is None else inputs, labels)


def spoiled(spec, given, **where):
    return parse_attack(spec).poison.spoil(given, **({"classes": 5, "seed": 1, "node": 3} | where))


def probe(spec, given, classes=5):
    return parse_attack(spec).poison.probe(given, classes=classes)


def test_a_flipped_label_is_the_one_opposite():
    given = samples()
    found = spoiled("label-flip", given)
    assert found.targets.tolist() == [4, 3, 2, 1, 0, 2, 4, 3]
    assert found.inputs is given.inputs
    assert given.targets.tolist() == LABELS.tolist()


def test_the_success_of_flipping_is_measured_where_the_flipped_label_is_another():
    found = probe("label-flip", samples())
    assert found.targets.tolist() == [4, 3, 1, 0, 4, 3]
    assert len(probe("label-flip", samples(), classes=10)) == len(LABELS)


def test_half_of_a_backdoors_samples_carry_the_trigger_and_the_target_label():
    given = samples(torch.rand(8, 64) / 2, torch.arange(1, 9))
    found = spoiled("backdoor", given, classes=9)
    marked = found.targets == 0
    assert int(marked.sum()) == 4
    assert torch.equal(found.inputs[marked], trigger(given.inputs[marked]))
    assert torch.equal(found.inputs[~marked], given.inputs[~marked])
    assert torch.equal(found.targets[~marked], given.targets[~marked])
    assert not (given.inputs == 1).any()


def test_which_half_depends_on_seed_and_node_alone():
    given = samples(torch.rand(40, 64), torch.arange(1, 41))

    def chosen(**where):
        return torch.nonzero(spoiled("backdoor", given, **where).targets == 0).flatten().tolist()

    assert chosen() == chosen()
    assert len({tuple(chosen(seed=seed, node=node)) for seed, node in ((1, 3), (1, 4), (2, 3))}) == 3


def test_the_success_of_a_backdoor_is_measured_on_triggered_samples_of_other_classes():
    given = samples()
    found = probe("backdoor", given)
    assert found.targets.tolist() == [0] * 6
    assert torch.equal(found.inputs, trigger(given.inputs[LABELS != 0]))


def test_a_trigger_is_the_lower_right_corner_of_an_image_whatever_its_shape():
    flat = trigger(torch.zeros(2, 64)).view(2, 8, 8)
    assert flat.sum() == 2 * 4
    assert (flat[:, -2:, -2:] == 1).all()
    colored = trigger(torch.zeros(2, 3, 28, 28))
    assert colored.sum() == 2 * 3 * 9
    assert (colored[..., -3:, -3:] == 1).all()
    assert (trigger(torch.zeros(1, 28, 28, dtype=torch.uint8))[..., -3:, -3:] == 255).all()


def test_a_trigger_of_a_row_of_numbers_is_its_last_columns():
    assert trigger(torch.zeros(2, 5)).tolist() == [[0, 0, 0, 0, 3]] * 2
    assert trigger(torch.zeros(1, 20)).tolist() == [[0] * 17 + [3] * 3]


def test_the_digits_have_an_edge_that_is_dark_so_the_trigger_is_no_digit():
    (inputs, _), _ = load_digits()
    assert float((inputs.view(-1, 8, 8)[:, -2:, -2:] == 1).all(dim=(1, 2)).float().mean()) < 0.01


@pytest.mark.parametrize("spec", ["label-flip", "backdoor"])
@pytest.mark.parametrize(
    "given",
    [
        samples(labels=torch.rand(8)),
        samples(labels=torch.zeros(8, 2, dtype=torch.int64)),
        DatasetSamples([(torch.zeros(64), 1)]),
    ],
)
def test_what_has_no_labels_in_memory_cannot_be_poisoned(spec, given):
    for call in (lambda: spoiled(spec, given), lambda: probe(spec, given)):
        with pytest.raises(UserError, match="no labels"):
            call()


@pytest.mark.parametrize("inputs", [torch.zeros(8, 12, dtype=torch.int64), torch.zeros(8), torch.zeros(8, 2, 2, 2, 2)])
def test_what_is_neither_image_nor_row_has_no_trigger(inputs):
    with pytest.raises(UserError, match="no trigger"):
        spoiled("backdoor", samples(inputs))
