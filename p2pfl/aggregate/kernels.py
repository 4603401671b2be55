"""Compiled loops for robust rules, if `python -m p2pfl.aggregate.build` has built them; otherwise numpy does the work.

A robust rule in numpy passes over memory once for each operation. `kernels.c` does all operations on a block before the
next, which takes a third of the time. The library lies beside this file, and its name has the digest of its source, so
that one built for another version is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate.interface import Vector

SOURCE = Path(__file__).with_suffix(".c")
SUFFIX = {"float32": "f32", "float64": "f64"}
CHUNK = 2**16
"""The number of columns in a chunk of a sum over columns. Chunks are added in order, whichever thread computed them."""
LEAST = 2**20
"""The number of values from which several threads are used."""

Steps = NDArray[np.int32]
"""A sorting network, (steps, 3): see `columns.network`."""
Fast = Callable[[slice], bool]
"""Computes a span of the columns, and returns False where numpy has to do it."""

_threads: ContextVar[int] = ContextVar("threads", default=1)
_log = logging.getLogger("p2pfl")


@contextmanager
def several_threads(count: int) -> Iterator[None]:
    """Let compiled rules use `count` threads inside this context."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


class Kernels:
    """The functions of a built library."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def inner_products(self, rows: Sequence[Vector], center: Vector) -> NDArray[np.float64] | None:
        """Return the inner products (n, n) of the rows minus the center; None where numpy has to do it."""
        return self._sums("inner_products", rows, center, (len(rows), len(rows)))

    def squares(self, rows: Sequence[Vector], center: Vector) -> NDArray[np.float64] | None:
        """Return the squared distances (n,) of the rows from the center; None where numpy has to do it."""
        return self._sums("squares", rows, center, (len(rows),))

    def combined(self, rows: Sequence[Vector], shares: NDArray[np.float64], out: Vector) -> Fast:
        """Write the sum of shares[i] rows[i]; equal shares are applied to the sum."""
        even = int((shares == shares[0]).all())
        return self._fast("combined", [*rows, out], rows, shares, len(rows), even)

    def moved(self, own: Vector, others: Sequence[Vector], pulls: NDArray[np.float64], out: Vector) -> Fast:
        """Write own + the sum of pulls[j] (others[j] - own)."""
        return self._fast("moved", [own, *others, out], own, others, pulls, len(others))

    def trimmed(self, rows: Sequence[Vector], steps: Steps, kept: range, out: Vector) -> Fast:
        """Write the mean of each column's sorted values at the places in `kept`."""
        return self._fast("trimmed", [*rows, out], rows, len(rows), steps, _long(steps), kept.start, kept.stop)

    def around_median(self, rows: Sequence[Vector], steps: Steps, near: int, out: Vector) -> Fast:
        """Write the mean of the `near` values in each column nearest to its median."""
        return self._fast("around_median", [*rows, out], rows, len(rows), steps, _long(steps), near)

    def cut_pulls(  # noqa: PLR0917 - the C function's arguments
        self,
        own: Vector,
        others: Sequence[Vector],
        pulls: NDArray[np.float64],
        steps: Steps,
        rank: int,
        cut: float,
        out: Vector,
    ) -> Fast:
        """Write own + the sum of the pulls, clipped at `cut` times the value at `rank` in each column."""
        given = (own, others, pulls, len(others), steps, _long(steps), rank, ctypes.c_double(cut))
        return self._fast("cut_pulls", [own, *others, out], *given)

    def _fast(self, name: str, arrays: Sequence[Vector], *arguments: Any) -> Fast:
        """Return what runs a function on a span of columns; the last of the arrays is written."""
        call = self._call(name, arrays)
        if call is None:
            return lambda span: False  # noqa: ARG005 - every span is left to numpy
        passed = [_passed(argument) for argument in arguments]
        out, held = _pointer(arrays[-1]), (arrays, arguments)

        def fast(span: slice) -> bool:
            assert held  # noqa: S101 - the pointers are into these arrays
            return not call(*passed, ctypes.c_long(span.start), ctypes.c_long(span.stop), out)

        return fast

    def _sums(
        self, name: str, rows: Sequence[Vector], center: Vector, shape: tuple[int, ...]
    ) -> NDArray[np.float64] | None:
        call = self._call(name, [*rows, center])
        if call is None:
            return None
        pointers, middle, size = _pointers(rows), _pointer(center), center.size
        parts = np.zeros((max(1, -(-size // CHUNK)), *shape))

        def chunk(number: int) -> bool:
            ends = ctypes.c_long(number * CHUNK), ctypes.c_long(min(size, (number + 1) * CHUNK))
            return not call(pointers, middle, len(rows), *ends, _pointer(parts[number]))

        done = in_threads(chunk, range(len(parts)), size * len(rows))
        return parts.sum(axis=0) if all(done) else None

    def _call(self, name: str, arrays: Sequence[Vector]) -> Callable[..., int] | None:
        """Return the function for these arrays, or None if they are not all of one known dtype and size, and
        contiguous.
        """
        kind, size = arrays[0].dtype, arrays[0].size
        if kind.name not in SUFFIX or not kind.isnative:
            return None
        if any(array.dtype != kind or array.size != size or not array.flags.c_contiguous for array in arrays):
            return None
        found: Callable[..., int] = self._library[f"{name}_{SUFFIX[kind.name]}"]
        return found


def in_threads(work: Callable[[Any], Any], pieces: Sequence[Any], values: int) -> list[Any]:
    """Return work(piece) for each piece; with several threads if there are at least LEAST values."""
    count = min(_threads.get(), len(pieces)) if values >= LEAST else 1
    if count < 2:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda piece: copy_context().run(work, piece), pieces))


def unfinished(fast: Fast, spans: Sequence[slice], values: int) -> list[slice]:
    """Run the compiled `fast` on every span; return those that are left to numpy."""
    done = in_threads(fast, spans, values)
    return [span for span, finished in zip(spans, done, strict=True) if not finished]


def library() -> Path:
    """Return where the library of this version lies, if it is built."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return SOURCE.with_name(f"kernels-{platform.machine()}-{digest}.so")


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """Return the built library, or None. One that does not load, or of another version, is reported once."""
    try:
        path = library()
        if path.exists():
            return Kernels(path)
        others = sorted(SOURCE.parent.glob(f"kernels-{platform.machine()}-*.so"))
        reason = f"{others[0].name} is of another version" if others else ""
    except OSError as error:
        reason = str(error)
    if reason:
        _log.warning("robust rules run in numpy: %s; python -m p2pfl.aggregate.build builds the library", reason)
    return None


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.__array_interface__["data"][0])


def _pointers(rows: Sequence[Vector]) -> Any:
    return (ctypes.c_void_p * len(rows))(*(row.__array_interface__["data"][0] for row in rows))


def _long(steps: Steps) -> ctypes.c_long:
    return ctypes.c_long(len(steps))


def _passed(argument: Any) -> Any:
    """Convert arrays and lists of arrays to pointers."""
    if isinstance(argument, np.ndarray):
        return _pointer(argument)
    return _pointers(argument) if isinstance(argument, list | tuple) else argument
