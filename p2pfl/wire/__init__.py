"""How messages become bytes and back: header schema, frame, chunks. Any bytes give a message or a PeerFault."""

from p2pfl.wire.frame import PREFIX_BYTES, Assembler, OtherVersionError, Prefix, decode, decode_prefix, encode, split

__all__ = ["PREFIX_BYTES", "Assembler", "OtherVersionError", "Prefix", "decode", "decode_prefix", "encode", "split"]
