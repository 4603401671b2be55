"""What a launcher is told of each closing round, from which a report's contraction is measured."""

from __future__ import annotations

import time

import pytest

from p2pfl.core import Phase
from p2pfl.reporting import contraction

ROUNDS = 8


def hold_evaluation(node):
    """From the first closing round until the node ends, as if the trainer's thread had no processor."""
    evaluate = node.setup.learner.evaluate

    def late(vector, part):
        ending = (Phase.CLOSING, Phase.LINGERING, Phase.FINISHED)
        while node.application.status.core.rounds.phase in ending and not node.application.driver.local.closed:
            time.sleep(0.001)
        return evaluate(vector, part)

    node.setup.learner.evaluate = late


@pytest.mark.long
async def test_a_closing_round_is_told_as_it_was_however_late_its_model_is_scored(ward, start, finish):
    field = ward(4, training={"rounds": 6, "closing_rounds": ROUNDS, "evaluate_every": 1})
    nodes = start(field)
    for node in nodes:
        node.application.sketched = True
    hold_evaluation(nodes[0])
    await finish(nodes, rounds=6)
    closing = [{one.closing_rounds: one for line in node.lines if (one := line.closed)} for node in nodes]
    for lines in closing:
        assert lines.keys() >= set(range(1, ROUNDS))
        exchanges = [line.exchanges for line in lines.values()]
        assert exchanges == sorted(exchanges)
        assert exchanges[-1] > exchanges[0]
    assert 0 < contraction(field.federation(), [100] * 4, closing).measured < 1
