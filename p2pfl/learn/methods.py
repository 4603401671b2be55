"""The learning method of a federation, checked against its rule, training and privacy."""

from __future__ import annotations

from dataclasses import replace

from p2pfl.aggregate import liars_of
from p2pfl.config.model import FederationConfig
from p2pfl.errors import UserError
from p2pfl.methods import CONSERVATIVE, KEY, METHODS, ROBUST, Method, like, make_method

__all__ = ["like", "method_of"]  # files of users take `like` from here, as the page on methods said


def method_of(federation: FederationConfig) -> Method:
    """Make the federation's learning method.

    Raises UserError: it is the user's own and cannot be made, or it is incompatible with the federation's rule,
    training or privacy settings.
    """
    profile, training = ROBUST if liars_of(federation.gossip.rule) else CONSERVATIVE, federation.training
    if federation.hides is not None:
        training = replace(training, local_steps=1, local_epochs=None)  # in step, long rounds may count as short ones
    try:
        made = make_method(federation.method, training, profile=profile, folder=federation.path.parent)
    except UserError as error:
        error.file = error.file or str(federation.path)
        raise
    if federation.privacy is not None and made.needs_loss:
        text = "this method uses the loss of a node's rows, which has no noise; [privacy] forbids that"
        private = [name for name, entry in METHODS.items() if not getattr(entry.made, "needs_loss", False)]
        allowed = f"{', '.join(private)}; or no [privacy]"
        raise UserError(text, file=federation.path, key=KEY, value=federation.method, allowed=allowed)
    return made
