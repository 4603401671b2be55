"""Payloads of chains and the exact bytes they decode to. A change here breaks every peer that runs another version."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from p2pfl.compress import make_compressor as build

VALUES = np.array([0.0, 1.0, -1.0, 0.5, -0.25, 3.0, -7.5, 0.0, 0.0, 2.0, 0.0, -0.5], np.float32)
CHANCE = 0x0123456789ABCDF2
GOLDEN = {
    "random-k:3": (
        "f2cdab89674523010000003f0000f0c000000040",
        "0000000000000000000000000000003f00000000000000000000f0c00000000000000000000000400000000000000000",
    ),
    "random-k:0.5+q8": (
        "f2cdab89674523018180803c4020f0007fe0",
        "000000008180803f000000008180003f818080be0000000000000000000000000000000000fffe3f00000000818000bf",
    ),
    "fragment:3": (
        "0300000000000000000000000000803f000080bf0000003f",
        "000000000000803f000080bf0000003f0000000000000000000000000000000000000000000000000000000000000000",
    ),
    "fragment:4+bf16": (
        "0400000002000000f0c000000000",
        "0000000000000000000000000000000000000000000000000000f0c00000000000000000000000000000000000000000",
    ),
    "top-k:12": (
        "000000000000803f000080bf0000003f000080be000040400000f0c000000000000000000000004000000000000000bf",
        "000000000000803f000080bf0000003f000080be000040400000f0c000000000000000000000004000000000000000bf",
    ),
    "top-k:2": (
        "69000040400000f0c0",
        "0000000000000000000000000000000000000000000040400000f0c00000000000000000000000000000000000000000",
    ),
    "top-k:2+q8": (
        "69f1f0703d3381",
        "0000000000000000000000000000000000000000000040400f0fefc00000000000000000000000000000000000000000",
    ),
    "top-k:4": (
        "62020000803f000040400000f0c000000040",
        "000000000000803f000000000000000000000000000040400000f0c00000000000000000000000400000000000000000",
    ),
    "top-k:5+q4": (
        "66020000803f791b8a",
        "000000000000803f000080bf0000000000000000000040400000e0c00000000000000000000000400000000000000000",
    ),
    "zstd": (
        "00000000000000803f000080bf0000003f000080be000040400000f0c000000000000000000000004000000000000000bf",
        "000000000000803f000080bf0000003f000080be000040400000f0c000000000000000000000004000000000000000bf",
    ),
    "top-k:4+q8+zstd": (
        "006202f1f0703d11338122",
        "000000000000803f000000000000000000000000000040400f0fefc00000000000000000000000400000000000000000",
    ),
}


@pytest.mark.parametrize("spec", sorted(GOLDEN))
def test_twelve_values_encode_and_decode_to_these_bytes(spec):
    payload, decoded = GOLDEN[spec]
    compressor = build(spec)
    if compressor.fixed:
        assert compressor.encode(VALUES, chance=CHANCE).hex() == payload
    assert compressor.decode(bytes.fromhex(payload), 12).tobytes().hex() == decoded


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def values(size: int):
    """From no generator that could change."""
    stream = np.frombuffer(hashlib.shake_256(b"values").digest(2 * size), "<i2")
    return (stream / np.float32(1024)).astype(np.float32)


LONG = {
    "bf16": ("db79ab43f2c4b12e9a5988635cb30594", "30fb917758836a08ae2c37bc283904a4"),
    "fragment:8+bf16": ("ab8f25b557894bda473a24ab8f368c53", "efa9791eb13d7424930f21eeaa22bd1b"),
    "top-k:0.01": ("7acfdfa86f78b5e31b68bab97d9a0d70", "fa55dfa85caba671154ed6b80017a703"),
    "top-k:0.1+q8": ("728d6e6cd143d47156c5e30e867b5c05", "6416169c7ac01c97508e089d8d62e1d2"),
    "top-k:0.3": ("c3bb5748192d33b7c3c1777f27a4079b", "d7467d0d36172587edc14b0ce8dec8f8"),
    "random-k:0.1+q8": ("61593a75c7df12e0f0c79db104712e0d", "ca0cd6d89008e770c6e7a8676f4fa766"),
    "random-k:40001": ("fcfdc1806fae0ead84a37384cf2fed78", "e9e80f4883765a4d64a54d8a3584c3da"),
}


@pytest.mark.parametrize("spec", sorted(LONG))
def test_many_values_encode_and_decode_to_these_bits(spec):
    payload, decoded = LONG[spec]
    compressor = build(spec)
    encoded = compressor.encode(values(100_000), chance=7)
    assert digest(encoded) == payload
    assert digest(compressor.decode(encoded, 100_000).astype("<f4").tobytes()) == decoded


def test_below_zstd_many_indices_are_gaps_in_planes():
    """Frames may differ from release to release, what is in them may not."""
    inner = build("top-k:0.05+q8+zstd").inner.encode(values(100_000))
    assert digest(inner) == "ba138a3102d2dfdd22a59ec63d20b604"


def test_a_frame_decodes_to_these_bits():
    """Every ninth of 200 values is 1."""
    frame = "28b52ffd602002750000280000803f000200f98eaa4003b4"
    decoded = build("zstd").decode(b"\x01" + bytes.fromhex(frame), 200)
    assert np.array_equal(decoded, np.arange(200) % 9 == 0)
