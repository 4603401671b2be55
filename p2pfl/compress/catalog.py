"""From a spec like `top-k:0.05+q8+zstd` to the compressor: each stage wraps the ones after it.

What the words are and in which order they stand is checked by `config.compressor`.
"""

from __future__ import annotations

from p2pfl.compress.blocks import BlockQuantizer
from p2pfl.compress.codes import EIGHT_BITS, FOUR_BITS
from p2pfl.compress.entropy import Entropy
from p2pfl.compress.floats import Float16, Float32
from p2pfl.compress.indices import GAPS, PACKED
from p2pfl.compress.interface import Compressor, RowCompressor
from p2pfl.compress.randomk import RandomK
from p2pfl.compress.sparse import Sparse
from p2pfl.compress.topk import TopK
from p2pfl.config.compressor import ALLOWED, Chain, parse
from p2pfl.errors import UserError

KEY = "gossip.compressor"
SPECS = ("none", "float16", "q8", "q4")
"""The codes for values, each a chain by itself."""


def make_compressor(spec: str) -> Compressor:
    """The compressor of a spec, for edges with error feedback.

    Raises:
        UserError: the spec is wrong, or error feedback would not converge with it.
    """
    compressor = build(spec)
    # What the other stages do to delta depends on the size, but never its sign.
    if compressor.delta(1) <= 0:
        nearest = spec.replace(":stochastic", "")
        raise UserError(
            f"{spec} is no contraction: error feedback, which every edge uses, would not converge",
            key=KEY,
            value=spec,
            allowed=f"{nearest} (round to nearest), or more bits",
        )
    return compressor


def build(spec: str) -> Compressor:
    """The same, without asking whether it is a contraction.

    Raises:
        UserError: the spec is wrong.
    """
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


def require_fit(compressor: Compressor, size: int) -> None:
    """That a count of values to keep is no more than the `size` values that there are.

    Raises:
        UserError: it is more.
    """
    sparse = compressor.inner if isinstance(compressor, Entropy) else compressor
    if isinstance(sparse, Sparse) and isinstance(sparse.keep, int) and sparse.keep > size:
        raise UserError(
            f"{sparse.keep} values to keep, of {size} that are shared",
            key=KEY,
            value=compressor.spec,
            allowed=f"a count from 1 to {size}, or a fraction in (0, 1]",
        )


def _values(chain: Chain) -> RowCompressor:
    if chain.values == "float32":
        return Float32()
    if chain.values == "float16":
        return Float16()
    packing = {"q8": EIGHT_BITS, "q4": FOUR_BITS}.get(chain.values)
    if packing is None or chain.stochastic or chain.rotate:
        raise UserError("not built yet", key=KEY, value=str(chain))
    return BlockQuantizer(spec=chain.values, packing=packing)
