"""Names and constants that every layer shares."""

from __future__ import annotations

PROTOCOL = "p2pfl/1"
PROTOCOL_VERSION = 5
CHUNK_BYTES = 256 * 1024
