"""What top-k and random-k share: some values are sent, as another compressor codes them, and the others decode to 0.

Payload: which places, then the payload of the values there. With S the places, k of them, and an inner compressor Q
of contraction delta', |v - Q(v)|^2 = |v - v_S|^2 + |v_S - Q(v_S)|^2 <= |v|^2 - delta' |v_S|^2: the contraction is
delta' times the share of |v|^2 that S holds. (Inner ones that draw do so from chance of their own, so that the same
holds of expectations.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.indices import Indices
from p2pfl.compress.interface import RowCompressor, Rows
from p2pfl.compress.single import ByRows
from p2pfl.compress.vectors import require_payloads, require_rows, rows_for
from p2pfl.config.compressor import number


@dataclass(frozen=True, slots=True)
class Sparse(ByRows, ABC):
    """`keep` is a fraction of the values in (0, 1], or as an int how many; of fewer values all are kept."""

    keep: int | float
    inner: RowCompressor

    word: ClassVar[str]
    source: ClassVar[str]
    fixed: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        alone = f"{self.word}:{number(self.keep)}"
        return alone if self.inner.spec == "none" else f"{alone}+{self.inner.spec}"

    @property
    @abstractmethod
    def random(self) -> bool: ...

    @abstractmethod
    def delta(self, size: int) -> float: ...

    @abstractmethod
    def gamma(self, size: int) -> float: ...

    @abstractmethod
    def places_bytes(self, size: int) -> int:
        """What the places of a vector of `size` values take."""

    @abstractmethod
    def choose(self, rows: Rows, chances: Sequence[int] | None) -> tuple[Indices, Sequence[int] | None]:
        """Places (b, k) of the rows (b, d), and the inner compressor's chances.

        Raises:
            ValueError: NaN or infinity stands at a place that is not among them.
        """

    @abstractmethod
    def write(self, places: Indices, size: int, chances: Sequence[int] | None, out: NDArray[np.uint8]) -> None:
        """Fill `out` (b, places_bytes(size)) with the places (b, k)."""

    @abstractmethod
    def read(self, stored: NDArray[np.uint8], size: int) -> Indices:
        """Places (b, k) of rows (b, places_bytes(size)).

        Raises:
            PeerFault: they are not what `write` writes.
        """

    def kept(self, size: int) -> int:
        """k: how many of `size` values are sent; at least one, if there is one."""
        if isinstance(self.keep, int):
            return min(self.keep, size)
        return min(size, max(1, int(self.keep * size + 0.5)))

    def size_bytes(self, size: int) -> int:
        return self.places_bytes(size) + self.inner.size_bytes(self.kept(size))

    def encode_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, decoded: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        require_rows(rows)
        count, size = rows.shape
        places, inner_chances = self.choose(rows, chances)
        payloads = np.empty((count, self.size_bytes(size)), np.uint8)
        start = self.places_bytes(size)
        self.write(places, size, chances, payloads[:, :start])
        values = None if decoded is None else np.empty(places.shape, np.float32)
        picked = np.take_along_axis(rows, places, axis=1)
        payloads[:, start:] = self.inner.encode_rows(picked, chances=inner_chances, decoded=values)
        if decoded is not None and values is not None:
            scatter(values, places, rows_for(count, size, decoded))
        return payloads

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        out = rows_for(len(payloads), size, out)
        start = self.places_bytes(size)
        values = self.inner.decode_rows(payloads[:, start:], self.kept(size))
        scatter(values, self.read(payloads[:, :start], size), out)
        return out

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_rows(rows)
        out = rows_for(len(rows), rows.shape[1], out)
        places, inner_chances = self.choose(rows, chances)
        values = self.inner.quantize_rows(np.take_along_axis(rows, places, axis=1), chances=inner_chances)
        scatter(values, places, out)
        return out


def scatter(values: NDArray[np.float32], places: Indices, out: NDArray[np.float32]) -> None:
    """Fill `out` (b, d) with the values (b, k) at their places, and zeros."""
    out.fill(0)
    np.put_along_axis(out, places, values, axis=1)
