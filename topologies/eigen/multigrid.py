"""LOBPCG with a preconditioner: a million nodes with a small gap that no factorization can hold.

Algebraic multigrid is poor on expanders, whose coarse grids fill up; there Lanczos' method is at home. Where hubs
stretch the spectrum, which slows Lanczos' method too, the diagonal alone takes that out.

Sources: Knyazev, Toward the optimal preconditioned eigensolver, 2001; Bell, Olson and Schroder, PyAMG, 2022.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from topologies.laplacian import Array, Laplacian

BLOCK = 4
"""vectors at once: as many as a torus has eigenvectors of lambda_2."""
TURNS = 60
DIAGONAL_BLOCK = 3
DIAGONAL_TURNS = 600
HUB = 50.0
"""times the median of the diagonal: a hub."""


def has_hubs(laplacian: Laplacian) -> bool:
    return bool(laplacian.diagonal.max() > HUB * np.median(laplacian.diagonal))


def smallest(laplacian: Laplacian, tolerance: float, *, seed: int = 0) -> tuple[Array, int]:
    """An approximate eigenvector of lambda_2, and how many products it took.

    `tolerance`: the residual that is aimed at, relative to the eigenvalue.
    """
    hubs = has_hubs(laplacian)
    matrix = laplacian.sparse()
    kernel = laplacian.kernel[:, None]
    block = min(DIAGONAL_BLOCK if hubs else BLOCK, max(1, laplacian.nodes // 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both warn of what is checked afterwards
        preconditioner = _diagonal(laplacian) if hubs else _multigrid(matrix, kernel, seed)
        start = np.random.default_rng(seed).standard_normal((laplacian.nodes, block))
        # a rough run tells the scale of the eigenvalue, and with it the residual to aim at
        vectors, taken = _run(matrix, start, preconditioner, kernel, aim=1e-3 * laplacian.largest, turns=8)
        aim = 0.3 * tolerance * laplacian.quotient(vectors[:, 0])
        turns = DIAGONAL_TURNS if hubs else TURNS
        vectors, more = _run(matrix, vectors, preconditioner, kernel, aim=aim, turns=turns)
    best = min(range(block), key=lambda k: laplacian.quotient(vectors[:, k]))
    return vectors[:, best], block * (taken + more)


def _diagonal(laplacian: Laplacian) -> Any:
    from scipy.sparse import diags_array  # noqa: PLC0415

    return diags_array(1.0 / laplacian.diagonal).tocsr()


def _multigrid(matrix: Any, kernel: Array, seed: int) -> Any:
    import pyamg  # noqa: PLC0415 - optional, and only for very large graphs

    with _drawing_from(seed):
        levels = pyamg.smoothed_aggregation_solver(
            matrix, B=kernel.copy(), symmetry="symmetric", max_coarse=500, coarse_solver="pinv"
        )
    return levels.aspreconditioner()


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """For pyamg, which draws from numpy's global generator alone: without this no two runs would agree."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _run(
    matrix: object, start: Array, preconditioner: object, kernel: Array, *, aim: float, turns: int
) -> tuple[Array, int]:
    from scipy.sparse.linalg import lobpcg  # noqa: PLC0415

    _, vectors, history = lobpcg(
        matrix, start, M=preconditioner, Y=kernel, largest=False, tol=aim, maxiter=turns, retResidualNormsHistory=True
    )
    return vectors, len(history)
