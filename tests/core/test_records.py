"""The record of an edge: what a new incarnation forgets, what a digest covers."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from p2pfl.core.messages import NO_CHAIN, EdgeRecord, Request, next_chain, request_digest

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import make_node, only, open_session, pending_initiator, reply_to, request, say

from p2pfl.core.events import ResetEdge
from p2pfl.core.messages import Resync


def full_record():
    asked = request(seq=5)
    return EdgeRecord(
        incarnation=2,
        seq=4,
        pending=asked,
        request_digest=asked.digest,
        reply=reply_to(request(seq=4)),
        has_replicas=False,
        chain=b"c" * 16,
        chain_before=b"b" * 16,
        heard=7,
        known=8,
        last_factor_zero=True,
        resyncs=1,
    )


def test_a_new_incarnation_forgets_all_but_that_there_were_others():
    record = full_record()
    record.reset(9)
    assert record == EdgeRecord(incarnation=9, resyncs=2)


def test_two_ends_that_began_the_same_incarnation_find_each_other_consistent():
    """Whatever each had before: the next greetings open the edge without another resync."""
    node, _ = pending_initiator()
    say(node, 1, Resync(incarnation=9))
    other = make_node(1, 0, records={0: dataclasses.replace(full_record(), pending=None)})
    other.edges[0].exchange.record.reset(9)
    theirs = other.edges[0].exchange.record.hello(version=3, closing=None, level=None, done=False, have_yours=False)
    mine = node.edges[1].exchange.record.hello(version=0, closing=None, level=None, done=False, have_yours=False)
    assert only(open_session(other, 0, greeting=mine), ResetEdge) == []
    assert (theirs.chain, theirs.seq) == (NO_CHAIN, 0)


CHANGED = {
    "incarnation": 1,
    "seq": 2,
    "version": 2,
    "echo": 0,
    "weight": 16.0,
    "staleness": 0.5,
    "pace_s": 1e-9,
    "terms": (1e-9,),
    "audit": b"a" * 16,
    "body": b"bodz",
}


@pytest.mark.parametrize("name", [name for name in Request.__struct_fields__ if name != "digest"])
def test_a_request_digest_covers_every_field_that_travels(name):
    assert request_digest(request(**{name: CHANGED[name]})) != request_digest(request())


def test_audit_and_body_cannot_trade_bytes():
    assert request_digest(request(audit=b"a" * 16, body=b"")) != request_digest(request(audit=b"", body=b"a" * 16))


def test_a_chain_covers_what_came_before_the_request_and_the_answer():
    asked = request()
    answer = reply_to(asked)
    chains = {
        next_chain(NO_CHAIN, asked, answer),
        next_chain(b"c" * 16, asked, answer),
        next_chain(NO_CHAIN, request(body=b"other"), answer),
        next_chain(NO_CHAIN, asked, replace(answer, body=b"other")),
    }
    assert len(chains) == 4


def test_the_digests_of_a_transaction_are_pinned():
    """Nodes on different machines, and a log written long ago, must agree on them."""
    asked = replace(request(audit=b"a" * 16, body=bytes(range(256)) * 1000), digest=b"")
    digest = request_digest(asked)
    assert digest.hex() == "5ade0da65d0fdbd8b428f1f822e05345"
    assert (
        next_chain(b"c" * 16, replace(asked, digest=digest), reply_to(asked)).hex()
        == "d283b2264af3ad4da498b022d6d0fc1f"
    )
