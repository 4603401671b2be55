"""Select the tensors of a model that are gossiped, by shell patterns on their names from `[gossip] share`.

A tensor is shared if one of its names matches a pattern, and none of them a pattern after a `!`. All others are
personal: their node trains them, and they never leave it. If all patterns begin with `!`, they exclude from the whole
model.

Two nodes compare a digest of the shared tensors' names, shapes, dtypes and order before they mix.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from p2pfl.errors import UserError

WHOLE = ("*",)
"""The patterns that share everything."""
KEY = "gossip.share"
_MOST_NAMES = 12


def shared_names(tensors: Mapping[str, Sequence[str]], patterns: Sequence[str]) -> list[str]:
    """The keys of `tensors` that are shared, in their order; each stands for a tensor and has all its names.

    Raises UserError: a pattern matches nothing, or nothing is left to share.
    """
    every = [name for names in tensors.values() for name in names]
    for pattern in patterns:
        if not _matches(every, pattern.removeprefix("!")):
            text = "this pattern matches no floating tensor of the model"
            raise UserError(text, key=KEY, value=pattern, allowed=_shortened(every))
    without = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")] or WHOLE
    found = [
        key
        for key, names in tensors.items()
        if any(_matches(names, pattern) for pattern in wanted)
        and not any(_matches(names, pattern) for pattern in without)
    ]
    if not found:
        value = ", ".join(patterns)
        raise UserError("no tensor is left to share", key=KEY, value=value, allowed=_shortened(every))
    return found


def _matches(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _shortened(names: Sequence[str]) -> str:
    """List a few names as they are; for many, their beginnings, each with a count."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    beginnings = _beginnings(names)
    told = [f"{start} ({count} tensors)" if count > 1 else start for start, count in beginnings.items()]
    more = len(told) - _MOST_NAMES
    return ", ".join(told[:_MOST_NAMES] + ([f"and {more} more"] if more > 0 else []))


def _beginnings(names: Sequence[str]) -> Counter[str]:
    """Count tensors by the beginning of their names, with as few parts as tell any two apart."""
    deepest = max(name.count(".") for name in names)
    for depth in range(1, deepest + 1):
        found = Counter(_beginning(name, depth) for name in names)
        if len(found) > 1:
            return found
    return Counter(names)


def _beginning(name: str, depth: int) -> str:
    parts = name.split(".")
    return name if len(parts) <= depth else ".".join(parts[:depth]) + ".*"


DIGEST_BYTES = 16


def shape_digest(tensors: Iterable[tuple[str, Sequence[int], str]]) -> bytes:
    """BLAKE2b-128 of (name, shape, dtype) for every shared tensor, in the order of the vector."""
    rows = [[name, list(shape), dtype] for name, shape, dtype in tensors]
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=DIGEST_BYTES).digest()
