"""The verdict on a pair of greetings, case by case."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.messages import are_consistent

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import hello

OLD, NEW, OTHER = b"o" * 16, b"n" * 16, b"x" * 16
LAST, NEXT = b"l" * 16, b"m" * 16

IDLE = {"incarnation": 3, "seq": 7, "request_digest": LAST, "chain": NEW, "chain_before": OLD}
ASKING = IDLE | {"pending": 8, "request_digest": NEXT}
"""The initiator, with request 8 out."""
ANSWERED = IDLE | {"seq": 8, "request_digest": NEXT, "chain": OTHER, "chain_before": NEW}
"""The responder, once it has applied request 8."""


@pytest.mark.parametrize(
    ("initiator", "responder"),
    [
        pytest.param({}, {}, id="first contact"),
        pytest.param({"pending": 1, "request_digest": NEXT}, {}, id="first contact, request out"),
        pytest.param(IDLE, IDLE, id="nothing pending"),
        pytest.param(ASKING, IDLE, id="pending, not applied"),
        pytest.param(ASKING, ANSWERED, id="pending, applied"),
        pytest.param(IDLE, IDLE | {"request_digest": OTHER}, id="the last request's digest does not matter"),
    ],
)
def test_ends_that_can_go_on_do(initiator, responder):
    assert are_consistent(hello(**initiator), hello(**responder))


@pytest.mark.parametrize(
    ("initiator", "responder"),
    [
        pytest.param(IDLE, IDLE | {"incarnation": 4}, id="incarnations differ"),
        pytest.param(IDLE | {"has_replicas": False}, IDLE, id="the initiator has no replicas"),
        pytest.param(IDLE, IDLE | {"has_replicas": False}, id="the responder has no replicas"),
        pytest.param(IDLE, IDLE | {"chain": OTHER}, id="nothing pending, chains differ"),
        pytest.param(IDLE, IDLE | {"seq": 6}, id="nothing pending, the responder is behind"),
        pytest.param(IDLE, ANSWERED, id="nothing pending, the responder is ahead"),
        pytest.param(ASKING, IDLE | {"chain": OTHER}, id="pending and not applied, chains differ"),
        pytest.param(ASKING, IDLE | {"seq": 6}, id="pending, the responder two behind"),
        pytest.param(ASKING, ANSWERED | {"request_digest": OTHER}, id="applied another request"),
        pytest.param(ASKING, ANSWERED | {"chain_before": OTHER}, id="applied, chains before differ"),
        pytest.param(ASKING, ANSWERED | {"chain": NEW, "chain_before": OLD}, id="applied, but only chains now agree"),
        pytest.param(ASKING, ANSWERED | {"seq": 9}, id="pending, the responder ahead by two"),
        pytest.param(IDLE, {}, id="the responder has lost everything"),
        pytest.param({}, IDLE, id="the initiator has lost everything"),
        pytest.param({"pending": 9}, {"seq": 8}, id="a pending request far beyond the own count"),
    ],
)
def test_ends_that_cannot_go_on_do_not(initiator, responder):
    assert not are_consistent(hello(**initiator), hello(**responder))


def test_version_done_and_the_answer_bit_do_not_enter_the_verdict():
    assert are_consistent(hello(**IDLE), hello(**IDLE, version=99, done=True, have_yours=True))
