"""Authentication and encryption: a peer's identity, and sessions that nobody else can read or change. Not audited.

No I/O except for the key file. Faults of a peer that asks for a session:

  HandshakeFault (a PeerFault)
  ├── UnlistedKey         it proved its identity, and the federation does not list it
  └── FederationMismatch  it is listed, but trains by another federation file
"""

from __future__ import annotations

from p2pfl.crypto.identity import public_text
from p2pfl.errors import PeerFault

OTHERS = "others"
"""Stands for the sections that only the peer's federation has."""
WHOLE_SECTIONS = {
    "node": "the names or keys of [[node]] tables",
    "edges": "edges (the graph, or [[edge]] tables)",
    "schema": "the schema of the tables, or the pretrained model, its adapters or frozen weights",
    "model": "the model's shape",
    OTHERS: "a table or key that only one of the files has (such as [privacy])",
}
"""Wordings for differences that no single key names."""


class HandshakeFault(PeerFault):
    """A handshake message that the protocol does not allow: forged, damaged, replayed or misdirected."""


class UnlistedKey(HandshakeFault):
    """`public` (32 bytes) provably belongs to the peer, but to no node of the federation."""

    def __init__(self, public: bytes) -> None:
        super().__init__(f"the key {public_text(public)} is not listed in the federation")
        self.public = public


class FederationMismatch(HandshakeFault):
    """The peer is authentic, but its federation differs from ours in `sections`, which may be single keys.

    `farewell` is the message that the initiator still sends before it closes, so that the responder can log the same
    reason; it is empty at the responder.
    """

    def __init__(self, peer_public: bytes, sections: tuple[str, ...], farewell: bytes = b"") -> None:
        shown = ", ".join(WHOLE_SECTIONS.get(name, name) for name in sections)
        super().__init__(f"its federation file differs from ours in: {shown}")
        self.peer_public = peer_public
        self.sections = sections
        self.farewell = farewell
