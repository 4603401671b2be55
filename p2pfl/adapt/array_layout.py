"""A list of numpy arrays as one float32 vector (d,), and back.

Floating-point arrays are shared. Integer and boolean ones, such as BatchNorm's counters, stay on the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import LearningError, UserError
from p2pfl.learn.interface import Vector
from p2pfl.learn.sharing import shape_digest

Arrays = Sequence[NDArray[np.generic]]


class ArrayLayout:
    """The places of `arrays` in the vector. `size` is d; `source` names the code that they come from, in errors."""

    def __init__(self, names: Sequence[str], arrays: Arrays, source: str) -> None:
        """Lay out the arrays. Raises UserError: none has floating-point numbers."""
        self.names, self.source = tuple(names), source
        self._shapes = [array.shape for array in arrays]
        self._types = [array.dtype for array in arrays]
        self._shared = [index for index, array in enumerate(arrays) if array.dtype.kind == "f" and array.size]
        if not self._shared:
            text, allowed = "there are no floating-point arrays to share", "at least one"
            raise UserError(text, file=source, value=len(arrays), allowed=allowed)
        ends = np.cumsum([0, *(arrays[index].size for index in self._shared)])
        self._parts = {index: slice(ends[k], ends[k + 1]) for k, index in enumerate(self._shared)}
        self.size = int(ends[-1])
        self.digest = shape_digest((names[i], arrays[i].shape, str(arrays[i].dtype)) for i in self._shared)

    def joined(self, arrays: Arrays) -> Vector:
        """Return the shared arrays as one new vector (d,).

        Raises LearningError: there are more or fewer arrays than at first, or one has another shape.
        """
        if len(arrays) != len(self.names):
            text = f"{self.source} returned {len(arrays)} arrays, and got {len(self.names)}"
            raise LearningError(text)
        vector = np.empty(self.size, np.float32)
        for index, (name, array) in enumerate(zip(self.names, arrays, strict=True)):
            if np.shape(array) != self._shapes[index]:
                text = f"{self.source} returned {name} in shape {np.shape(array)}, and got {self._shapes[index]}"
                raise LearningError(text)
            if index in self._parts:
                vector[self._parts[index]] = np.ravel(array)
        return vector

    def split(
        self, vector: Vector, local: Mapping[str, NDArray[np.generic]] | None = None
    ) -> list[NDArray[np.generic]]:
        """Return all arrays, new and in their own types. Those that are not shared come from `local`, by name."""
        return [
            vector[self._parts[index]].reshape(self._shapes[index]).astype(self._types[index])
            if index in self._parts
            else np.array((local or {})[name])
            for index, name in enumerate(self.names)
        ]

    def local(self, arrays: Arrays) -> dict[str, NDArray[np.generic]]:
        """Return copies of the arrays that are not shared, by name."""
        named = enumerate(zip(self.names, arrays, strict=True))
        return {name: np.array(array) for index, (name, array) in named if index not in self._parts}

    def state(
        self, vector: Vector, local: Mapping[str, NDArray[np.generic]] | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """Return all arrays by name."""
        return dict(zip(self.names, self.split(vector, local), strict=True))
