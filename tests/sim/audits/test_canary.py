"""The canary stays silent where the mechanism is right, and finds mistakes that were planted in it."""

import numpy as np
import pytest
import torch
from audit_kit import digits_task, federation_of, learners_of

from p2pfl.learn.privacy import Grid, LayerChain, Secret, Seeded, Vectorized
from sim import Auditor, Canary, Scene, canary, most_alike, proof, reuse

TRIES = 150


def seeded():
    return Seeded(5)


@pytest.mark.long
@pytest.mark.parametrize(("unit", "chain"), [("record", True), ("record", False), ("member", True)])
def test_a_right_mechanism_proves_less_than_it_claims(unit, chain):
    tries = TRIES if chain else 60
    found = canary(unit=unit, tries=tries, chance=seeded(), chain=chain, clip=0.3)

    assert found.holds
    assert found.claimed == pytest.approx(4.377, abs=1e-3)
    assert found.noise_at_most > 1.0


def test_noise_that_is_off_by_ten_is_found(monkeypatch):
    made = Grid.of

    def quiet(*, noise, **how):
        return made(noise=noise / 10, **how)

    monkeypatch.setattr(Grid, "of", quiet)
    found = canary(tries=TRIES, chance=seeded())

    assert not found.holds
    assert found.noise_at_most < 0.5


def test_noise_of_a_member_that_is_off_by_ten_is_found(monkeypatch):
    class Quiet(Seeded):
        def of_round(self, node, round_index):
            draws = super().of_round(node, round_index)
            noise = draws.noise
            draws.noise = lambda size: noise(size) // 10
            return draws

    assert not canary(unit="member", tries=TRIES, chance=Quiet(5)).holds


@pytest.mark.parametrize("way", [LayerChain, pytest.param(Vectorized, marks=pytest.mark.long)])
def test_clipping_after_the_sum_is_found(monkeypatch, way):
    """Each row may then turn the whole sum around: twice as much as one clip."""
    clipped_sum = way.clipped_sum

    def afterwards(self, inputs, targets, clip, among=None):
        sums, losses = clipped_sum(self, inputs, targets, float("inf"), among)
        length = float(torch.stack([one.square().sum() for one in sums]).sum().sqrt())
        return [one * min(1.0, clip / length) if length else one for one in sums], losses

    monkeypatch.setattr(way, "clipped_sum", afterwards)

    assert not canary(tries=TRIES if way is LayerChain else 150, chance=seeded(), chain=way is LayerChain).holds


def test_clipping_the_mean_in_place_of_the_rows_is_found(monkeypatch):
    clipped_sum = LayerChain.clipped_sum

    def of_the_mean(self, inputs, targets, clip, among=None):
        return clipped_sum(self, inputs, targets, clip * len(targets), among)

    monkeypatch.setattr(LayerChain, "clipped_sum", of_the_mean)

    assert not canary(tries=60, chance=seeded()).holds


@pytest.mark.parametrize("unit", ["record", "member"])
def test_secret_noise_is_never_the_same_twice(unit):
    assert not reuse(unit).is_reused


def test_the_noise_of_a_simulation_differs_by_node_and_round():
    assert not reuse(chance=seeded).is_reused


@pytest.mark.parametrize("forgotten", ["round", "node", "start"])
def test_a_seed_that_is_used_again_is_found(monkeypatch, forgotten):
    def of_round(self, node, round_index):
        return Seeded(7).of_round(0 if forgotten == "node" else node, 0 if forgotten == "round" else round_index)

    monkeypatch.setattr(Secret, "of_round", of_round)
    found = reuse()

    assert found.is_reused
    assert found.correlation == pytest.approx(1.0)


def test_the_two_most_alike_are_named():
    rng = np.random.default_rng(0)
    some, other = rng.normal(size=500), rng.normal(size=500)

    found = most_alike(["a", "b", "c"], [some, other, some + 0.1 * other])

    assert set(found.pair) == {"a", "c"}
    assert found.is_reused


@pytest.mark.long
@pytest.mark.parametrize("bad_luck", [1, 2])
def test_a_canary_that_accuses_is_tried_again(monkeypatch, no_accountant, bad_luck):
    federation = federation_of(digits_task(), 2)
    data = [one.data_sets for one in learners_of(federation)]
    scene = Scene(federation=federation, task=federation.task.given, data=data, victim=0)
    auditor = Auditor(scene, attacks=["canary"])
    auditor.layers = [layer for layer in auditor.layers if layer.plan is not None][:1]
    asked = []

    def unlucky(**how):
        asked.append(how["tries"])
        proven = 9.0 if len(asked) <= bad_luck else 1.0
        return Canary(claimed=4.4, proven=proven, noise_at_most=2.0, proof=proof(np.ones(8), np.zeros(8), 1e-5))

    monkeypatch.setattr("sim.audits.audit.canary", unlucky)
    auditor.try_canary()

    assert asked == [600, 1200]
    assert bool(auditor.findings.mistakes) == (bad_luck == 2)
