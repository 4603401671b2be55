"""Privacy in one line, for `sim run --privacy` and sweeps: the keys of `[privacy]`, as in `epsilon=8,delta=1e-5`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from p2pfl.config.load import refuse_broken_promises
from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import PRIVACY, read_privacy
from p2pfl.config.tables import Mistakes
from p2pfl.errors import UserError

NONE = "none"
"""Turns privacy off, whatever the file says."""
KEY = "--privacy"
ALLOWED = f'{NONE}, or keys of [privacy] as in "epsilon=8,delta=1e-5": {", ".join(PRIVACY)}'


def with_privacy(federation: FederationConfig, spec: str) -> FederationConfig:
    """Replace the federation's `[privacy]` with the keys in `spec`. Raises UserError if the spec is wrong."""
    if spec == NONE:
        return replace(federation, privacy=None)
    mistakes = Mistakes(federation.path)
    privacy = read_privacy(_table(spec), mistakes)
    for mistake in mistakes.found:
        said = f"{mistake.key}: {mistake.message}".replace("privacy.", "")
        raise UserError(said, key=KEY, value=mistake.value or spec, allowed=mistake.allowed)
    return replace(federation, privacy=privacy, training=replace(federation.training, when_through="mix"))


def refuse_broken(federation: FederationConfig) -> FederationConfig:
    """Return the federation unchanged. Raises UserError if options contradict its privacy."""
    mistakes = Mistakes(federation.path)
    if federation.privacy is not None and federation.training.when_through != "mix":
        text = "with privacy a node trains no more rounds than its budget is for"
        mistakes.add(text, "training.when_through", federation.training.when_through, "mix")
    refuse_broken_promises(federation, mistakes)
    for mistake in mistakes.found:
        mistake.file = None
        raise mistake
    return federation


def _table(spec: str) -> dict[str, Any]:
    """Parse the keys and values. Raises UserError if a part is not a pair, or if its key is unknown or repeated."""
    found: dict[str, Any] = {}
    for part in spec.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or key not in PRIVACY or key in found:
            text = "is given twice" if key in found else "is not a KEY=VALUE of [privacy]"
            raise UserError(f"{part.strip()!r} {text}", key=KEY, value=spec, allowed=ALLOWED)
        found[key] = _number(value)
    return found


def _number(value: str) -> int | float | str:
    """Parse the value as a file would store it."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
