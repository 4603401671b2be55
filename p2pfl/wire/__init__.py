"""The wire format of messages: header schema, frame, chunks. Any bytes give a message or a PeerFault."""

from p2pfl.wire.frame import PREFIX_BYTES, Assembler, OtherVersionError, Prefix, decode, decode_prefix, encode, split
from p2pfl.wire.headers import SessionMessage
from p2pfl.wire.side import Offer, Side, Unknown

__all__ = [
    "PREFIX_BYTES",
    "Assembler",
    "Offer",
    "OtherVersionError",
    "Prefix",
    "SessionMessage",
    "Side",
    "Unknown",
    "decode",
    "decode_prefix",
    "encode",
    "split",
]
