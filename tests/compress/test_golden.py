"""Payloads and the exact bytes they decode to. A change here breaks every peer that runs another version."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from p2pfl.compress import make_compressor

VALUES = np.array([0.0, 1.0, -1.0, 0.5, -0.25, 3.0, -7.5], np.float32)
EXACT = "000000000000803f000080bf0000003f000080be000040400000f0c0"
GOLDEN = {
    "none": (EXACT, EXACT),
    "float16": ("0000003c00bc003800b4004280c7", EXACT),
    "q8": ("f1f0703d0011ef08fc3381", "000000000000803f000080bff1f0f03ef1f070be000040400f0fefc0"),
    "q4": ("0000803f9887b881", "000000000000803f000080bf0000000000000000000040400000e0c0"),
}


@pytest.mark.parametrize("spec", sorted(GOLDEN))
def test_seven_values_encode_and_decode_to_these_bytes(spec):
    payload, decoded = GOLDEN[spec]
    compressor = make_compressor(spec)
    assert compressor.encode(VALUES).hex() == payload
    assert compressor.decode(bytes.fromhex(payload), 7).tobytes().hex() == decoded


def long_payload(spec: str, size: int) -> bytes:
    """Scales that are no round numbers, then every code there is, with no generator that could change."""
    blocks = -(-size // 256)
    scales = np.array([(3 + 2 * b) / 1000 for b in range(blocks)], "<f4")
    stream = np.frombuffer(hashlib.shake_256(spec.encode()).digest(size), np.uint8)
    codes = stream % 255 + 129 if spec == "q8" else (stream % 15 + 1) | 16 * (stream // 15 % 15 + 1)
    payload = scales.tobytes() + codes.astype(np.uint8).tobytes()
    return payload[: make_compressor(spec).size_bytes(size)]


@pytest.mark.parametrize(
    ("spec", "digest"),
    [("q8", "df2c5c22d039fd5d6f31697094f91113"), ("q4", "8be1db4d503b55371b09447a2d18270d")],
)
def test_a_thousand_values_decode_to_these_bits(spec, digest):
    decoded = make_compressor(spec).decode(long_payload(spec, 1000), 1000)
    assert hashlib.blake2b(decoded.astype("<f4").tobytes(), digest_size=16).hexdigest() == digest
