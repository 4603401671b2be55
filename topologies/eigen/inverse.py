"""The pseudoinverse of a Laplacian by elimination: its largest eigenvalue is one over the smallest of the Laplacian.

For graphs of a small gap and small separators: paths, rings, trees, tori and whatever lies in a plane.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from topologies.eigen.certificate import Budget, factor, shrink
from topologies.eigen.elimination import Form
from topologies.laplacian import Array, Laplacian


class Inverse:
    """Applies N^1/2 L_c^+ N^1/2 to vectors (n,) that are orthogonal to the kernel N^1/2 1."""

    def __init__(self, laplacian: Laplacian, form: Form, core: Callable[[Array], Array]) -> None:
        self._root = np.sqrt(laplacian.n)
        self._kernel = laplacian.kernel
        self._nodes = form.nodes
        self._steps = form.steps
        self._core = core

    @classmethod
    def of(cls, laplacian: Laplacian, budget: Budget) -> Inverse | None:
        """None where the factors would not fit into the budget, or there are none."""
        core = shrink(Form.of(laplacian), budget, keep=True)
        if core is None:
            return None
        form, dense = core
        solve = _dense_core(form) if dense else _sparse_core(form)
        return cls(laplacian, form, solve) if solve else None

    def __call__(self, y: Array) -> Array:
        b = self._root * y
        for step in self._steps:
            np.add.at(b, step.neighbor, step.share * b[step.gone][step.owner])
        x = np.zeros(len(b))
        x[self._nodes] = self._core(b[self._nodes])
        for step in reversed(self._steps):
            x[step.gone] = b[step.gone] / step.pivot + np.add.reduceat(step.share * x[step.neighbor], step.starts)
        x *= self._root
        x -= self._kernel * (self._kernel @ x)
        return x


def _dense_core(form: Form) -> Callable[[Array], Array] | None:
    """None where weights are so far apart that the matrix is singular once it is rounded."""
    matrix = np.diag(form.sums)
    matrix[form.i, form.j] = matrix[form.j, form.i] = -form.c
    try:
        inverse = np.linalg.inv(matrix[1:, 1:])
    except np.linalg.LinAlgError:
        return None

    def solve(b: Array) -> Array:
        return np.concatenate([[0.0], inverse @ b[1:]])

    return solve


def _sparse_core(form: Form) -> Callable[[Array], Array] | None:
    ground = int(np.argmax(form.degrees))
    factored = factor(form, ground)
    if factored is None:
        return None
    lu, scale = factored
    stay = np.flatnonzero(np.arange(form.size) != ground)

    def solve(b: Array) -> Array:
        x = np.zeros(form.size)
        x[stay] = scale[stay] * lu.solve(scale[stay] * b[stay])
        return x

    return solve
