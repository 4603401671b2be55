"""What a restarted node still knows of the figures by which it stops, and when it takes its federation for ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2pfl import Federation, load_federation
from p2pfl.config import load_node
from p2pfl.core import Best
from p2pfl.engine import NodeState
from p2pfl.node import bound_of, make_core, make_engine, read_setup

STOP = "no improvement in 5 rounds"


@pytest.fixture
def setup(tmp_path):
    saved = Federation(task="quadratic", nodes=2, topology="complete", stop=STOP).save(tmp_path / "ward")
    federation = load_federation(saved).config
    return read_setup(federation, load_node(saved / "node0", federation))


def core_of(setup, **known):
    state = make_engine(setup, None).state
    for key, value in known.items():
        setattr(state, key, value)
    return make_core(setup, state, fresh=False)


def test_a_restarted_node_has_as_much_patience_left_as_before(setup):
    core = core_of(setup, rounds=8, best=Best(0.5, 4))
    assert core.rounds.training.best == Best(0.5, 4)
    assert core.rounds.training.enough(0.0) is None
    assert core_of(setup, rounds=9, best=Best(0.5, 4)).rounds.training.enough(0.0)


def test_more_patience_continues_a_federation_that_has_ended(setup):
    ended = bound_of(setup.federation.training)
    assert core_of(setup, ended=ended).facts.done
    training = replace(setup.federation.training, stop="no improvement of loss in 9 rounds")
    longer = replace(setup, federation=replace(setup.federation, training=training))
    assert not core_of(longer, ended=ended).facts.done
    assert bound_of(core_of(setup).settings) == ended, "by which a node notes it, and by which it finds it again"


def test_what_must_improve_is_read_by_the_node_that_is_set_up(setup):
    assert setup.gauge.read(3.0, None) == 3.0
    assert NodeState.new(setup.learner.initial(), 1, ()).best is None
