"""What the disks of a federation's nodes hold once all have stopped, and whether both ends of each edge agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from p2pfl.compress import make_compressor
from p2pfl.config import FederationConfig
from p2pfl.engine import Codecs, NodeState, ReplyWasApplied, redo
from p2pfl.learn import method_of
from p2pfl.node import replay
from p2pfl.storage import peek


def settled_states(federation: FederationConfig, folders: Mapping[str, Path]) -> list[NodeState]:
    """With every reply taken in that one end of an edge has sent and the other had no time for.

    `folders` has the state folder of each member by name.
    """
    codecs = Codecs(make_compressor(federation.gossip.compressor))
    method = method_of(federation)
    states = [replay(peek(folders[member.name]), method) for member in federation.members]
    for low, high in federation.edges:
        pending, answered = states[low].edges[high].record.pending, states[high].edges[low].record
        if pending is not None and answered.seq == pending.seq:
            change = ReplyWasApplied(peer=high, reply=answered.reply, chain=answered.chain)
            redo(states[low], change, codecs=codecs, method=method)
    return states


def require_edges_to_agree(federation: FederationConfig, states: list[NodeState]) -> None:
    """Both ends hold the same replicas and the same transactions, and what a method keeps is opposite, bit for bit."""
    for low, high in federation.edges:
        ours, theirs = states[low].edges[high], states[high].edges[low]
        assert ours.record.seq == theirs.record.seq > 0
        assert ours.record.chain == theirs.record.chain
        np.testing.assert_array_equal(ours.own, theirs.peer)
        np.testing.assert_array_equal(ours.peer, theirs.own)
        assert ours.kept.keys() == theirs.kept.keys()
        for name, kept in ours.kept.items():
            np.testing.assert_array_equal(kept, -theirs.kept[name])
