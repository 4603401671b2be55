"""What these tests share, and where they find more of it."""

import pytest


@pytest.fixture
def no_accountant(monkeypatch):
    """An accountant takes seconds, and is tested elsewhere."""
    monkeypatch.setattr("p2pfl.learn.privacy.plan.noise_for", lambda *_: 2.0)
    monkeypatch.setattr("p2pfl.learn.privacy.plan.epsilon_of", lambda spent, *_: 0.1 * sum(one.steps for one in spent))
