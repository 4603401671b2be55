"""The wire format of messages: header schema, frame, chunks. Any bytes give a message or a PeerFault."""

from p2pfl.wire.frame import (
    FREE_SPLIT_VERSION,
    LEAST_CHUNK_BYTES,
    PREFIX_BYTES,
    Assembler,
    OtherVersionError,
    Prefix,
    begins_with,
    decode,
    decode_prefix,
    encode,
    encode_known,
    split,
)
from p2pfl.wire.headers import SessionMessage, header_bytes
from p2pfl.wire.part import PartHeld, PartialBody, Receipt
from p2pfl.wire.side import Offer, Side, Unknown

__all__ = [
    "FREE_SPLIT_VERSION",
    "LEAST_CHUNK_BYTES",
    "PREFIX_BYTES",
    "Assembler",
    "Offer",
    "OtherVersionError",
    "PartHeld",
    "PartialBody",
    "Prefix",
    "Receipt",
    "SessionMessage",
    "Side",
    "Unknown",
    "begins_with",
    "decode",
    "decode_prefix",
    "encode",
    "encode_known",
    "header_bytes",
    "split",
]
