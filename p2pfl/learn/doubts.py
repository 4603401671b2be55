"""Look for problems in a node's own data that speak against a good result.

Nothing here changes what is computed, and nothing leaves the node: each problem becomes a line and an alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from p2pfl.aggregate import liars_of
from p2pfl.learn.interface import Learner

if TYPE_CHECKING:
    from torch import Tensor

UNEVEN = 100.0
"""A feature's spread this many times another's is worth a warning."""
ROWS = 10_000
"""The number of rows checked, from the start of the table."""
MOST_CLASSES = 1_000


def unscaled(learner: Learner) -> str | None:
    """Warn if some of the node's inputs spread far more than others. None also where that is unknown: for images,
    texts, and data that are not in memory.
    """
    inputs = getattr(getattr(learner, "train_set", None), "inputs", None)
    if inputs is None or inputs.ndim != 2 or not inputs.is_floating_point():
        return None
    spread = _spreads(inputs[:ROWS].double())
    known = [(value, column) for column, value in enumerate(spread.tolist(), start=1) if value > 0]
    if not known:
        return None
    (least, narrow), (most, wide) = min(known), max(known)
    if most < UNEVEN * least:
        return None
    called = getattr(getattr(learner, "task", None), "preprocessing", {}).get("inputs")
    first = f"input {wide} of {len(spread)}" if called is None else f"input {called[wide - 1]!r}"
    second = f"input {narrow}" if called is None else f"input {called[narrow - 1]!r}"
    return f"{first} spreads {most:.3g} around its median, {second} only {least:.2g}"


def _spreads(inputs: Tensor) -> Tensor:
    """Compute the root mean square distance of each column of (n, d) to its median, over the rows that differ from it:
    (d,).

    So a rare indicator, or a pixel that is mostly empty, spreads as far as a frequent one. 0: the column is constant.
    """
    away = (inputs - inputs.median(dim=0).values) ** 2
    moving = (away > 0).sum(dim=0)
    return (away.sum(dim=0) / moving.clamp(min=1)).sqrt()


def own_classes(learner: Learner) -> list[int] | None:
    """Return the classes in the node's own data, ascending; None where there are none, there are too many, or they are
    not in memory.
    """
    targets: Any = getattr(getattr(learner, "train_set", None), "targets", None)
    if targets is None or targets.ndim != 1 or targets.is_floating_point():
        return None
    found: list[int] = targets.unique().tolist()
    return found if len(found) <= MOST_CLASSES else None


def lone_classes(held: Mapping[str, Iterable[int]]) -> dict[int, str]:
    """Find the nodes that alone have some class, and name these classes. `held` are the classes by node."""
    holders: dict[int, list[str]] = {}
    for node, classes in held.items():
        for one in classes:
            holders.setdefault(one, []).append(node)
    return {one: nodes[0] for one, nodes in sorted(holders.items()) if len(nodes) == 1}


def about_lone_classes(rule: str, classes: Mapping[str, Iterable[int]]) -> str | None:
    """Warn where the classes of all nodes are known; None: the `rule` is not robust, or no class is on
    one node alone.
    """
    lone = lone_classes(classes) if liars_of(rule) and len(classes) > 1 else {}
    if not lone:
        return None
    some = ", ".join(f"{one} ({node})" for one, node in list(lone.items())[:5])
    more = f" and {len(lone) - 5} more" if len(lone) > 5 else ""
    what = "a class is on one node alone" if len(lone) == 1 else "classes are on one node alone"
    return f"{what}: {some}{more}; to {rule} such a node looks like a liar, and the others may never learn them"
