"""The way for the owner of a table to compute the scores that a private run withholds."""

from __future__ import annotations

TABLES = "csv"
"""The task whose models are scored on tables."""
SCORE = "`p2pfl score NODE TABLE` says how good the model is, on a labelled table of your own"


def instead(task: str) -> str | None:
    """Return the command to use if scores are withheld, for the task with this name, or None if there is none."""
    return SCORE if task == TABLES else None
