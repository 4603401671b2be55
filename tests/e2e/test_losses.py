"""After a loss the federation ends as near to its optimum as without it: real processes, sockets, files and kills.

`benchmarks/disturbed.py losses` prints the same figures, and more of them.
"""

from __future__ import annotations

import json

import pytest
from losing import DIGITS, Setting, play

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("scenario", "setting"),
    [("wipe", Setting()), ("snapshot-chaos", Setting()), ("taken-out", Setting()), ("digits", DIGITS)],
    ids=["wipe", "snapshot-chaos", "taken-out", "digits"],
)
def test_what_is_lost_biases_nobody_in_the_end(tmp_path, scenario, setting):
    """Excess over the known optimum: at most twice that of the undisturbed twin, or .01.

    Of digits, of which a wiped node alone has seen some: a test loss at most a quarter above that of the twin, which
    was as long without the node, and lost nothing.
    """
    outcome = play(scenario, tmp_path, setting)
    assert outcome.wrong == [], json.dumps(outcome.in_json(), indent=1)


def test_of_two_copies_of_one_key_one_stops_loudly_and_the_rest_end_at_the_optimum(tmp_path):
    outcome = play("two-copies", tmp_path, Setting())
    assert outcome.wrong == [], json.dumps(outcome.in_json(), indent=1)
