"""How the owner of a table learns what a private run does not tell."""

from __future__ import annotations

TABLES = "csv"
"""The task whose models are scored on tables."""
SCORE = "`p2pfl score NODE TABLE` says how good the model is, on a labelled table of your own"


def instead(task: str) -> str | None:
    """What to do where scores are withheld, by the name of the task; None where there is no such command."""
    return SCORE if task == TABLES else None
