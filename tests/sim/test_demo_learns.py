"""What the demo's federation learns, no flag tuned: eight nodes in a ring, two digits each."""

from __future__ import annotations

import pytest

from sim import ComputeSpec, LinkSpec, WorldSpec, describe, simulate

CALM = WorldSpec()
BUSY = WorldSpec(compute=ComputeSpec(step_s=0.0005, engine_s=0.002, jitter=0.5), links=LinkSpec(jitter_s=0.2))
"""A message takes up to ten times as long as a round, as between processes that wait for a processor."""


@pytest.mark.long
@pytest.mark.parametrize("world", [CALM, BUSY], ids=["calm", "busy"])
def test_the_worst_node_gets_nine_images_of_ten_right(world):
    report = simulate(describe(), world=world, references=False)
    assert report.config["training"]["rounds"] == 40
    assert report.accuracy.min >= 0.9
