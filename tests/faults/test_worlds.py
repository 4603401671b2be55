"""Random small federations in random bad worlds: nothing that must hold is ever broken, after no event.

`many_worlds.py` runs thousands more.
"""

from __future__ import annotations

import pytest
from many_worlds import checked, draw, line, replay
from msgspec.structs import replace

from p2pfl.core import Exchange, ExchangeResponder, Fault
from p2pfl.engine import EdgeWasReset, Engine, ReplyWasApplied, changes, engine

SEEDS = range(40)
FIRST = range(2)
"""of them; the others are for `make test-all`, and thousands more for `make faults`."""
FOUND = (19, 196)
"""worlds that were once taken for wrong: all disks are lost and nothing is left but rounding; an initiator crashes
before a reply is on its disk, and the responder's has been lost.
"""


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=() if seed in {*FIRST, *FOUND} else pytest.mark.long)
        for seed in sorted({*SEEDS, *FOUND})
    ],
)
def test_no_invariant_is_broken_after_any_event(seed):
    try:
        report = checked(seed)
    except Exception as error:
        error.add_note(f"see it again: {replay(seed)}")
        raise
    assert not report.reached_limit, replay(seed)
    assert all(node.finished or node.died or node.state == "waiting" for node in report.nodes), replay(seed)


def first_violation(likely=None):
    """The first that is found in the same worlds; after a likely one, those of few nodes take the least time."""
    seeds = sorted(SEEDS, key=lambda seed: (seed != likely, len(draw(seed)[0].members)))
    said = (line(seed)["violation"] for seed in seeds)
    return next((one for one in said if one), "")


@pytest.mark.parametrize("share", [-1.0, 0.0, 2.0, 1 + 1e-6], ids=["wrong way", "not at all", "twice", "a bit far"])
def test_an_initiator_that_moves_otherwise_than_its_responder_is_found(monkeypatch, share):
    def wrong(state, change, *rest):
        before = state.model.copy()
        right(state, change, *rest)
        if isinstance(change, ReplyWasApplied):
            state.model[:] = before + share * (state.model - before)

    right = changes.settle
    monkeypatch.setattr(changes, "settle", wrong)
    monkeypatch.setattr(engine, "settle", wrong)
    assert "sum n_i x_i is off" in first_violation()


def test_a_request_that_is_applied_again_when_it_comes_again_is_found(monkeypatch):
    def wrong(responder, request, now):
        if responder.record.reply is not None and request.digest == responder.record.request_digest:
            return responder._accept(request, now)
        return right(responder, request, now)

    right = ExchangeResponder._hear_request
    monkeypatch.setattr(ExchangeResponder, "_hear_request", wrong)
    assert first_violation()


@pytest.mark.long
def test_a_reply_that_leaves_before_it_is_on_the_disk_is_found(monkeypatch):
    """Crashes between the two lose what the neighbor has already done its half of."""

    def wrong(engine, op):
        return replace(right(engine, op), urgent=False)

    right = Engine._apply_request
    monkeypatch.setattr(Engine, "_apply_request", wrong)
    assert first_violation()


@pytest.mark.long
def test_an_edge_that_keeps_one_replica_after_a_new_beginning_is_found(monkeypatch):
    def wrong(state, change, *, codecs, method):
        kept = state.edges[change.peer].own.copy() if isinstance(change, EdgeWasReset) else None
        right(state, change, codecs=codecs, method=method)
        if kept is not None:
            state.edges[change.peer].own[:] = kept

    right = changes.redo
    monkeypatch.setattr(engine, "redo", wrong)
    assert first_violation()


def test_a_standing_that_suffers_from_what_honest_nodes_do_is_found(monkeypatch):
    """Lost disks and older states begin edges anew, too."""

    def wrong(exchange, incarnation, reason, now, **more):
        effects = right(exchange, incarnation, reason, now, **more)
        return effects + exchange.blame(Fault.FLOOD, reason, now)

    right = Exchange.resync
    monkeypatch.setattr(Exchange, "resync", wrong)
    assert "into quarantine" in first_violation(likely=10)
