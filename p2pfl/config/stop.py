"""The values of `training.stop`: conditions that end a node's training before its rounds are done.

    no improvement [of FIGURE] [by LEAST] in K rounds | after N s|min|h|d     one, or both with " or " between them

FIGURE is by default `loss`, that of the node's own local rounds; or `test_loss`, `accuracy` or another metric of the
task on the common test set. `core.early_stopping` applies the condition.
"""

from __future__ import annotations

import re
from dataclasses import replace

from p2pfl.core.early_stopping import Stop
from p2pfl.specs import Kind, short, spelled

ALLOWED = (
    'such as "no improvement in 20 rounds", "no improvement of accuracy by 0.001 in 20 rounds", "after 2 h", '
    'or both: "no improvement in 20 rounds or after 2 h"'
)
MOST_ROUNDS = 1000
"""The most rounds that a node trains if its patience, and no key of the file, limits them."""
LONGEST_S = 1e10
UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?"
_PATIENCE = re.compile(
    rf"no improvement(?: of (?P<of>[A-Za-z_][\w.-]{{0,63}}))?(?: by (?P<least>{_NUMBER}))?"
    r" in (?P<rounds>\d{1,9}) rounds?"
)
_AFTER = re.compile(rf"after (?P<count>{_NUMBER}) ?(?P<unit>{'|'.join(UNITS_S)})")


def stop() -> Kind:
    return spelled(ALLOWED, parse_stop)


def parse_stop(text: str) -> Stop:
    """Read the conditions. Raises ValueError: names the part that is not understood."""
    found = Stop()
    for part in " ".join(text.split()).split(" or "):
        found = _with_clause(found, part)
    return found


def _with_clause(stop: Stop, part: str) -> Stop:
    if told := _PATIENCE.fullmatch(part):
        patience, least = int(told["rounds"]), float(told["least"] or 0.0)
        _require(part, stop.patience is None, "the second condition of its kind")
        _require(part, patience > 0, "too short: wait at least 1 round for an improvement")
        return replace(stop, patience=patience, of=told["of"] or stop.of, least=least)
    if told := _AFTER.fullmatch(part):
        after_s = float(told["count"]) * UNITS_S[told["unit"]]
        _require(part, stop.after_s is None, "the second condition of its kind")
        _require(part, 0.0 < after_s <= LONGEST_S, "not a possible time")
        return replace(stop, after_s=after_s)
    raise ValueError(f"{short(part)!r} is not understood")


def _require(part: str, holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise ValueError(f"{short(part)!r} is {what}")
