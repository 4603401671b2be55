"""`zstd`: the payload of another compressor, packed by Zstandard (RFC 8878) where that makes it shorter.

Payload: a byte, and then the inner payload as it is (0) or one frame of Zstandard (1). What it decodes to is the same
with every release of the library; how long a payload is may depend on the sender's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import zstd_frame
from p2pfl.compress.interface import Payload, RowCompressor, Rows, Vector
from p2pfl.compress.single import as_payload
from p2pfl.errors import PeerFault

PLAIN, PACKED = 0, 1


@dataclass(frozen=True, slots=True)
class Entropy:
    """Loses nothing, so delta and gamma are the inner compressor's."""

    inner: RowCompressor
    fixed: bool = False
    source: str = "Collet and Kucherawy, Zstandard, RFC 8878"

    @property
    def spec(self) -> str:
        return "zstd" if self.inner.spec == "none" else f"{self.inner.spec}+zstd"

    @property
    def random(self) -> bool:
        return self.inner.random

    def delta(self, size: int) -> float:
        return self.inner.delta(size)

    def gamma(self, size: int) -> float:
        return self.inner.gamma(size)

    def size_bytes(self, size: int) -> int:
        return 1 + self.inner.size_bytes(size)

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        plain = _bytes(self.inner.encode(vector, chance=chance, decoded=decoded))
        payload = np.empty(1 + plain.size, np.uint8)
        used = zstd_frame.compress(plain, payload[1 : plain.size])
        payload[0] = PLAIN if used is None else PACKED
        if used is None:
            np.copyto(payload[1:], plain)
            used = plain.size
        return as_payload(payload[: 1 + used])

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        due = self.inner.size_bytes(size)
        stored = _bytes(payload)
        if not 0 < stored.size <= 1 + due:
            raise PeerFault(f"payload of {stored.size} bytes where 1 to {1 + due} were due")
        marker, stored = int(stored[0]), stored[1:]
        if marker == PACKED:
            plain = zstd_frame.decompress(stored, due)
        elif marker == PLAIN:
            plain = stored
        else:
            raise PeerFault(f"a payload begins with {marker}: neither plain nor packed")
        return self.inner.decode(plain.data, size, out)

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        return self.inner.quantize_rows(rows, chances=chances, out=out)


def _bytes(payload: Payload) -> NDArray[np.uint8]:
    """Over the same memory."""
    return np.frombuffer(payload, np.uint8) if memoryview(payload).nbytes else np.empty(0, np.uint8)
