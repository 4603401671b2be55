"""From a spec like `top-k:0.05+q8+zstd` to the compressor: each stage wraps the ones after it.

`spelling` has the grammar.
"""

from __future__ import annotations

from collections.abc import Iterator

from p2pfl.compress.blocks import STOCHASTIC
from p2pfl.compress.entropy import Entropy, zstd_is_installed
from p2pfl.compress.entry import ALONE, ENTROPY, STAGES, StageEntry
from p2pfl.compress.floats import Float32
from p2pfl.compress.fragments import Fragments
from p2pfl.compress.interface import Compressor, RowCompressor
from p2pfl.compress.rotation import Rotation
from p2pfl.compress.sparse import Sparse
from p2pfl.compress.spelling import Chain, allowed, parse
from p2pfl.errors import UserError

KEY = "gossip.compressor"


def list_stages() -> Iterator[tuple[StageEntry, str]]:
    """Each word of the grammar, and the paper or standard that defines it."""
    for entry in (*ALONE.values(), *STAGES.values(), STOCHASTIC):
        made = build(entry.shown)
        if entry.place != ENTROPY and isinstance(made, Entropy):
            made = made.inner
        yield entry, made.source


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
    "bf16",
    "fragment:8",
    "fragment:8+bf16",
)
"""Yield specs to show as examples."""


def make_compressor(spec: str) -> Compressor:
    """Make the compressor for a spec, for edges with error feedback.

    Raises UserError if the spec is wrong, or if error feedback would not converge with it.
    """
    compressor = build(spec)
    # The other stages make delta depend on the size, but never change its sign.
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
    """Build the compressor without checking that it is a contraction. Raises UserError if the spec is wrong."""
    try:
        chain = parse(spec)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec, allowed=allowed()) from None
    compressor = _values(chain)
    if chain.sparsifier:
        sparse: Sparse | Fragments = STAGES[chain.sparsifier].made(chain.keep, compressor)
        if isinstance(sparse, Fragments):
            return sparse
        compressor = sparse.packed() if chain.zstd else sparse
    return Entropy(compressor) if chain.zstd else compressor


def require_library(compressor: Compressor) -> None:
    """Check that the libraries a chain needs are installed. Raises UserError if one is missing."""
    if isinstance(compressor, Entropy) and not zstd_is_installed():
        raise UserError(
            "zstd is not installed here",
            key=KEY,
            value=compressor.spec,
            allowed=f"{compressor.inner.spec}, or the same after: pip install backports.zstd",
        )


def require_replicas(compressor: Compressor, rule: str) -> None:
    """Check that there are replicas where a robust `rule` mixes them. Raises UserError if there are none."""
    if isinstance(compressor, Fragments):
        raise UserError(
            f"a robust rule ({rule}) mixes the replicas of all neighbors, and fragments leave none",
            key=KEY,
            value=compressor.spec,
            allowed="a compressor with replicas, such as q4, or gossip.rule = mean",
        )


def require_fit(compressor: Compressor, size: int) -> None:
    """Check that a count of values to keep does not exceed the `size` shared values. Raises UserError if it does."""
    sparse = compressor.inner if isinstance(compressor, Entropy) else compressor
    if isinstance(sparse, Fragments) and sparse.count > size:
        raise UserError(
            f"{sparse.count} fragments of {size} values that are shared",
            key=KEY,
            value=compressor.spec,
            allowed=f"at most {size} fragments",
        )
    if isinstance(sparse, Sparse) and isinstance(sparse.keep, int) and sparse.keep > size:
        raise UserError(
            f"{sparse.keep} values to keep, of {size} that are shared",
            key=KEY,
            value=compressor.spec,
            allowed=f"a count from 1 to {size}, or a fraction in (0, 1]",
        )


def _values(chain: Chain) -> RowCompressor:
    if chain.values not in STAGES:
        return Float32()
    entry = STAGES[chain.values]
    rotated = entry.rotated if chain.rotate and entry.rotated else {}
    made: RowCompressor = entry.made(**rotated, **({"stochastic": True} if chain.stochastic else {}))
    return Rotation(made) if chain.rotate else made
