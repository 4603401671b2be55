"""A federation ends together: who is late, slow or without memory never learns alone and calls it success.

Real processes, sockets, files and kills; `benchmarks/disturbed.py endings` prints the same figures, and more of them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ending import LAUNCH_ALONE, Setting, come_late, launch_apart, lose, party, speeds, wiped

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

THREE = Setting(nodes=3, rounds=80, linger_s=2.0, compressor="none")
APART = 1e-4
"""of two models that are the same, over their norm."""


def said(ended):
    return json.dumps(ended.in_json(), indent=1)


@pytest.mark.long
def test_a_late_node_waits_untrained_until_a_finished_one_tells_it_what_was_learned(tmp_path):
    """It dials again and again; then one of its neighbors, which had finished and left, is started again."""
    with party(tmp_path / "field", THREE) as here:
        lose(here, "node1")
        others = here.others("node1")
        assert [process.end() for process in others.values()] == [0, 0]
        learned = here.made.model("node0")
        seen = come_late(here, "node1")
        told = json.dumps(asdict(seen))
        assert seen.code is None, told
        assert seen.phase == "waiting", told
        assert seen.rounds_after == seen.rounds_before, told
        nodes = here.end()
        told += json.dumps({name: asdict(node) for name, node in nodes.items()}, indent=1)
        assert [node.code for node in nodes.values()] == [0] * 3, told
        for name in ("node0", "node1"):
            apart = np.linalg.norm(here.made.model(name) - learned) / np.linalg.norm(learned)
            assert apart <= APART, f"{name} is {apart:.2g} from what had been learned; {told}"
        assert nodes["node1"].alone == 0, told
        assert nodes["node1"].told_alone == 0, told


@pytest.mark.long
def test_a_wiped_node_joins_at_the_round_of_the_others_and_ends_with_them(tmp_path):
    setting = replace(THREE, rounds=200)
    ended = wiped(tmp_path / "field", setting)
    victim = ended.nodes["node1"]
    assert [node.code for node in ended.nodes.values()] == [0] * 3, said(ended)
    assert ended.notes["first"] >= setting.rounds // 4, said(ended)
    assert victim.steps <= 4 * (setting.rounds - setting.rounds // 4), said(ended)
    assert ended.notes["gap_s"] <= 5.0, said(ended)
    assert ended.worst <= 0.01, said(ended)


@pytest.mark.long
def test_at_tenfold_speeds_nobody_trains_alone(tmp_path):
    ended = speeds(10.0)(tmp_path / "field", THREE)
    assert [node.code for node in ended.nodes.values()] == [0] * 3, said(ended)
    assert sum(node.alone for node in ended.nodes.values()) == 0, said(ended)
    assert [node.told_alone for node in ended.nodes.values()] == [0] * 3, said(ended)
    assert ended.worst <= 0.1, said(ended)


@pytest.mark.long
def test_a_launch_in_which_a_node_had_nobody_exits_with_5(tmp_path):
    ended = launch_apart(tmp_path / "field", THREE)
    assert ended.notes["exit_code"] == LAUNCH_ALONE, said(ended)
    assert ended.nodes["node2"].rounds == 0, said(ended)
