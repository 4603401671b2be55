"""What holds of a core after every event."""

from __future__ import annotations

from p2pfl.core import INBOX, NEVER, Core, Edge


def check_invariants(node: Core) -> None:
    """Raise AssertionError if an edge contradicts itself. Call it after every event."""
    for edge in node.edges.values():
        fault = _fault(node, edge)
        if fault:
            raise AssertionError(f"node {node.index}, edge to {edge.peer}: {fault}")
    edges = node.edges.values()
    if node.timers.next_at != min((edge.wakes_at for edge in edges), default=NEVER):
        raise AssertionError(f"node {node.index}: the next timer does not match the edges")
    patient = [edge.service.patience.exchange_s for edge in edges if edge.is_open]
    times = sorted(exchange_s for exchange_s in patient if exchange_s)
    if node.neighbors.usual.median_s(NEVER) != (times[(len(times) - 1) // 2] if times else NEVER):
        raise AssertionError(f"node {node.index}: the kept median exchange time does not match the live edges")


def _fault(node: Core, edge: Edge) -> str | None:
    line, exchange = edge.line, edge.exchange
    record, pending = exchange.record, exchange.record.pending
    if exchange.initiates != (node.index < edge.peer):
        return "the lower index initiates"
    if pending is not None and not exchange.initiates:
        return "a responder has a pending request"
    if pending is not None and (pending.seq, pending.incarnation) != (record.seq + 1, record.incarnation):
        return "the pending request is not the next transaction"
    if record.reply is not None and (exchange.initiates or record.reply.seq != record.seq):
        return "the logged reply is not that of the last transaction"
    if edge.is_open and (line.mine is None or line.theirs is None):
        return "open before both greetings were exchanged"
    if line.session is None and (edge.is_open or line.inbox):
        return "no session, yet open or with messages waiting"
    if (line.inbox and not exchange.busy) or len(line.inbox) > INBOX:
        return "messages wait although the engine is not at work"
    if edge.is_open and line.reputation.quarantines and not line.reputation.returned:
        return "open in quarantine"
    if record.heard is not None and record.seq == 0:
        return "a version was heard without a transaction"
    return None
