"""From the word in `gossip.compressor` to the compressor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from p2pfl.compress.blocks import BlockQuantizer
from p2pfl.compress.codes import EIGHT_BITS, FOUR_BITS
from p2pfl.compress.floats import Float16, Float32
from p2pfl.compress.interface import Compressor
from p2pfl.errors import UserError

_MAKERS: Mapping[str, Callable[[], Compressor]] = MappingProxyType(
    {
        "none": Float32,
        "float16": Float16,
        "q8": lambda: BlockQuantizer(spec="q8", packing=EIGHT_BITS),
        "q4": lambda: BlockQuantizer(spec="q4", packing=FOUR_BITS),
    },
)

SPECS = tuple(_MAKERS)


def make_compressor(spec: str) -> Compressor:
    maker = _MAKERS.get(spec)
    if maker is None:
        raise UserError("unknown compressor", key="gossip.compressor", value=spec, allowed=", ".join(SPECS))
    return maker()
