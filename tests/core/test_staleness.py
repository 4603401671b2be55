"""Staleness by causality: what an exchange weighs, and that no edge locks itself out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.events import ApplyRequest, Freeze
from p2pfl.core.messages import Ready, Resync
from p2pfl.core.settings import LIMIT

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import (
    apply_request,
    exchange_as_initiator,
    initiator,
    only,
    request,
    responder,
    say,
)

LEAST = (LIMIT - 3) ** -0.5


def next_freeze(node, version):
    return only(say(node, 1, Ready(version=version, closing=None)), Freeze)


@pytest.mark.parametrize(("rounds", "weight"), [(0, 1.0), (4, 1.0), (5, 2**-0.5), (64, LEAST), (65, 0.0)])
def test_the_initiator_counts_rounds_since_the_version_that_the_neighbor_has(rounds, weight):
    node, effects = initiator()
    exchange_as_initiator(node, effects)
    exchange_as_initiator(node, next_freeze(node, 2), version=2, factor=1.0)
    node.facts.version += rounds
    (op,) = next_freeze(node, 3)
    assert op.staleness == pytest.approx(weight)


@pytest.mark.parametrize(("rounds", "weight"), [(0, 1.0), (4, 1.0), (5, 2**-0.5), (64, LEAST), (65, 0.0)])
def test_the_responder_counts_rounds_since_the_version_that_the_request_echoes(rounds, weight):
    node = responder()
    node.facts.version = 10
    apply_request(node, say(node, 0, request()))
    apply_request(node, say(node, 0, request(seq=2, echo=10, staleness=1.0)))
    node.facts.version += rounds
    (op,) = only(say(node, 0, request(seq=3, echo=10, staleness=1.0)), ApplyRequest)
    assert op.factor == pytest.approx(15.0 * weight)


def test_after_an_exchange_of_weight_zero_the_next_one_weighs_something_however_late():
    node, effects = initiator()
    exchange_as_initiator(node, effects)
    node.facts.version += 10_000
    (op,) = next_freeze(node, 2)
    assert op.staleness == pytest.approx(LEAST)
    node = responder()
    apply_request(node, say(node, 0, request()))
    node.facts.version += 10_000
    (op,) = only(say(node, 0, request(seq=2, echo=0, staleness=1.0)), ApplyRequest)
    assert op.factor == pytest.approx(15.0 * LEAST)


def test_an_exchange_of_weight_zero_still_tells_both_ends_what_they_have():
    node = responder()
    apply_request(node, say(node, 0, request(version=6)))
    assert node.edges[0].exchange.record.heard == 6
    node, effects = initiator()
    exchange_as_initiator(node, effects, version=8)
    assert (node.edges[1].exchange.record.heard, node.edges[1].exchange.record.known) == (8, 0)


def test_an_echo_from_the_future_is_no_older_than_now():
    node = responder()
    apply_request(node, say(node, 0, request()))
    (op,) = only(say(node, 0, request(seq=2, echo=2**53 - 1, staleness=1.0)), ApplyRequest)
    assert op.factor == 15.0


def test_a_new_incarnation_begins_with_weight_zero_at_both_ends():
    node, effects = initiator()
    exchange_as_initiator(node, effects)
    assert only(say(node, 1, Resync(incarnation=1)), Freeze)[0].staleness == 0.0
    node = responder()
    apply_request(node, say(node, 0, request()))
    assert only(say(node, 0, request(incarnation=1, staleness=1.0)), ApplyRequest)[0].factor == 0.0
