"""Differences of sums name the labels of one member, hardly those of a group, and what colluders leave of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from audit_kit import digits_task, federation_of, learners_of, small_digits

from p2pfl import Federation
from sim import Auditor, Scene, hidden_rounds, name_labels, scene_of


def drawn(members=12, classes=10, rounds=8):
    """Changes of biases that rise for the two labels of each member, and fall for the others."""
    rng, has = np.random.default_rng(1), np.zeros((members, classes), np.bool_)
    for row in has:
        row[rng.choice(classes, 2, replace=False)] = True
    return np.where(has, 1.0, -0.25) + rng.normal(0.0, 0.3, (rounds, members, classes)), has


def test_one_member_is_named_a_group_less_and_who_is_left_beside_colluders_more():
    changes, has = drawn()
    groups = [range(at, at + 4) for at in (0, 4, 8)]

    alone = name_labels(changes, has, [[member] for member in range(12)])
    group = name_labels(changes, has, groups)
    less = [name_labels(changes, has, groups, colluders=count)["one round"] for count in (1, 2, 3)]

    assert alone["one round"] > 0.99
    assert group["one round"] < 0.85
    assert group["one round"] < less[0] < less[1] < less[2] == pytest.approx(alone["one round"])
    assert 0.5 < group["two rounds"] < alone["two rounds"] < alone["one round"]
    assert name_labels(changes, has, [range(12)]).keys() == {"one round"}, "with one group no two sums differ"


def rows_of_all(node):
    (inputs, targets), test = small_digits(node)
    return (inputs, torch.arange(len(targets)) % 10), test


def numbers(node):
    return tuple((inputs, targets[:, None].float()) for inputs, targets in small_digits(node))


@pytest.mark.parametrize(
    ("model", "data", "why"),
    [
        (lambda: torch.nn.Linear(64, 1), numbers, "the task is not to tell classes"),
        (lambda: torch.nn.Linear(64, 10, bias=False), small_digits, "the last layer has no bias that is shared"),
        (lambda: torch.nn.Linear(64, 10), rows_of_all, "each node has rows of all labels"),
    ],
)
def test_where_it_does_not_apply_a_note_says_why(model, data, why, no_accountant):
    task = replace(digits_task(model, data), loss=torch.nn.functional.mse_loss if data is numbers else None)
    federation = federation_of(task, 2, rounds=1)
    both = [learner.data_sets for learner in learners_of(federation)]

    findings = Auditor(Scene(federation=federation, task=task, data=both, victim=0), attacks=("differences",)).run()

    assert f"labels by differences, no layer: left out, {why}" in findings.notes
    assert not [row for row in findings.rows if "labels" in row.attack]


def test_sums_are_of_the_groups_and_the_step_of_the_federation_and_need_all_data(tmp_path):
    privacy = {"hide": "models", "outer": "momentum", "bits": 24}
    scene = scene_of(Federation(nodes=6, rounds=1, privacy=privacy, options={"hidden": 8}).save(tmp_path / "w"))
    learners = scene.whole.learners(scene.whole.federation)
    start = learners[0].initial()

    ((changes, rows, end),) = hidden_rounds(scene.whole.federation, learners, scene.hides)

    assert [sorted(group) for group in scene.groups] == [[0, 1, 2], [3, 4, 5]]
    np.testing.assert_allclose(end, start + changes.sum(axis=0) / rows.sum(), atol=1e-5)  # momentum's first step
    findings = Auditor(replace(scene, whole=None), attacks=("differences",)).run()
    assert (
        "labels by differences, hidden, 24 bits: left out, not all members' data are on this machine" in findings.notes
    )
