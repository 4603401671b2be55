"""Compressors: a vector to a smaller payload and back, giving bit for bit the same vector on every machine.

They handle one vector and one payload; error feedback, replicas and the wire belong elsewhere.
"""

from p2pfl.compress.chains import (
    EXAMPLES,
    Chain,
    allowed,
    list_stages,
    make_compressor,
    parse,
    require_fit,
    require_library,
    require_replicas,
)
from p2pfl.compress.fragments import Fragments
from p2pfl.compress.interface import (
    STAGES,
    Compressor,
    LazyRow,
    Payload,
    Reader,
    RowCompressor,
    StageEntry,
    TiledCompressor,
    Vector,
)

__all__ = [
    "EXAMPLES",
    "STAGES",
    "Chain",
    "Compressor",
    "Fragments",
    "LazyRow",
    "Payload",
    "Reader",
    "RowCompressor",
    "StageEntry",
    "TiledCompressor",
    "Vector",
    "allowed",
    "list_stages",
    "make_compressor",
    "parse",
    "require_fit",
    "require_library",
    "require_replicas",
]
