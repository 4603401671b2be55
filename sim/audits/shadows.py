"""Membership inference against one node of a federation: copies of it in which other halves of its rows took part."""

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
"""Fewer shadow models than this say nothing."""


def attack_members(
    scene: Scene,
    federation: FederationConfig,
    *,
    shadows: int,
    seed: int = 0,
    limit_s: float = float("inf"),
    on_shadow: Callable[[int], None] = lambda _: None,
) -> MembershipFigures | str:
    """Simulate so many copies of `federation`, of which each trains on half of the victim's rows, and ask each what the
    victim has shown after its last round, with the others as shadows. After `limit_s` no more are made; a text says why
    there is no answer.
    """
    inputs, targets = scene.rows()
    rows = len(targets)
    if rows < FEWEST:
        return "the node has too few rows"
    members, told = halves(shadows, rows, seed), []
    ends_at = time.monotonic() + limit_s
    learner = scene.learner(replace(federation, privacy=None), scene.victim)
    flat = FlatModule(learner.model.module, learner.task.name, learner.model.share)
    for number in range(shadows):
        part = torch.from_numpy(np.flatnonzero(members[number]))
        copied = scene.with_rows(TensorSamples(inputs[part], targets[part]))
        chance = Seeded(seed * 1_000_003 + number)
        observed = observe_simulated(federation, copied.learners(federation, chance), scene.victim)
        told.append(mean_confidences(learner.model.module, flat, [last_shown(observed, federation)], inputs, targets))
        on_shadow(number + 1)
        if time.monotonic() > ends_at:
            break
    if len(told) < FEWEST:
        return f"there was time for {len(told)} copies only, and {FEWEST} are the fewest"
    return attack_each(np.stack(told), members[: len(told)])


def halves(shadows: int, rows: int, seed: int) -> Flags:
    """Which rows each shadow has (shadows, rows): half of them, so that all have one plan.

    They are drawn independently. Were every row in just half of the shadows, the ones that are left would say whether
    the target has it.
    """
    members = np.zeros((shadows, rows), dtype=np.bool_)
    for number in range(shadows):
        members[number, generator(seed, "audit-shadows", number).permutation(rows)[: rows // 2]] = True
    return members


def last_shown(observed: Observation, federation: FederationConfig) -> np.ndarray:
    """The victim's model (d,) as neighbors saw it after its last local round."""
    seen = observed.rounds()[: federation.training.rounds]
    return seen[-1].start + seen[-1].change if seen else observed.initial
