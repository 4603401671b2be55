"""The learning method of a federation, checked against its rule, training and privacy. `p2pfl.methods` has all methods,
and the base of a user's own.
"""

from __future__ import annotations

from p2pfl.aggregate import liars_of
from p2pfl.config.model import FederationConfig
from p2pfl.errors import UserError
from p2pfl.methods import METHODS, Method, New, NodeVectors, Round, like, make_method
from p2pfl.methods.catalog import KEY
from p2pfl.methods.method import CONSERVATIVE, ROBUST

__all__ = ["Method", "New", "NodeVectors", "Round", "like", "make_method", "method_of"]


def method_of(federation: FederationConfig) -> Method:
    """Make the learning method of a federation.

    Raises UserError: it is the user's own and cannot be made, or does not fit the federation's rule, training or
    privacy.
    """
    profile = ROBUST if liars_of(federation.gossip.rule) else CONSERVATIVE
    try:
        made = make_method(federation.method, federation.training, profile=profile, folder=federation.path.parent)
    except UserError as error:
        error.file = error.file or str(federation.path)
        raise
    if federation.privacy is not None and made.needs_loss:
        text = "this method uses the loss of a node's rows, which has no noise; [privacy] forbids that"
        private = [name for name, entry in METHODS.items() if not getattr(entry.made, "needs_loss", False)]
        allowed = f"{', '.join(private)}; or no [privacy]"
        raise UserError(text, file=federation.path, key=KEY, value=federation.method, allowed=allowed)
    return made
