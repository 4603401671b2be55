"""Payloads and the exact bytes they decode to. A change here breaks every peer that runs another version."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from p2pfl.compress import make_compressor as build

VALUES = np.array([0.0, 1.0, -1.0, 0.5, -0.25, 3.0, -7.5], np.float32)
CHANCE = 5
EXACT = "000000000000803f000080bf0000003f000080be000040400000f0c0"
GOLDEN = {
    "none": (EXACT, EXACT),
    "float16": ("0000003c00bc003800b4004280c7", EXACT),
    "bf16": ("0000803f80bf003f80be4040f0c0", EXACT),
    "q8": ("f1f0703d0011ef08fc3381", "000000000000803f000080bff1f0f03ef1f070be000040400f0fefc0"),
    "q4": ("0000803f9887b881", "000000000000803f000080bf0000000000000000000040400000e0c0"),
    "q2": ("ffffcf3f5440", "ffffcf3fffffcf3fffffcfbfffffcf3fffffcfbfffffcf3fffffcfc0"),
    "sign": ("2549f23f54", "2549f23f2549f23f2549f2bf2549f23f2549f2bf2549f23f2549f2bf"),
    "rotate+q8": ("5ac389a30c3b0363b1b0303d1dfafad7407f8c", "00008033fffd7d3ffffd7dbf8384043f788484be7e7e3e403030f0c0"),
    "rotate+q4": ("5ac389a30c3b0363bcbb3b3f8a68fc81", "bcbbbbbecdcc8c3fcdcc8cbfbcbbbb3ebcbb3bbfbbbb3b40aaaaeac0"),
    "rotate+q2": ("5ac389a30c3b036340eba63f4e60", "40eb263f40eb263f40eb26bfe060fa3f00000080e0607a4010a6d0c0"),
    "rotate+sign": ("5ac389a30c3b0363922419404e", "9224993f9224993f922499bfdbb665400000008000000000922499c0"),
}


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def scales(size: int, block: int = 256) -> bytes:
    """No round numbers."""
    return np.array([(3 + 2 * b) / 1000 for b in range(-(-size // block))], "<f4").tobytes()


def stream(word: str, size: int):
    """Bytes that no generator could change."""
    return np.frombuffer(hashlib.shake_256(word.encode()).digest(size), np.uint8)


def plane(word: str, size: int) -> bytes:
    bits = np.unpackbits(stream(word, -(-size // 8)), count=size)
    return np.packbits(bits, bitorder="little").tobytes()


def long_payload(word: str, size: int) -> bytes:
    """Every code there is."""
    match word:
        case "q8":
            return scales(size) + (stream(word, size) % 255 + 129).astype(np.uint8).tobytes()
        case "q4":
            codes = stream(word, size)
            return (scales(size) + ((codes % 15 + 1) | 16 * (codes // 15 % 15 + 1)).astype(np.uint8).tobytes())[
                : build(word).size_bytes(size)
            ]
        case "sign":
            return scales(size) + plane(word, size)
        case "rotate+sign":
            return bytes(range(8)) + scales(size, 2048) + plane("sign", size)
        case "q2":
            return scales(size) + plane("negative", size) + plane("high", size)
        case _:
            return bytes(range(8)) + long_payload(word.removeprefix("rotate+"), size)


@pytest.mark.parametrize(
    ("word", "size", "digest"),
    [
        ("q8", 1000, "df2c5c22d039fd5d6f31697094f91113"),
        ("q4", 1000, "8be1db4d503b55371b09447a2d18270d"),
        ("q2", 1003, "962076c459a90a1ffc51352e46488012"),
        ("sign", 1003, "89031da1eee954c2a59135e8b20233c9"),
        ("rotate+q8", 1003, "1b68284bb1ab4f24da1e82f2dde0f577"),
        ("rotate+q8", 4096, "6cfc74d5e5081376a06969297cfb4567"),
        ("rotate+q8", 70_001, "591f76416f4f82926f3196f806af880e"),
        ("rotate+sign", 10_000, "4b0cf02e26ed915658b54af6e8514f97"),
        ("rotate+q2", 2410, "a0d2a32a66acf087aa2546ce09c03b02"),
    ],
)
def test_long_payloads_decode_to_these_bits(word, size, digest):
    decoded = build(word).decode(long_payload(word, size), size)
    assert digest_of(decoded.astype("<f4").tobytes()) == digest


# -- Payloads of chains and the exact bytes they decode to. A change here breaks every peer that runs another version.

CHAIN_VALUES = np.array([0.0, 1.0, -1.0, 0.5, -0.25, 3.0, -7.5, 0.0, 0.0, 2.0, 0.0, -0.5], np.float32)
CHAIN_CHANCE = 0x0123456789ABCDF2
CHAINS = {
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


FEW = [(VALUES, CHANCE, *one) for one in GOLDEN.items()] + [
    (CHAIN_VALUES, CHAIN_CHANCE, *one) for one in CHAINS.items()
]


@pytest.mark.parametrize(("values", "chance", "spec", "golden"), FEW, ids=[spec for _, _, spec, _ in FEW])
def test_a_few_values_encode_and_decode_to_these_bytes(values, chance, spec, golden):
    payload, decoded = golden
    compressor = build(spec)
    if compressor.fixed:
        assert bytes(compressor.encode(values, chance=chance)).hex() == payload
    assert compressor.decode(bytes.fromhex(payload), len(values)).tobytes().hex() == decoded


def values(size: int):
    return (stream("values", 2 * size).view("<i2") / np.float32(1024)).astype(np.float32)


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
    assert digest_of(encoded) == payload
    assert digest_of(compressor.decode(encoded, 100_000).astype("<f4").tobytes()) == decoded


def test_below_zstd_many_indices_are_gaps_in_planes():
    """Frames may differ from release to release, what is in them may not."""
    inner = build("top-k:0.05+q8+zstd").inner.encode(values(100_000))
    assert digest_of(inner) == "ba138a3102d2dfdd22a59ec63d20b604"


def test_a_frame_decodes_to_these_bits():
    """Every ninth of 200 values is 1."""
    frame = "28b52ffd602002750000280000803f000200f98eaa4003b4"
    decoded = build("zstd").decode(b"\x01" + bytes.fromhex(frame), 200)
    assert np.array_equal(decoded, np.arange(200) % 9 == 0)
