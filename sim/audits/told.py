"""Names the figures of a node's private rows in what it sends to all members about itself."""

from __future__ import annotations

from collections.abc import Sequence

from p2pfl.reporting.vitals import Vitals


def figures_told(sent: Sequence[object], *, public_test: bool = False) -> list[str]:
    """Return the names of figures in rows of vitals that were computed from private rows without noise, in alphabetical
    order.

    With `public_test` the common test set is nobody's data, so scores on it are no secret.
    """
    rows = [row for row in sent if isinstance(row, Vitals)]
    found = {"loss of a local round"} if any(row.loss is not None for row in rows) else set[str]()
    if not public_test:
        found |= {"accuracy"} if any(row.accuracy is not None for row in rows) else set()
        found |= {"metrics"} if any(value is not None for row in rows for value in row.metrics) else set()
    return sorted(found)
