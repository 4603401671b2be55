"""LOBPCG with an algebraic multigrid preconditioner: a million nodes with a small gap that no factorization can hold.

Sources: Knyazev, Toward the optimal preconditioned eigensolver, 2001; Bell, Olson and Schroder, PyAMG, 2022. Poor on
expanders, whose coarse grids fill up; there Lanczos' method is at home.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from topologies.laplacian import Array, Laplacian

BLOCK = 4
"""vectors at once: as many as a torus has eigenvectors of lambda_2."""
TURNS = 60


def smallest(laplacian: Laplacian, tolerance: float, *, seed: int = 0) -> tuple[Array, int]:
    """An approximate eigenvector of lambda_2, and how many products it took.

    `tolerance`: the residual that is aimed at, relative to the eigenvalue.
    """
    import pyamg  # noqa: PLC0415 - optional, and only for very large graphs

    matrix = laplacian.sparse()
    kernel = laplacian.kernel[:, None]
    block = min(BLOCK, max(1, laplacian.nodes // 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both warn of what is checked afterwards
        with _drawing_from(seed):
            levels = pyamg.smoothed_aggregation_solver(
                matrix, B=kernel.copy(), symmetry="symmetric", max_coarse=500, coarse_solver="pinv"
            )
        start = np.random.default_rng(seed).standard_normal((laplacian.nodes, block))
        preconditioner = levels.aspreconditioner()
        # a rough run tells the scale of the eigenvalue, and with it the residual to aim at
        vectors, taken = _run(matrix, start, preconditioner, kernel, aim=1e-3 * laplacian.largest, turns=8)
        aim = 0.3 * tolerance * laplacian.quotient(vectors[:, 0])
        vectors, more = _run(matrix, vectors, preconditioner, kernel, aim=aim, turns=TURNS)
    best = min(range(block), key=lambda k: laplacian.quotient(vectors[:, k]))
    return vectors[:, best], block * (taken + more)


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
