"""Compressors: a vector to a smaller payload and back, giving bit for bit the same vector on every machine.

They handle one vector and one payload; error feedback, replicas and the wire belong elsewhere.
"""

from p2pfl.compress.catalog import EXAMPLES, build, make_compressor, require_fit
from p2pfl.compress.entry import STAGES, StageEntry
from p2pfl.compress.fragments import Fragments
from p2pfl.compress.interface import Compressor, Payload, RowCompressor, Vector

__all__ = [
    "EXAMPLES",
    "STAGES",
    "Compressor",
    "Fragments",
    "Payload",
    "RowCompressor",
    "StageEntry",
    "Vector",
    "build",
    "make_compressor",
    "require_fit",
]
