"""Arrays of one node or of all, checked and turned into vectors, and their sum turned back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.features.sums.fixed_point import FixedPoint
from p2pfl.features.sums.masks import Words

WHERE = "Federation.sum"
MOST_ENTRIES = 2**20
MOST_EXACT = 2**53
"""Up to here a double holds each whole number."""
FLOAT_STEPS = 2**32
"""The steps between the bounds where no resolution is given."""

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


def mistake(text: str, key: str, value: object = None, allowed: str | None = None) -> UserError:
    return UserError(text, file=WHERE, key=key, value=value, allowed=allowed)


def read_arrays(node: str, made: Any) -> dict[str, NDArray[Any]]:
    """Read the arrays that a program gives for a node. Raises UserError."""
    if not isinstance(made, Mapping) or not made or not all(isinstance(name, str) for name in made):
        allowed = "a dictionary of arrays by name, such as {'patients': 812}"
        raise mistake(f"{node} gave a {type(made).__name__}", "make", allowed=allowed)
    arrays = {}
    for name in sorted(made):
        try:
            array = np.asarray(made[name])
        except (TypeError, ValueError, RuntimeError) as error:
            raise mistake(f"{name!r} of {node} is no array: {error}", "make") from error
        if array.dtype.kind not in "biuf":
            allowed = "whole numbers or floats"
            raise mistake(f"{name!r} of {node} is an array of {array.dtype}", "make", allowed=allowed)
        arrays[name] = array
    entries = sum(array.size for array in arrays.values())
    if not 1 <= entries <= MOST_ENTRIES:
        raise mistake(f"{node} gave {entries} entries", "make", allowed=f"1 to {MOST_ENTRIES} in all arrays")
    return arrays


def refuse_differences(names: Sequence[str], given: Sequence[Arrays]) -> None:
    """Raises UserError: names or shapes differ between nodes."""
    first = {name: array.shape for name, array in given[0].items()}
    for node, arrays in zip(names[1:], given[1:], strict=True):
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != first:
            name = min(name for name in first.keys() | shapes.keys() if first.get(name) != shapes.get(name))
            texts = [f"shape {each[name]}" if name in each else "missing" for each in (shapes, first)]
            text = f"{name!r} differs: {texts[0]} at {node}, {texts[1]} at {names[0]}"
            raise mistake(text, "make", allowed="the same names and shapes at all nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How the arrays of all nodes become vectors. `whole` names the arrays that have whole numbers at every node."""

    shapes: Mapping[str, tuple[int, ...]]
    whole: frozenset[str]
    fixed: FixedPoint

    def encode(self, node: str, arrays: Arrays) -> Words:
        """Raises UserError: an entry is not finite, or out of bounds."""
        try:
            return self.fixed.encode(arrays)
        except ValueError as error:
            raise mistake(f"{node}: {error}", "within") from None

    def decode(self, total: Words, members: int) -> dict[str, NDArray[Any]]:
        """The sums by name: whole numbers where all summands are, and the resolution leaves no doubt.

        Raises SpoiledSum.
        """
        fixed = self.fixed
        found: dict[str, NDArray[Any]] = dict(fixed.decode(total, members, self.shapes))
        if float(fixed.resolution) == 1.0 and float(fixed.low).is_integer():
            exact, start = total.astype(np.int64) + members * int(fixed.low), 0
            for name in sorted(found):
                if name in self.whole:
                    found[name] = exact[start : start + found[name].size].reshape(self.shapes[name])
                start += found[name].size
        elif members * fixed.resolution < 1:
            found |= {name: np.rint(found[name]).astype(np.int64) for name in self.whole}
        return found


def encoding_of(given: Sequence[Arrays], within: Any, resolution: Any, members: int) -> Encoding:
    """`given` are the arrays of one node or more, `members` the nodes that may be in a sum.

    `resolution` None is 1 for whole numbers, else the 2^32nd part of the bounds. Raises UserError.
    """
    low, high = _bounds(within)
    whole = frozenset(name for name in given[0] if all(arrays[name].dtype.kind != "f" for arrays in given))
    if resolution is None:
        if whole == given[0].keys():
            low, high, resolution = math.ceil(low), math.floor(high), 1
        else:
            resolution = (high - low) / FLOAT_STEPS
    elif isinstance(resolution, bool) or not isinstance(resolution, int | float | np.number):
        raise mistake("impossible value", "resolution", resolution, "a number above 0")
    try:
        fixed = FixedPoint(low=low, high=high, resolution=float(resolution), members=members)
    except ValueError as error:
        raise mistake(str(error), "within") from None
    if max(abs(low), abs(high)) / fixed.resolution > MOST_EXACT:
        text = f"bounds of {max(abs(low), abs(high)):g} in steps of {fixed.resolution:g}"
        raise mistake(text, "within", allowed="at most 2^53 steps from 0, as a double holds no more")
    return Encoding(shapes={name: array.shape for name, array in given[0].items()}, whole=whole, fixed=fixed)


def _bounds(within: Any) -> tuple[float, float]:
    allowed = "(low, high): two finite numbers, the lower first"
    try:
        low, high = (float(each) for each in within)
    except (TypeError, ValueError):
        raise mistake("impossible value", "within", within, allowed) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise mistake("impossible value", "within", within, allowed)
    return low, high


def refuse_numbers(count: int, least: int, colluders: int) -> None:
    """Raises UserError: no sum of `count` nodes is private with these numbers."""
    if count < 3:
        text = "too few nodes for a secure sum: of two, each knows the other's part"
        raise mistake(text, "nodes", count, "3 or more")
    if least > count:
        raise mistake("more than there are nodes", "least", least, f"3 to {count}")
    if colluders > least - 2:
        why = f"a sum may have as few as least = {least} members, and two of them must be honest: raise least for more"
        raise mistake("too many", "colluders", colluders, f"1 to {least - 2}, as {why}")
