"""Select which tensors of a model are gossiped: `[gossip] share` has shell patterns for their names.

A tensor is shared if one of its names matches a pattern and none matches a pattern that starts with `!`. All others are
personal: the node trains them, and they never leave it. If all patterns begin with `!`, they exclude from the whole
model.

Two nodes compare a digest of the shared tensors' names, shapes, dtypes and order before they mix.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from p2pfl.config.model import NOT_FROZEN
from p2pfl.errors import UserError

WHOLE = ("*",)
"""The patterns that share everything."""
KEY = "gossip.share"
_MOST_NAMES = 12


def shared_names(tensors: Mapping[str, Sequence[str]], patterns: Sequence[str]) -> list[str]:
    """Return the keys of `tensors` that are shared, in order. Each key stands for a tensor and maps to all its names.
    `NOT_FROZEN` is no pattern for names, and left to the caller.

    Raises UserError: a pattern matches nothing, or nothing is left to share.
    """
    patterns = [pattern for pattern in patterns if pattern != NOT_FROZEN]
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
    """List a few names as they are; summarize many by their common prefixes, each with a count."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    beginnings = _beginnings(names)
    told = [f"{start} ({count} tensors)" if count > 1 else start for start, count in beginnings.items()]
    more = len(told) - _MOST_NAMES
    return ", ".join(told[:_MOST_NAMES] + ([f"and {more} more"] if more > 0 else []))


def _beginnings(names: Sequence[str]) -> Counter[str]:
    """Count tensors by the prefixes of their names, with as few parts as yield more than one prefix."""
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
    """Return the BLAKE2b-128 digest of (name, shape, dtype) of every shared tensor, in the order of the vector."""
    rows = [[name, list(shape), dtype] for name, shape, dtype in tensors]
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=DIGEST_BYTES).digest()
