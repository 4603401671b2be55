"""What cannot be combined with trees, and members that are too few for them."""

from __future__ import annotations

from collections.abc import Iterator

from p2pfl.config.model import FederationConfig
from p2pfl.errors import UserError
from p2pfl.features.sums.messages import quorum

COLLUDERS = 1
LEAST, MOST = 3, 2047


def colluders_of(federation: FederationConfig) -> int:
    """Return how many members may work together without learning another's part."""
    given = federation.task.options.get("colluders")
    return given if isinstance(given, int) else COLLUDERS  # the task refuses what is no whole number


def refusals(federation: FederationConfig) -> Iterator[UserError]:
    """Yield the mistakes of a federation whose model is trees."""
    for text, key, value, allowed in _mistakes(federation):
        yield UserError(text, file=federation.path, key=key, value=value, allowed=allowed)


def _mistakes(federation: FederationConfig) -> Iterator[tuple[str, str, object, str]]:
    members, colluders = len(federation.present), colluders_of(federation)
    training, gossip = federation.training, federation.gossip
    if members < LEAST:
        text = "too few nodes for trees: of the sum of two, each knows the other's part"
        yield text, "node", members, f"{LEAST} or more"
    elif not 1 <= colluders <= members - 2:
        text = "impossible: two of the nodes must be honest"
        yield text, "task.colluders", colluders, f"1 to {members - 2}"
    signers = quorum(len(federation.members), colluders)
    if LEAST <= members < signers:
        text = f"too few nodes for trees: {signers} must sign each sum, as removed members count too"
        yield text, "node", members, f"{signers} or more, or a federation without those that were removed"
    if len(federation.members) > MOST:
        text = "too many nodes for trees: the sum of so many would not fit in 64 bits"
        yield text, "node", len(federation.members), f"at most {MOST}, with those that were removed"
    for key, given, usual, instead in (
        ("training.stop", training.stop, None, "task.patience"),
        ("gossip.rule", gossip.rule, "mean", "mean"),
        ("training.method", federation.method, "plain", "no training.method"),
    ):
        if given != usual:
            text = "cannot be combined with trees, which grow in step, from sums in which no node's part is seen alone"
            yield text, key, given, f"{instead}; or model = linear or mlp"
