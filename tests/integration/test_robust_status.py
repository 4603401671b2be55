"""What real nodes tell of their rule: whom they bear, how often they mixed, how much of each neighbor was kept."""

from __future__ import annotations

import json
import logging

import pytest


@pytest.mark.long
@pytest.mark.usefixtures("patient")
async def test_nodes_with_neighbors_enough_tell_what_was_kept_and_hold_nothing_against_anybody(
    ward, start, finish, caplog
):
    caplog.set_level(logging.INFO, "p2pfl.notice")
    field = ward(4, federation={"topology": "complete"}, gossip={"rule": "trimmed-mean:b=1"})
    results = await finish(start(field), rounds=20)
    for result in results:
        told = {
            key: getattr(result, key) for key in ("rule", "liars", "liars_borne", "neighbors_needed", "quarantined")
        }
        assert told == {
            "rule": "trimmed-mean:b=1",
            "liars": 1,
            "liars_borne": 1,
            "neighbors_needed": 3,
            "quarantined": 0,
        }
        assert result.rounds_mixed + result.rounds_alone == result.version
        assert result.rounds_mixed > result.rounds_alone
        for neighbor in result.neighbors:
            assert 0.0 <= neighbor.kept <= 1.0
            assert (neighbor.standing, neighbor.faults, neighbor.quarantined_s) == (1.0, {}, 0.0)
    sentence = "tolerates 1 malicious neighbor of 3 under trimmed-mean:b=1, and mixes while 3 of them are connected"
    said = [record.getMessage() for record in caplog.records if record.name == "p2pfl.notice"]
    assert [text for text in said if text.startswith("tolerates")] == [sentence] * 4


@pytest.mark.long
async def test_nodes_with_two_neighbors_learn_alone_and_say_so(ward, start, finish, caplog):
    field = ward(4, gossip={"rule": "median:b=1"})
    results = await finish(start(field), rounds=20)
    for result in results:
        assert (result.liars_borne, result.rounds_mixed, result.too_few_neighbors) == (0, 0, True)
        assert result.rounds_alone == result.version
        assert result.alarms == {"too-few-neighbors": 1}
    told = [record for record in caplog.records if "mixes with nobody: median:b=1 needs 3" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING] * 4


async def test_the_status_page_can_always_be_written(ward, start):
    (node, *_) = start(ward(4, federation={"topology": "complete"}, gossip={"rule": "median:b=1"}))
    await node.until(lambda: node.status and node.status.rounds_mixed)
    (first, *_) = json.loads(node.status.to_bytes())["neighbors"]
    assert 0.0 <= first["kept"] <= 1.0
