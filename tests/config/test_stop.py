"""`training.stop`: its words, and how it goes together with the other bounds of training."""

from __future__ import annotations

import pytest

from p2pfl.config import MOST_ROUNDS, federation_mistakes, load_config, parse_stop, settings_of
from p2pfl.core import Stop

ROUNDS = "rounds = 40"


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("no improvement in 20 rounds", Stop(patience=20)),
        ("no  improvement of loss in 1 round", Stop(patience=1)),
        (
            "no improvement of balanced_accuracy by 0.001 in 5 rounds",
            Stop(patience=5, of="balanced_accuracy", least=0.001),
        ),
        ("after 1.5min", Stop(after_s=90.0)),
        ("after 1 d or no improvement in 9 rounds", Stop(patience=9, after_s=86400.0)),
    ],
)
def test_what_it_says_and_that_its_canonical_spelling_says_the_same(text, stop):
    assert parse_stop(text) == stop
    assert parse_stop(str(stop)) == stop


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no improvement in 0 rounds",
        "after 0 s",
        "after 1 h or after 2 h",
        "no improvement in 3 rounds or",
        "no improvement of a b in 3 rounds",
        "after " + "9" * 400 + " s",
    ],
)
def test_other_words_are_one_clear_mistake(valid_text, write, text):
    (mistake,) = federation_mistakes(write(valid_text.replace(ROUNDS, f'stop = "{text}"')))
    assert mistake.key == "training.stop"
    assert "no improvement in 20 rounds" in mistake.allowed


@pytest.mark.parametrize(
    ("keys_", "bounds"),
    [
        ('stop = "no improvement in 5 rounds"', (MOST_ROUNDS, None)),
        ('rounds = 7\nstop = "no improvement in 5 rounds"', (7, None)),
        ('stop = "after 2 min"', (None, 120.0)),
        ('time_s = 60.0\nstop = "after 2 min"', (None, 60.0)),
        ('stop = "no improvement in 5 rounds or after 2 min"', (None, 120.0)),
    ],
)
def test_rounds_and_time_bound_it_as_well(valid_text, write, keys_, bounds):
    federation = load_config(write(valid_text.replace(ROUNDS, keys_)))
    assert (federation.training.rounds, federation.training.time_s) == bounds
    assert settings_of(federation, hops=1).stop == parse_stop(federation.training.stop)


def test_a_test_figure_needs_tests(valid_text, write):
    text = valid_text.replace(ROUNDS, 'stop = "no improvement of auc in 5 rounds"\nevaluate_every = 0')
    (mistake,) = federation_mistakes(write(text))
    assert (mistake.key, mistake.message) == ("training.stop", "nothing is tested before the end")
