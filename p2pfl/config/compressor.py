"""The words of `gossip.compressor`: stages joined by `+`, for instance `top-k:0.05+q8+zstd`.

    [top-k:X | random-k:X] + [rotate] + [float16 | q8 | q4 | q2 | sign, each q also with :stochastic] + [zstd]

Each stage at most once, in this order; without a word for the values they stay float32, and `none` stands alone. X
with a point is a fraction of the values, in (0, 1]; a whole number counts them. What stages do is for `compress`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from p2pfl.config.tables import Kind

SPARSIFIERS = ("top-k", "random-k")
QUANTIZERS = ("q8", "q4", "q2")
VALUES = ("float16", *QUANTIZERS, "sign")
STAGES = (*SPARSIFIERS, "rotate", *VALUES, "zstd")
ALLOWED = (
    'none, or stages joined by "+" in this order: top-k:X or random-k:X (X a fraction like 0.05, or a count), rotate, '
    "one of float16, q8, q4, q2, sign (q8, q4, q2 also with :stochastic), zstd"
)
LARGEST_COUNT = 10**12

_ORDER = {word: place for place, words in enumerate((SPARSIFIERS, ("rotate",), VALUES, ("zstd",))) for word in words}
_KINDS = ("a sparsifier", "a rotation", "a code for the values", "an entropy stage")
_FRACTION, _COUNT = re.compile(r"[0-9]{0,20}\.[0-9]{1,20}"), re.compile(r"[0-9]{1,20}")
_NEEDS_VALUES = "rotate needs q8, q4, q2 or sign after it"
_LONGEST_WORD = 40
_KNOWN_AS = {
    "drive": "rotate+sign",
    "eden": "rotate+q2",
    "hadamard": "rotate",
    "rotation": "rotate",
    "topk": "top-k:X",
    "randomk": "random-k:X",
    "randk": "random-k:X",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "int8": "q8",
    "8bit": "q8",
    "int4": "q4",
    "4bit": "q4",
    "int2": "q2",
    "2bit": "q2",
    "ternary": "q2",
    "qsgd": "q8:stochastic",
    "signsgd": "sign",
    "1bit": "sign",
    "gzip": "zstd",
    "zlib": "zstd",
    "zip": "zstd",
    "zstandard": "zstd",
    "float32": "none",
    "fp32": "none",
    "f32": "none",
    "none": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A parsed spec; `str` gives its canonical spelling."""

    sparsifier: str = ""
    """One of SPARSIFIERS, or empty."""
    keep: int | float = 1.0
    """The values that the sparsifier keeps: a float is a fraction in (0, 1], an int a count from 1."""
    rotate: bool = False
    values: str = "float32"
    """One of VALUES, or float32."""
    stochastic: bool = False
    zstd: bool = False

    def __str__(self) -> str:
        words = (
            f"{self.sparsifier}:{number(self.keep)}" if self.sparsifier else "",
            "rotate" if self.rotate else "",
            self.values + self.stochastic * ":stochastic" if self.values != "float32" else "",
            "zstd" if self.zstd else "",
        )
        return "+".join(filter(None, words)) or "none"


def compressor() -> Kind:
    """Its values are specs in their canonical spelling; `read` gives the reason with which it refuses."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("not a text")  # noqa: TRY004 - a reader has one way to refuse
        return str(parse(value))

    return Kind(ALLOWED, read)


def parse(spec: str) -> Chain:
    """The chain of a spec. Raises ValueError: with the stage, what is wrong with it and what would be right."""
    if spec == "none":
        return Chain()
    chain, last = Chain(), ""
    for text in spec.split("+"):
        word, colon, option = text.partition(":")
        _require_known(word, text)
        if last:
            _require_order(last, word)
        chain, last = _with(chain, word, option if colon else None), word
    if chain.rotate and chain.values not in (*QUANTIZERS, "sign"):
        raise ValueError(_NEEDS_VALUES)
    return chain


def _with(chain: Chain, word: str, option: str | None) -> Chain:
    """The chain with one more stage; `option` is what stands behind its colon."""
    if word in SPARSIFIERS:
        return replace(chain, sparsifier=word, keep=_kept(word, option))
    stochastic = option == "stochastic" and word in QUANTIZERS
    if option is not None and not stochastic:
        after = "only stochastic may stand after the colon" if word in QUANTIZERS else f"{word} takes no option"
        raise ValueError(f"{_short(f'{word}:{option}')}: {after}")
    if word in VALUES:
        if chain.rotate and word == "float16":
            raise ValueError(f"float16: {_NEEDS_VALUES}")
        return replace(chain, values=word, stochastic=stochastic)
    return replace(chain, rotate=True) if word == "rotate" else replace(chain, zstd=True)


def _require_known(word: str, text: str) -> None:
    if not word:
        raise ValueError("an empty stage: stages are joined by one '+' each")
    if word == "none":
        raise ValueError("none: it stands alone, and the values of a chain stay float32 where no word changes them")
    if word not in STAGES:
        plain = re.sub(r"[^a-z0-9]", "", word.lower())
        near = _KNOWN_AS.get(plain) or _nearest(word)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(STAGES)}"
        raise ValueError(f"unknown stage {_short(text)!r}: {hint}")


def _nearest(word: str) -> str:
    """The stage with the most similar spelling, or empty."""
    found = get_close_matches(word[:_LONGEST_WORD].strip().lower(), STAGES, n=1, cutoff=0.6)
    return found[0] if found else ""


def _require_order(before: str, word: str) -> None:
    if word == before:
        raise ValueError(f"{word}: it is there twice")
    here, there = _ORDER[before], _ORDER[word]
    if here == there:
        raise ValueError(f"{before}+{word}: each is {_KINDS[here]}, and a chain has only one")
    if there < here:
        raise ValueError(f"{before}+{word}: {word} comes before {before}")


def _kept(word: str, option: str | None) -> int | float:
    """The fraction or count after `top-k:` or `random-k:`."""
    stage = _short(f"{word}:{option or ''}")
    if not option:
        raise ValueError(f"{stage.rstrip(':')}: say how many values to keep, as in {word}:0.05 or {word}:1000")
    if _COUNT.fullmatch(option):
        count = int(option)
        if not 1 <= count <= LARGEST_COUNT:
            raise ValueError(f"{stage}: a count lies from 1 to {LARGEST_COUNT}")
        return count
    if _FRACTION.fullmatch(option):
        fraction = float(option)
        if not 0 < fraction <= 1:
            raise ValueError(f"{stage}: a fraction lies in (0, 1]")
        return fraction
    raise ValueError(f"{stage}: write a fraction in (0, 1] like 0.05, or a whole number from 1")


def number(keep: float) -> str:
    """The number as a spec spells it, without an exponent."""
    return str(keep) if isinstance(keep, int) else format(Decimal(repr(keep)), "f")


def _short(text: str) -> str:
    """Shorten a text for a message of one line."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[: _LONGEST_WORD + 1])
    return plain if len(plain) <= _LONGEST_WORD else plain[: _LONGEST_WORD - 3] + "..."
