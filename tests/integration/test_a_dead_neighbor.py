"""One of three is killed: what the others show of themselves, and when they end."""

from __future__ import annotations

import pytest

ROUNDS, ROUND_S = 60, 0.03


@pytest.mark.long
async def test_the_distance_is_to_those_who_are_heard_and_the_end_does_not_train_for_who_is_not(
    ward, start, monkeypatch
):
    """The dead one's old copy is no measure of how far the living are apart."""
    monkeypatch.setattr("p2pfl.core.termination.AWAY_S", 0.5 * ROUNDS * ROUND_S)
    field = ward(
        3, training={"rounds": ROUNDS, "learning_rate": 0.005}, task={"step_s": ROUND_S}, gossip={"linger_s": 2.0}
    )
    *others, dead = start(field)
    await dead.until(lambda: dead.rounds >= 5)
    await dead.break_off()
    results = [await node.result() for node in others]
    assert "everybody who took part was through" in {result.ended_by for result in results}
    for result in results:
        assert result.finished
        assert result.unfinished == ["node2"]
        assert result.alarms["takes-no-part"] == 1
        assert result.neighbor_distance < 0.02
    assert min(result.rounds for result in results) <= 1.1 * ROUNDS, "one may be faster than the other"
    assert others[0].lines[-1].neighbor_distance < 0.02
