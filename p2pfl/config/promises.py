"""What in a federation file contradicts its `[privacy]`: what would tell of rows without noise, or have no bound.

What only the model, the data or imported code can tell is refused where they are: `learn.methods.catalog`,
`learn.privacy`.
"""

from __future__ import annotations

from p2pfl.config.model import FederationConfig
from p2pfl.config.privacy import MEMBER, PRIVACY, PRIVATE, PUBLIC, PrivacyConfig
from p2pfl.config.stop import parse_stop
from p2pfl.config.tables import Mistakes

ON_PUBLIC = 'no improvement of a figure of the test set, with privacy.test_set = "public"; or after a time'


def refuse_broken_promises(federation: FederationConfig, mistakes: Mistakes) -> None:
    """Add what contradicts the privacy of a federation; nothing where it has none."""
    privacy = federation.privacy
    if privacy is None:
        return
    _refuse_unbounded(federation, privacy, mistakes)
    _refuse_stop(federation, privacy, mistakes)
    if federation.task.name == "csv":
        _refuse_tables(federation, privacy, mistakes)
    if privacy.unit == MEMBER and "*" not in federation.gossip.share:
        text = "with privacy of members what a node keeps to itself has no noise, and scores and exports would tell it"
        mistakes.add(text, "gossip.share", list(federation.gossip.share), 'the whole model, ["*"]; or unit = "record"')
    members = len(federation.present)
    if privacy.unit == MEMBER and privacy.delta * members > 1.0:
        text = f"is more than one in {members} members: all of one member might be told"
        mistakes.add(text, "privacy.delta", privacy.delta, f"at most {1 / members:.2g}, better a tenth of that")


def _refuse_unbounded(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    """A budget is planned for a number of rounds, which no charter may raise where it says how large the budget is."""
    if privacy.rounds is None and federation.training.rounds is None:
        text = "is missing, and training has no rounds either: the budget is planned for a number of them"
        mistakes.add(text, "privacy.rounds", None, PRIVACY["rounds"].allowed)
    elif privacy.rounds is None and privacy.noise is not None and federation.admin:
        text = "is missing: with the noise given, who may change the rounds of training would raise the budget"
        mistakes.add(text, "privacy.rounds", None, f"{PRIVACY['rounds'].allowed}; or epsilon in place of noise")


def _refuse_tables(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    options = federation.task.options
    if options.get("schema") == "agreed":
        text = "to agree on it nodes tell what their tables hold, without noise, while [privacy] is there"
        mistakes.add(text, "task.schema", "agreed", "the name of a schema file, such as `p2pfl schema` writes")
    for key in ("partition", "path"):
        if options.get(key) is not None:
            text = "one table is shared out among the nodes, and one row more would move others to other nodes"
            mistakes.add(text, f"task.{key}", options[key], "path in the [data] of each node, a table of its own")
    if privacy.test_set == PUBLIC and options.get("holdout"):
        text = "the test set is held out of each node's own rows (task.holdout), and scores on it would tell of them"
        mistakes.add(text, "privacy.test_set", PUBLIC, '"private"; or test_path in [data], a table that is nobody\'s')


def _refuse_stop(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    told = federation.training.stop
    stop = None if told is None else parse_stop(told)
    if stop is None or stop.patience is None:
        return
    if stop.of == "loss":
        mistakes.add("when a node stops would tell of its own rows, without noise", "training.stop", told, ON_PUBLIC)
    elif privacy.test_set == PRIVATE:
        mistakes.add("when a node stops would tell of a private test set", "training.stop", told, ON_PUBLIC)
