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


@pytest.mark.parametrize("spec", sorted(GOLDEN))
def test_seven_values_encode_and_decode_to_these_bytes(spec):
    payload, decoded = GOLDEN[spec]
    compressor = build(spec)
    assert bytes(compressor.encode(VALUES, chance=CHANCE)).hex() == payload
    assert compressor.decode(bytes.fromhex(payload), 7).tobytes().hex() == decoded


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
    assert hashlib.blake2b(decoded.astype("<f4").tobytes(), digest_size=16).hexdigest() == digest
