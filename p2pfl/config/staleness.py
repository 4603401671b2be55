"""The words of `gossip.staleness`. What they compute is the core's; here they are only checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from p2pfl.config.kinds import Kind

ALLOWED = (
    "none, constant, constant:C with C in (0, 1], hinge:A,B, polynomial:A, hinge-polynomial:B,A "
    "with A above 0 and B from 0"
)

_SHAPES: Mapping[str, Callable[..., bool]] = {
    "none": lambda: True,
    "constant": lambda c=1.0: 0.0 < c <= 1.0,
    "hinge": lambda a, b: a > 0.0 and b >= 0.0,
    "polynomial": lambda a: a > 0.0,
    "hinge-polynomial": lambda b, a: a > 0.0 and b >= 0.0,
}


def staleness() -> Kind:
    return Kind(ALLOWED, _read)


def _read(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004 - a reader has one way to refuse
    name, colon, rest = value.partition(":")
    try:
        parameters = [float(part) for part in rest.split(",")] if colon else []
        fits = _SHAPES[name](*parameters) and all(abs(part) < 1e6 for part in parameters)
    except (KeyError, TypeError, ValueError):
        raise ValueError from None
    if not fits:
        raise ValueError
    return value
