"""Compressors: a vector to a smaller payload and back, bit for bit the same vector on every machine.

What they know of is one vector and one payload; error feedback, replicas and the wire belong elsewhere.
"""

from p2pfl.compress.catalog import EXAMPLES, SPECS, STAGES, CompressorStage, build, make_compressor, require_fit
from p2pfl.compress.interface import Compressor, Payload, RowCompressor, Vector

__all__ = [
    "EXAMPLES",
    "SPECS",
    "STAGES",
    "Compressor",
    "CompressorStage",
    "Payload",
    "RowCompressor",
    "Vector",
    "build",
    "make_compressor",
    "require_fit",
]
