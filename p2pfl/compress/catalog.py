"""From a spec like `top-k:0.05+q8+zstd` to the compressor: each stage wraps the ones after it.

What the words are and in which order they stand is checked by `config.compressor`.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.compress.blocks import ROTATED_BLOCK, Sign, block_quantizer
from p2pfl.compress.entropy import Entropy, zstd_is_installed
from p2pfl.compress.floats import Float16, Float32
from p2pfl.compress.indices import GAPS, PACKED
from p2pfl.compress.interface import Compressor, RowCompressor
from p2pfl.compress.rotation import Rotation
from p2pfl.compress.sparse import RandomK, Sparse, TopK
from p2pfl.config.compressor import ALLOWED, Chain, parse
from p2pfl.errors import UserError

KEY = "gossip.compressor"
SPECS = ("none", "float16", "q8", "q4", "q2", "sign")
"""The codes for values that use no randomness, each a chain by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorStage:
    """One word of the grammar, described for people."""

    word: str
    """The word, with a placeholder for a number: `top-k:X`."""
    meaning: str
    example: str
    """A complete spec that uses the word."""

    @property
    def source(self) -> str:
        """The paper or standard that defines it."""
        made = build(self.example)
        if self.word != "zstd" and isinstance(made, Entropy):
            made = made.inner
        return made.source


STAGES = (
    CompressorStage(word="none", meaning="float32 as it is: 32 bits per value", example="none"),
    CompressorStage(
        word="top-k:X",
        meaning="only the X values (0.05: a share; 500: a count) of largest magnitude",
        example="top-k:0.05+q8",
    ),
    CompressorStage(
        word="random-k:X",
        meaning="X values drawn at random; their positions follow from a seed",
        example="random-k:0.1+q8",
    ),
    CompressorStage(
        word="rotate",
        meaning="rotate at random first, so that no value stands out: DRIVE with sign, EDEN with q2",
        example="rotate+sign",
    ),
    CompressorStage(word="float16", meaning="half precision: 16 bits per value", example="float16"),
    CompressorStage(word="q8", meaning="8 bits per value, one scale for each 256, round to nearest", example="q8"),
    CompressorStage(word="q4", meaning="4 bits per value, as q8; the default", example="q4"),
    CompressorStage(word="q2", meaning="2 bits per value, as q8", example="q2"),
    CompressorStage(
        word=":stochastic",
        meaning="after q8, q4 or q2: round up or down at random, so that the mean is right",
        example="q8:stochastic",
    ),
    CompressorStage(
        word="sign",
        meaning="signs, and the mean magnitude of each 256, after rotate of each 2048: 1.1 bits per value",
        example="sign",
    ),
    CompressorStage(
        word="zstd",
        meaning="pack the bytes losslessly; worthwhile for large models and clustered values",
        example="top-k:0.05+q8+zstd",
    ),
)
EXAMPLES = (
    "none",
    "float16",
    "q8",
    "q4",
    "q2",
    "sign",
    "q8:stochastic",
    "q4:stochastic",
    "rotate+q4",
    "rotate+q2",
    "rotate+sign",
    "top-k:0.05",
    "top-k:0.05+q8",
    "random-k:0.1",
    "random-k:0.1+q8",
    "zstd",
    "q8+zstd",
    "top-k:0.05+q8+zstd",
)
"""Specs shown as examples."""


def make_compressor(spec: str) -> Compressor:
    """The compressor of a spec, for edges with error feedback.

    Raises UserError: the spec is wrong, or error feedback would not converge with it.
    """
    compressor = build(spec)
    # What the other stages do to delta depends on the size, but never its sign.
    if compressor.delta(1) <= 0:
        nearest = spec.replace(":stochastic", "")
        raise UserError(
            f"{spec} is not a contraction: error feedback, which every edge uses, would not converge",
            key=KEY,
            value=spec,
            allowed=f"{nearest} (round to nearest), or more bits",
        )
    return compressor


def build(spec: str) -> Compressor:
    """The same, without checking that it is a contraction. Raises UserError: the spec is wrong."""
    try:
        chain = parse(spec)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec, allowed=ALLOWED) from None
    compressor = _values(chain)
    if chain.sparsifier == "top-k":
        compressor = TopK(chain.keep, compressor, GAPS if chain.zstd else PACKED)
    elif chain.sparsifier == "random-k":
        compressor = RandomK(chain.keep, compressor)
    return Entropy(compressor) if chain.zstd else compressor


def require_library(compressor: Compressor) -> None:
    """Check that the libraries a chain needs are installed. Raises UserError: it is not."""
    if isinstance(compressor, Entropy) and not zstd_is_installed():
        raise UserError(
            "zstd is not installed here",
            key=KEY,
            value=compressor.spec,
            allowed=f"{compressor.inner.spec}, or the same after: pip install backports.zstd",
        )


def require_fit(compressor: Compressor, size: int) -> None:
    """Check that a count of values to keep is at most the `size` shared values. Raises UserError: it is more."""
    sparse = compressor.inner if isinstance(compressor, Entropy) else compressor
    if isinstance(sparse, Sparse) and isinstance(sparse.keep, int) and sparse.keep > size:
        raise UserError(
            f"{sparse.keep} values to keep, of {size} that are shared",
            key=KEY,
            value=compressor.spec,
            allowed=f"a count from 1 to {size}, or a fraction in (0, 1]",
        )


def _values(chain: Chain) -> RowCompressor:
    match chain.values:
        case "float32":
            compressor: RowCompressor = Float32()
        case "float16":
            compressor = Float16()
        case "sign":
            compressor = Sign(block=ROTATED_BLOCK) if chain.rotate else Sign()
        case _:
            compressor = block_quantizer(int(chain.values[1:]), stochastic=chain.stochastic)
    return Rotation(compressor) if chain.rotate else compressor
