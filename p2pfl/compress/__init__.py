"""Compressors: a vector to a smaller payload and back, bit for bit the same vector on every machine.

What they know of is one vector and one payload; error feedback, replicas and the wire belong elsewhere.
"""

from p2pfl.compress.catalog import SPECS, make_compressor
from p2pfl.compress.interface import Compressor, Payload, RowCompressor, Vector

__all__ = ["SPECS", "Compressor", "Payload", "RowCompressor", "Vector", "make_compressor"]
