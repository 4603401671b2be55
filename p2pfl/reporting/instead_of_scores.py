"""The way for a table's owner to compute the scores that a private run withholds."""

from __future__ import annotations

TABLES = "csv"
"""The task whose models are scored on tables."""
SCORE = "`p2pfl score NODE TABLE` says how good the model is, on a labelled table of your own"


def instead(task: str) -> str | None:
    """Return the command to use where scores are withheld, by the name of the task; None: there is none."""
    return SCORE if task == TABLES else None
