"""Find settings in a federation file that contradict `[privacy]`: they would reveal rows without noise, or have no
bound.

Checks that need the model, the data or imported code are in `p2pfl.methods` and `learn.privacy`.
"""

from __future__ import annotations

from p2pfl.config.learning_rate import parse_schedule
from p2pfl.config.model import FederationConfig
from p2pfl.config.privacy import MEMBER, PRIVACY, PRIVATE, PUBLIC, PrivacyConfig
from p2pfl.config.stop import parse_stop
from p2pfl.config.tables import Mistakes

ON_PUBLIC = 'no improvement of a metric of the test set, with privacy.test_set = "public"; or after a time'


def refuse_broken_promises(federation: FederationConfig, mistakes: Mistakes) -> None:
    """Report what contradicts a federation's privacy promise; report nothing if there is none."""
    privacy = federation.privacy
    if privacy is None:
        return
    _refuse_unbounded(federation, privacy, mistakes)
    _refuse_stop(federation, privacy, mistakes)
    if privacy.is_shared:
        _refuse_unshared(federation, privacy, mistakes)
    if federation.grows_trees:
        text = "trees have no noise, so that nothing can be promised about rows: nodes see only sums, but exact ones"
        mistakes.add(text, "task.model", "trees", "linear or mlp with [privacy]; or trees without it")
    if federation.task.name == "csv":
        _refuse_tables(federation, privacy, mistakes)
    if privacy.test_set == PUBLIC and federation.task.name == "lora" and not federation.task.options.get("test_path"):
        text = "each node tests on the last tenth of its own texts, and scores would reveal something about them"
        mistakes.add(text, "privacy.test_set", PUBLIC, '"private"; or test_path in [task], public texts')
    if privacy.unit == MEMBER and "*" not in federation.gossip.share:
        text = 'with unit = "member" personal parameters get no noise, and scores and exports would reveal them'
        mistakes.add(text, "gossip.share", list(federation.gossip.share), 'the whole model, ["*"]; or unit = "record"')
    members = len(federation.present)
    if privacy.unit == MEMBER and privacy.delta * members > 1.0:
        text = f"exceeds one in {members} members: everything about one member might be revealed"
        mistakes.add(text, "privacy.delta", privacy.delta, f"at most {1 / members:.2g}, better a tenth of that")


def _refuse_unbounded(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    """Require a number of rounds, for which the budget is planned. If the noise is fixed, no charter may raise that
    number.
    """
    if privacy.rounds is None and federation.training.rounds is None:
        text = "is missing, and so is training.rounds: the budget is planned for a number of rounds"
        mistakes.add(text, "privacy.rounds", None, PRIVACY["rounds"].allowed)
    elif privacy.rounds is None and privacy.multiplier is not None and federation.admin:
        text = "is missing: the noise is fixed, so whoever may change training.rounds could raise the budget"
        mistakes.add(text, "privacy.rounds", None, f"{PRIVACY['rounds'].allowed}; or epsilon instead of noise")


def _refuse_unshared(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    """Report what a sum of all members cannot do, or too few members for one."""
    members, least = len(federation.present), privacy.least_of(len(federation.present))
    if members < 3:
        text = "too few nodes for shared noise: of the sum of two, each knows the other's part"
        mistakes.add(text, "node", members, "3 or more, or noise of each node's own: no privacy.noise")
    elif least > members:
        mistakes.add("more than there are members", "privacy.least", least, f"3 to {members}")
    elif privacy.colluders > least - 2:
        text = f"too many: a sum has as few as {least} members, of whom two must be honest"
        mistakes.add(text, "privacy.colluders", privacy.colluders, f"1 to {least - 2}, or a larger privacy.least")
    training, quorum = federation.training, (len(federation.members) + privacy.colluders) // 2 + 1
    if members < quorum and federation.retired:
        text = f"too few nodes for shared noise: {quorum} must sign each sum, as removed members count too"
        mistakes.add(text, "node", members, f"{quorum} or more, or a federation without those that were removed")
    for key, spec in (
        ("training.time_s", training.time_s),
        ("training.stop", training.stop),
        ("training.schedule", training.schedule if parse_schedule(training.schedule).by_time else None),
    ):
        if spec is not None:
            text = "cannot be combined with shared noise: all nodes go in step, by the number of rounds"
            mistakes.add(text, key, spec, "training.rounds; or noise of each node's own: no privacy.noise")
    for key, value, usual in (
        ("gossip.rule", federation.gossip.rule, "mean"),
        ("training.method", federation.method, "plain"),
        ("gossip.share", list(federation.gossip.share), ["*"]),
    ):
        if value != usual:
            text = "cannot be combined with shared noise: a round is one sum, in which no node's part is seen alone"
            mistakes.add(text, key, value, f"{usual}; or noise of each node's own: no privacy.noise")


def _refuse_tables(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    options = federation.task.options
    if options.get("schema") in ("agreed", "agreed-openly"):
        text = "to agree on a schema, nodes sum or send statistics without noise; [privacy] forbids that"
        mistakes.add(text, "task.schema", options["schema"], "the name of a schema file, such as `p2pfl schema` writes")
    for key in ("partition", "path"):
        if options.get(key) is not None:
            text = "one table is split among the nodes, and one more row would move other rows between nodes"
            mistakes.add(text, f"task.{key}", options[key], "path in the [data] of each node, to a table of its own")
    if privacy.test_set == PUBLIC and options.get("holdout"):
        text = (
            "the test set is held out of each node's own rows (task.holdout), and its scores "
            "would reveal something about them"
        )
        mistakes.add(text, "privacy.test_set", PUBLIC, '"private"; or test_path in [data], a table of public data')


def _refuse_stop(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    stop_text = federation.training.stop
    stop = None if stop_text is None else parse_stop(stop_text)
    if stop is None or stop.patience is None:
        return
    if stop.of == "loss":
        text = "the time at which a node stops would reveal something about its own rows, without noise"
        mistakes.add(text, "training.stop", stop_text, ON_PUBLIC)
    elif privacy.test_set == PRIVATE:
        text = "the time at which a node stops would reveal something about a private test set"
        mistakes.add(text, "training.stop", stop_text, ON_PUBLIC)
