"""Models and numbers that do not suit shared noise."""

from __future__ import annotations

from p2pfl.config.model import FederationConfig
from p2pfl.errors import UserError
from p2pfl.features.sums.arrays import MOST_ENTRIES
from p2pfl.learn.privacy.shared import SharedRounds


def too_large(federation: FederationConfig, shared: SharedRounds | None) -> UserError | None:
    """Return the mistake of a model that does not fit in a sum, None if it does."""
    if shared is None or shared.entries <= MOST_ENTRIES:
        return None
    text, allowed = "the model is too large for shared noise", f"at most {MOST_ENTRIES:,} trained numbers"
    return UserError(text, file=federation.path, key="task.name", value=f"{shared.entries:,}", allowed=allowed)


def delta_exceeds(delta: float, rows: int) -> str:
    """Return the warning about a delta that allows one of the rows of all nodes to be revealed entirely."""
    text = "everything about one row might be revealed; better a tenth of one in that many, or less"
    return f"privacy.delta = {delta:g} exceeds one in the {rows:,} rows of all nodes together: {text}"
