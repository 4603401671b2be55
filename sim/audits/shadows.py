"""Membership inference against one node of a federation, by copies of it that trained on other halves of its rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from p2pfl.chance import generator
from p2pfl.config.model import FederationConfig
from p2pfl.learn.params import FlatModule
from p2pfl.learn.privacy.draws import Seeded
from p2pfl.learn.samples import TensorSamples
from sim.audits.membership import Flags, MembershipFigures, attack_each, mean_confidences
from sim.audits.observation import Observation
from sim.audits.scene import Scene
from sim.audits.simulated import observe_simulated

FEWEST = 4
"""The fewest shadow models that give a result."""


def attack_members(
    scene: Scene,
    federation: FederationConfig,
    *,
    shadows: int,
    seed: int = 0,
    limit_s: float = float("inf"),
    on_shadow: Callable[[int], None] = lambda _: None,
) -> MembershipFigures | str:
    """Attack the members of `federation`, with `shadows` simulated copies that each train on half of the victim's rows.

    Each copy in turn is the target, with the others as shadows, and its scores are those of the model that the victim
    shows after its last round. After `limit_s` no more copies are made; a returned text says why there is no answer.
    """
    inputs, targets = scene.rows()
    rows = len(targets)
    if rows < FEWEST:
        return "the node has too few rows"
    members, confidence = halves(shadows, rows, seed), []
    ends_at = time.monotonic() + limit_s
    learner = scene.learner(replace(federation, privacy=None), scene.victim)
    flat = FlatModule(learner.model.module, learner.task.name, learner.model.share)
    for number in range(shadows):
        part = torch.from_numpy(np.flatnonzero(members[number]))
        copied = scene.with_rows(TensorSamples(inputs[part], targets[part]))
        chance = Seeded(seed * 1_000_003 + number)
        observed = observe_simulated(federation, copied.learners(federation, chance), scene.victim)
        confidence.append(
            mean_confidences(learner.model.module, flat, [last_shown(observed, federation)], inputs, targets)
        )
        on_shadow(number + 1)
        if time.monotonic() > ends_at:
            break
    if len(confidence) < FEWEST:
        return f"there was time for {len(confidence)} copies only, and {FEWEST} are the fewest"
    return attack_each(np.stack(confidence), members[: len(confidence)])


def halves(shadows: int, rows: int, seed: int) -> Flags:
    """Draw which rows each shadow has (shadows, rows): half of them, so that all have one plan.

    They are drawn independently. If every row were in exactly half of the shadows, those that are left would say
    whether the target has it.
    """
    members = np.zeros((shadows, rows), dtype=np.bool_)
    for number in range(shadows):
        members[number, generator(seed, "audit-shadows", number).permutation(rows)[: rows // 2]] = True
    return members


def last_shown(observed: Observation, federation: FederationConfig) -> np.ndarray:
    """Return the victim's model (d,) as neighbors saw it after its last local round."""
    seen = observed.rounds()[: federation.training.rounds]
    return seen[-1].start + seen[-1].change if seen else observed.initial
