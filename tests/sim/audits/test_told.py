"""Real nodes are watched by their neighbors: what they show of their rounds, and what they tell of private rows."""

import pytest
from audit_kit import digits_task, federation_of, learners_of

from p2pfl.config import PrivacyConfig
from p2pfl.learn.privacy import Protection
from p2pfl.node import TrainingFigures
from p2pfl.reporting import Vitals
from sim import Auditor, Effort, Rebuilder, Scene, figures_told, observe_real

ROW = dict.fromkeys(Vitals.__struct_fields__, 0) | {
    "phase": "training",
    "accuracy": None,
    "loss": None,
    "distance": None,
    "staleness": None,
    "live": b"",
    "standing": (),
    "software": "1",
    "metrics": (),
}


@pytest.mark.parametrize(
    ("figures", "public", "told"),
    [
        ({}, False, []),
        ({"loss": 0.5}, False, ["loss of a local round"]),
        ({"loss": 0.5}, True, ["loss of a local round"]),
        ({"accuracy": 0.9, "metrics": (0.1,)}, False, ["accuracy", "metrics"]),
        ({"accuracy": 0.9, "metrics": (0.1,)}, True, []),
        ({"metrics": (None,)}, False, []),
    ],
)
def test_figures_of_private_rows_are_named(figures, public, told):
    assert figures_told([Vitals(**ROW | figures)], public_test=public) == told


def test_a_real_node_gives_away_its_rows_to_its_neighbors():
    federation = federation_of(digits_task(), 2, rounds=2)

    observed = observe_real(federation, 0)

    rebuilder = Rebuilder(learner=learners_of(federation)[0], federation=federation)
    assert rebuilder.exactly(observed, 2).psnr_db > 60
    assert "loss of a local round" in figures_told(observed.vitals)


def break_both_guards(monkeypatch):
    """The learner gives its loss away, and the node passes it on."""
    made = TrainingFigures.__init__

    def careless(self, *arguments, **named):
        made(self, *arguments, **named)
        self.withheld = frozenset()

    monkeypatch.setattr(Protection, "public_loss", lambda _, loss: loss)
    monkeypatch.setattr(TrainingFigures, "__init__", careless)


def private(task, loss_is_told, monkeypatch):
    if loss_is_told:
        break_both_guards(monkeypatch)
    federation = federation_of(task, 2, rounds=2, local_steps=2, batch_size=8)
    data = learners_of(federation)
    privacy = PrivacyConfig(noise=2.0, delta=1e-3)
    scene = Scene(federation=federation, task=task, data=[one.data_sets for one in data], victim=0, privacy=privacy)
    auditor = Auditor(scene, attacks=["told"], effort=Effort(rounds=1), observe=observe_real)
    auditor.layers = [layer for layer in auditor.layers if layer.name == "record, noise 2"]
    return auditor.run()


@pytest.mark.parametrize("loss_is_told", [False, True])
def test_a_loss_that_is_told_is_found(loss_is_told, monkeypatch, no_accountant):
    found = private(digits_task(), loss_is_told, monkeypatch)

    assert bool(found.mistakes) == loss_is_told
    assert all("loss of a local round" in mistake for mistake in found.mistakes)
    (row,) = (row for row in found.rows if row.attack == "figures told of private rows")
    assert row.values["record, noise 2"] == ("loss of a local round" if loss_is_told else "nothing")
