"""The two interfaces of a robust rule: a node's, and byzfl's calling convention.

A node passes a rule its own model and the neighbors' replicas (`Neighborhood`), and gets the mixed model (`Mixture`).
Other callers pass 2-D torch tensors (torch is imported only if one is given), 2-D arrays, or lists of vectors
(`as_rows`); inside, every rule works on a list of numpy rows. Input of another shape is refused here, and so is what
is not finite (`require_finite`): before a rule sees it, or after a mean, which shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]

LARGEST = 1e300
"""The largest accepted squared norm of a vector."""

Rows = list[Vector]
Restore = Callable[[Vector], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighborhood:
    """The models at a node after its own round, before it mixes: finite vectors (d,), all of one dtype.

    `weights` (m,) are the a_ij s_j of the Laplacian step: positive, with a sum below 1; the rest is the node's own.
    `peers` (m,) are the neighbors' member indices, ascending.
    """

    own: Vector
    others: Sequence[Vector]
    weights: NDArray[np.float64]
    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The result of a rule. `model` (d,) is new memory, in the dtype of the node's own model.

    `kept` (m,) is the share of each neighbor's pull that passed, from 0 to 1, if the rule can tell.
    """

    model: Vector
    kept: NDArray[np.float64] | None = None


def as_rows(vectors: Any) -> tuple[Rows, Restore]:
    """Return the rows in one dtype, float32 or float64, and a function that converts a result to the input's kind and
    dtype.

    Raises ValueError if there is no vector, or if they differ in length.
    """
    rows, restore = _read(vectors)
    if not rows:
        raise ValueError("no vectors")
    sizes = {row.shape for row in rows}
    if any(len(shape) != 1 for shape in sizes) or len(sizes) > 1:
        raise ValueError(f"expected vectors of one length, got shapes {', '.join(map(str, sorted(sizes)))}")
    kind = np.float32 if all(row.dtype in (np.float32, np.float16) for row in rows) else np.float64
    return [row.astype(kind, copy=False) for row in rows], restore


def require_finite(rows: Sequence[Vector]) -> None:
    """Refuse rows that are not finite, or so large that their squares would overflow, which no float32 is."""
    for index, row in enumerate(rows):
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(np.dot(row, row))
            if not np.isfinite(square) and row.dtype == np.float32 and np.isfinite(row).all():
                continue
        if not square < LARGEST:
            what = "values beyond 1e150" if np.isfinite(row).all() else "NaN or infinity"
            raise ValueError(f"vector {index} holds {what}")


def _read(vectors: Any) -> tuple[Rows, Restore]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(vectors, torch.Tensor):
        return _from_torch(list(_matrix(vectors)), vectors)
    if isinstance(vectors, np.ndarray):
        rows = [_real(row) for row in _matrix(vectors)]
        return rows, lambda out: out.astype(vectors.dtype if vectors.dtype.kind == "f" else out.dtype, copy=False)
    if isinstance(vectors, str | bytes) or not isinstance(vectors, Sequence):
        raise ValueError(f"expected a 2-D tensor or array, or a list of vectors, got {type(vectors).__name__}")  # noqa: TRY004 - one way to refuse
    if torch is not None and vectors and isinstance(vectors[0], torch.Tensor):
        return _from_torch(vectors, vectors[0])
    rows = [_real(np.asarray(row)) for row in vectors]
    if not rows or isinstance(vectors[0], np.ndarray):
        return rows, lambda out: out.astype(rows[0].dtype, copy=False)
    return rows, lambda out: out.tolist()


def _matrix(vectors: Any) -> Any:
    if vectors.ndim != 2:
        raise ValueError(f"expected a vector in each row, got shape {tuple(vectors.shape)}")
    return vectors


def _real(row: Vector) -> Vector:
    """Convert integers to float64; no other dtype is a vector."""
    if row.dtype.kind in "iub":
        return row.astype(np.float64)
    if row.dtype.kind != "f" or row.dtype.itemsize > 8:
        raise ValueError(f"expected vectors of float32 or float64, got {row.dtype}")
    return row


def _from_torch(vectors: Sequence[Any], like: Any) -> tuple[Rows, Restore]:
    torch = sys.modules["torch"]
    double = like.dtype not in (torch.float32, torch.float16, torch.bfloat16)
    kind = torch.float64 if double else torch.float32
    if not all(isinstance(vector, torch.Tensor) for vector in vectors):
        raise ValueError("expected tensors alone, or none")
    rows = [vector.detach().to("cpu", kind).numpy() for vector in vectors]
    dtype = like.dtype if like.dtype.is_floating_point else kind
    return rows, lambda out: torch.from_numpy(out).to(like.device, dtype)
