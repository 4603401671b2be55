"""Read a federation file and a node's own file, once, at the edge, into the frozen values of `model`.

The members of the federation are exactly the keys in its `[[node]]` tables. A node's own file is `<federation
folder>/<node name>/node.toml`, which may be missing.

Settings that contradict `[privacy]` are found here: they would reveal rows without noise, have no bound, or cannot be
in sums. Checks that need the model, the data or imported code are in `p2pfl.methods` and `learn.privacy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from p2pfl.config import model, sections
from p2pfl.config.charter import FEWEST, Charter, amended, contradiction
from p2pfl.config.graph import DisconnectedGraph, MemberGraph, read_edges, read_graph
from p2pfl.config.members import members_file, read_members_file
from p2pfl.config.model import (
    FederationConfig,
    GossipConfig,
    Member,
    NodeConfig,
    OwnNetwork,
    TaskConfig,
    TrainingConfig,
)
from p2pfl.config.sections import (
    PRIVATE,
    PUBLIC,
    HideConfig,
    PrivacyConfig,
    parse_schedule,
    parse_stop,
    read_privacy,
    read_stats,
)
from p2pfl.config.tables import Mistakes, exclusive, port_of, read_document, read_row, read_table, require, unknown_keys
from p2pfl.errors import UserError

Config = TypeVar("Config", FederationConfig, NodeConfig)

FILE_NAME = "federation.toml"
HEAD_DEFAULTS: dict[str, Any] = {"seed": 0, "topology": "ring", "name": ""}


def load_config(path: Path | str) -> FederationConfig:
    """Load the federation that a file describes; a folder stands for the `federation.toml` in it.

    Raises UserError: the first mistake in the file; `federation_mistakes` has them all; DisconnectedGraph: its graph is
    not connected, and nothing else is wrong.
    """
    return _first(*read_federation(path))


def _first(value: Config | None, mistakes: Sequence[UserError]) -> Config:
    """Return what was read. Raises UserError: the first mistake."""
    for mistake in mistakes:
        raise mistake
    if value is None:
        raise AssertionError("nothing was read, and no mistake")
    return value


def federation_mistakes(path: Path | str) -> list[UserError]:
    """Return all mistakes in a federation file; empty if it can be loaded."""
    return read_federation(path)[1]


def read_federation(path: Path | str) -> tuple[FederationConfig | None, list[UserError]]:
    """Read the federation and its mistakes; it is None if one is worse than a disconnected graph."""
    file = federation_file(path)
    try:
        document = read_document(file)
    except UserError as error:
        return None, [error]
    mistakes = Mistakes(file)
    federation = federation_from(document, mistakes)
    if federation.admin and not mistakes.errors:
        federation, in_members = _with_members_file(federation)
        mistakes.errors.extend(in_members)
    usable = all(isinstance(mistake, DisconnectedGraph) for mistake in mistakes.errors)
    return (federation if usable else None), mistakes.errors


def _with_members_file(federation: FederationConfig) -> tuple[FederationConfig, list[UserError]]:
    """Apply the charter next to the federation file, if there is one. It lists the members."""
    path = members_file(federation)
    if not path.exists():
        return federation, []
    mistakes = Mistakes(path)
    try:
        charter = read_members_file(path, federation, mistakes)
    except UserError as error:
        return federation, [error]
    if charter is None:
        return federation, mistakes.errors
    if wrong := contradiction(federation, charter):
        allowed = "the members.toml that belongs to this federation.toml"
        mistakes.add(wrong, "member", None, allowed)
    current = amended(federation, charter)
    return replace(current, notices=(*current.notices, *_edited(federation, charter))), mistakes.errors


def _edited(federation: FederationConfig, charter: Charter) -> list[str]:
    """Warn about keys that were changed in the file after its first charter was signed: these changes are ignored."""
    if charter.version > 1:
        return []
    then: list[tuple[str, object, object]] = [
        ("addresses", [node.address for node in federation.members], [node.address for node in charter.members]),
        ("topology", federation.topology, charter.topology),
        ("rounds", federation.training.rounds, charter.rounds),
    ]
    what = ", ".join(name for name, here, there in then if here != there)
    text = f"{federation.path}: its {what} are ignored, because members.toml has others: `p2pfl member set`"
    return [text] if what else []


def federation_file(path: Path | str) -> Path:
    path = Path(path)
    return path / FILE_NAME if path.is_dir() else path


def federation_from(document: dict[str, Any], mistakes: Mistakes) -> FederationConfig:
    """Build a federation from a document with the tables of a federation file; its mistakes are added to `mistakes`."""
    unknown_keys(document, "", model.TABLES, mistakes)
    table = document.get("federation", {})
    require(table, "federation.", ("name",), model.FEDERATION, mistakes)
    head: dict[str, Any] = HEAD_DEFAULTS | read_table(table, "federation.", model.FEDERATION, mistakes)
    task = _task(document.get("task", {}), mistakes)
    training = _training(document.get("training", {}), mistakes)
    if "privacy" in document and training.setdefault("when_through", "mix") != "mix":
        text = "with [privacy] a node trains no rounds beyond those that are planned"
        mistakes.add(text, "training.when_through", training["when_through"], "mix")
    gossip = GossipConfig(**read_table(document.get("gossip", {}), "gossip.", model.GOSSIP, mistakes))
    network = read_table(document.get("network", {}), "network.", model.NETWORK, mistakes)
    members = read_members(document.get("node", []), mistakes)
    graph = read_graph(head["topology"], members, head["seed"], mistakes) if members else MemberGraph()
    edges, schedule, weights = graph
    own = read_edges(document.get("edge", []), members, edges, mistakes)
    if own and "admin" in head:
        allowed = "no [[edge]] where members may change, or no admin: gossip.compressor is for all edges"
        mistakes.add("cannot be combined with federation.admin", "edge", f"a list of {len(own)}", allowed)
    privacy, hides = read_privacy(document.get("privacy"), mistakes)
    federation = FederationConfig(
        path=mistakes.file.absolute(),
        **head,
        task=task,
        training=TrainingConfig(**training),
        gossip=gossip,
        members=members,
        edges=edges,
        schedule=schedule,
        edge_compressors=own,
        edge_weights={} if "admin" in head else weights,
        notices=_unused_weights(weights, head, gossip.rule),
        founders=tuple(member.key for member in members) if "admin" in head else (),
        privacy=privacy,
        hides=hides,
        **network,
    )
    if federation.in_step_by and federation.training.closing != "mix":
        text = (
            f"with {federation.in_step_by} each round is a sum of all nodes: no closing rounds follow that could train"
        )
        mistakes.add(text, "training.closing", federation.training.closing, "mix")
    refuse_broken_promises(federation, mistakes)
    notices = (*federation.notices, *_about_closing(federation), *_without_effect(federation))
    return replace(federation, notices=notices)


def _unused_weights(weights: Mapping[tuple[int, int], float], head: Mapping[str, Any], rule: str) -> tuple[str, ...]:
    """Warn that a federation whose members may change, or with a robust rule, does not mix with a file's weights."""
    if not weights:
        return ()
    from p2pfl.aggregate import liars_of  # noqa: PLC0415 - few files have weights

    why = "with admin keys the graph may change with the members" if "admin" in head else ""
    why = why or ("the degrees bound what a robust rule takes from a neighbor" if liars_of(rule) else "")
    return (f"the weights in {head['topology']} are not used: {why}",) if why else ()


def _about_closing(federation: FederationConfig) -> Iterator[str]:
    """Warn that there are no closing rounds, where a rule or they themselves count; or that no budget pays for them."""
    training, privacy = federation.training, federation.privacy
    trains = training.closing == "train"
    if training.closing_rounds == 0 and (trains or federation.gossip.rule != "mean"):
        yield "training.closing_rounds is 0: nodes end as far apart as training leaves them, at their full rate"
    if trains and privacy and privacy.rounds and privacy.rounds < (training.trained_rounds or 0):
        yield f"privacy.rounds is {privacy.rounds}: closing rounds that it does not pay for only mix"


OF_GOSSIP = {
    "training": ("speed_correction", "closing_rounds"),
    "gossip": ("compressor", "staleness", "gamma", "max_wait_s", "exchanges_per_s", "audit_every"),
}
"""Keys by which sums do not go."""


def _without_effect(federation: FederationConfig) -> Iterator[str]:
    if not federation.in_step_by or federation.grows_trees:
        return
    usual = {"training": TrainingConfig(), "gossip": GossipConfig()}
    given = [
        f"{table}.{key}"
        for table, keys in OF_GOSSIP.items()
        for key in keys
        if getattr(getattr(federation, table), key) != getattr(usual[table], key)
    ]
    given += ["edge.compressor"] if federation.edge_compressors else []
    if given:
        yield f"without effect with {federation.in_step_by}, as nothing is gossiped: {', '.join(given)}"


def _task(table: Any, mistakes: Mistakes) -> TaskConfig:
    """Read `[task]`: keys other than `name` are the task's own, and the task checks them."""
    options = {key: value for key, value in table.items() if key != "name"} if isinstance(table, dict) else {}
    named = {"name": table["name"]} if isinstance(table, dict) and "name" in table else {}
    known = read_table(named if isinstance(table, dict) else table, "task.", model.TASK, mistakes)
    return TaskConfig(**known, options=options)


def _training(table: Any, mistakes: Mistakes) -> dict[str, Any]:
    """Read `[training]`. If one of two exclusive keys is set, the default of the other does not apply."""
    values = read_table(table, "training.", model.TRAINING, mistakes)
    for usual, other in (("rounds", "time_s"), ("local_steps", "local_epochs")):
        exclusive(table, "training.", usual, other, mistakes)
        if other in values:
            values.setdefault(usual, None)
    if "stop" in values:
        _bound_by_stop(values, mistakes)
    return values


def _bound_by_stop(values: dict[str, Any], mistakes: Mistakes) -> None:
    """Apply `stop`. Without `rounds`, a time in it limits training like `time_s`, and a patience needs some limit."""
    stop = parse_stop(values["stop"])
    if values.get("rounds") is None and stop.after_s is not None:
        values |= {"rounds": None, "time_s": min(stop.after_s, values.get("time_s", stop.after_s))}
    values.setdefault("rounds", sections.MOST_ROUNDS)
    if stop.patience is not None and stop.of != "loss" and values.get("evaluate_every") == 0:
        allowed = "evaluate_every from 1, or the loss of local rounds: no improvement in K rounds"
        mistakes.add("nothing is tested before the end", "training.stop", values["stop"], allowed)


def read_members(tables: Any, mistakes: Mistakes) -> tuple[Member, ...]:
    """Read the members in the file's order; empty if any of them is unusable."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.add("must be a list of tables", "node", None, "[[node]] once for each node")
        return ()
    before = len(mistakes.errors)
    values = [read_row(table, f"node[{index}].", model.MEMBER, mistakes) for index, table in enumerate(tables)]
    if len(tables) < FEWEST:
        mistakes.add("too few nodes", "node", len(tables), f"{FEWEST} or more [[node]] tables")
    for key in model.MEMBER:
        _refuse_repetition(key, values, mistakes)
    if len(mistakes.errors) > before:
        return ()
    return tuple(Member(index=index, **{"address": None} | value) for index, value in enumerate(values))


def _refuse_repetition(key: str, values: list[dict[str, Any]], mistakes: Mistakes) -> None:
    first: dict[Any, int] = {}
    for index, value in enumerate(values):
        if key not in value:
            continue
        if value[key] in first:
            other = first[value[key]]
            both = f"{_called(other, values)} and {_called(index, values)} have the same {key}"
            shown = None if isinstance(value[key], bytes) else value[key]
            mistakes.add(both, f"node[{index}].{key}", shown, "a different one for each node")
        else:
            first[value[key]] = index


def _called(index: int, values: list[dict[str, Any]]) -> str:
    name = values[index].get("name")
    return f"node[{index}] ({name})" if name else f"node[{index}]"


NODE_FILE_NAME = "node.toml"


def node_file(federation: FederationConfig, name: str) -> Path:
    """Return the default path of a member's node file."""
    return federation.path.parent / name / NODE_FILE_NAME


def load_node(path: Path | str, federation: FederationConfig, name: str | None = None) -> NodeConfig:
    """Load the node file at `path`, or in that folder, or defaults if there is none, of the member `name`: by default
    that of the folder. Raises UserError: the first mistake, or there is no such member; `node_mistakes` has all.
    """
    return _first(*_read_node(Path(path), federation, name))


def load_stranger(path: Path | str, name: str) -> NodeConfig:
    """Load the file of a node that may not be a member yet. Raises UserError: there is a mistake in it."""
    return _first(*_read_node(Path(path), None, name))


def node_mistakes(path: Path | str, federation: FederationConfig) -> list[UserError]:
    """Return all mistakes in a node file; empty if it can be loaded."""
    return _read_node(Path(path), federation, None)[1]


def _read_node(
    path: Path, federation: FederationConfig | None, name: str | None
) -> tuple[NodeConfig | None, list[UserError]]:
    file = (path if path.suffix == ".toml" else path / NODE_FILE_NAME).absolute()
    member, name = Member(index=0, name=name or "", key=b"", address=None), name or file.parent.name
    try:
        member = member if federation is None else find_member(federation, name)
        document = read_document(file) if file.exists() else {}
    except UserError as error:
        return None, [error]
    mistakes = Mistakes(file)
    node = _node(document, member, mistakes, federation)
    return (None if mistakes.errors else node), mistakes.errors


def find_member(federation: FederationConfig, name: str) -> Member:
    """Return the member called `name`. Raises UserError: there is none, or it was removed."""
    named = [member for member in federation.members if member.name == name]
    present = next((member for member in named if not member.retired), None)
    if present is not None:
        return present
    text = "no such node"
    if named:
        version = "" if federation.edition is None else f", in version {federation.edition.version} at the latest"
        text = f"was removed from this federation{version}"
    names = ", ".join(member.name for member in federation.present)
    raise UserError(text, file=federation.path, key="node", value=name, allowed=names)


def _node(
    document: dict[str, Any], member: Member, mistakes: Mistakes, federation: FederationConfig | None
) -> NodeConfig:
    """Build a node's settings; those that it leaves out may stand in the file of its federation."""
    unknown_keys(document, "", ("node", "network", "data", "stats"), mistakes)
    data = document.get("data", {})
    if not isinstance(data, dict):
        mistakes.add("must be a table", "data", None, "[data]")
        data = {}
    unknown_keys({"reload_s": data.pop("reload_s")} if "reload_s" in data else {}, "data.", (), mistakes)
    values = read_table(document.get("node", {}), "node.", model.NODE, mistakes)
    computed = {key: values.pop(key) for key in model.COMPUTE if key in values}
    values["compute"] = model.Compute(file=mistakes.file, **computed)
    values.setdefault("listen", f"0.0.0.0:{port_of(member.address) if member.address else 0}")
    network = read_table(document.get("network", {}), "network.", model.OWN_NETWORK, mistakes)
    values["discovery"] = network.pop("discovery", federation is not None and federation.discovery)
    values["interfaces"] = network.pop("interfaces", ())
    common = () if federation is None else federation.relays
    values["relays"] = tuple(dict.fromkeys([*common, *network.pop("relays", ())]))
    folder = mistakes.file.parent
    if "relay_token" in network:
        values["relay_token"] = folder / Path(network.pop("relay_token")).expanduser()
    values["network"] = _own_network(network, folder, mistakes)
    for key in ("key_file", "state_dir", "checkpoint_dir"):
        values[key] = folder / Path(values.get(key, NodeConfig.__dataclass_fields__[key].default)).expanduser()
    values["stats"] = read_stats(document.get("stats"), mistakes)
    return NodeConfig(path=mistakes.file, name=member.name, data=data, **values)


def _own_network(values: dict[str, Any], folder: Path, mistakes: Mistakes) -> OwnNetwork:
    for name, partner in (("cert", "key"), ("key", "cert"), ("proxy_password_file", "proxy")):
        if name in values and partner not in values:
            mistakes.add(f"is of no use without network.{partner}", f"network.{name}", values[name], "both or none")
    for key in ("cert", "key", "proxy_password_file"):
        if key in values:
            values[key] = folder / Path(values[key]).expanduser()
    return OwnNetwork(**values)


ON_PUBLIC = 'no improvement of a metric of the test set, with privacy.test_set = "public"; or after a time'


def refuse_broken_promises(federation: FederationConfig, mistakes: Mistakes) -> None:
    """Report what contradicts a federation's privacy promise, or its hidden models; nothing if it has neither."""
    privacy = federation.privacy
    if federation.hides is not None:
        _refuse_unhidden(federation, federation.hides, mistakes)
    if privacy is None:
        return
    _refuse_unbounded(federation, privacy, mistakes)
    _refuse_stop(federation, privacy, mistakes)
    if privacy.unit == sections.RECORD and federation.training.logit_adjust:
        text = "the node's own counts of labels would shape every step, without noise"
        mistakes.add(text, "training.logit_adjust", federation.training.logit_adjust, '0; or unit = "member"')
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
    if privacy.unit == sections.MEMBER and "*" not in federation.gossip.share:
        text = 'with unit = "member" personal parameters get no noise, and scores and exports would reveal them'
        mistakes.add(text, "gossip.share", list(federation.gossip.share), 'the whole model, ["*"]; or unit = "record"')
    members = len(federation.present)
    if privacy.unit == sections.MEMBER and privacy.delta * members > 1.0:
        text = f"exceeds one in {members} members: everything about one member might be revealed"
        mistakes.add(text, "privacy.delta", privacy.delta, f"at most {1 / members:.2g}, better a tenth of that")


def _refuse_unbounded(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    """Require the number of rounds that the budget is for. If the noise is fixed, no charter may raise it."""
    if privacy.rounds is None and federation.training.rounds is None:
        text = "is missing, and so is training.rounds: the budget is planned for a number of rounds"
        mistakes.add(text, "privacy.rounds", None, sections.PRIVACY["rounds"].allowed)
    elif privacy.rounds is None and privacy.multiplier is not None and federation.admin:
        text = "is missing: the noise is fixed, so whoever may change training.rounds could raise the budget"
        mistakes.add(text, "privacy.rounds", None, f"{sections.PRIVACY['rounds'].allowed}; or epsilon instead of noise")


def _refuse_unshared(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    """Report what a sum of all members cannot do, or too few members for one."""
    members, least = len(federation.present), privacy.least_of(len(federation.present))
    _refuse_out_of_step(federation, privacy.colluders, "noise of each node's own: no privacy.noise", mistakes)
    if members < 3:
        return
    if least > members:
        mistakes.add("more than there are members", "privacy.least", least, f"3 to {members}")
    elif privacy.colluders > least - 2:
        text = f"too many: a sum has as few as {least} members, of whom two must be honest"
        mistakes.add(text, "privacy.colluders", privacy.colluders, f"1 to {least - 2}, or a larger privacy.least")


def _refuse_unhidden(federation: FederationConfig, hides: HideConfig, mistakes: Mistakes) -> None:
    """Report what shows a node's model, or what hidden models cannot do."""
    if federation.grows_trees:
        text = "trees grow by secure sums anyway: no node sees more of another one"
        mistakes.add(text, "privacy.hide", hides.hide, "no privacy.hide with trees; or model = linear or mlp")
        return
    _refuse_out_of_step(federation, hides.colluders, "no privacy.hide, by which nodes gossip", mistakes)
    if federation.training.keep_optimizer:
        text = "a round that is trained again would give another change, and the difference is this node's alone"
        mistakes.add(text, "training.keep_optimizer", value=True, allowed="false; or no privacy.hide")
    if federation.method.startswith("variate") and federation.training.local_epochs is not None:
        text = "variate compares the mean gradients of rounds, which must have equally many steps"
        mistakes.add(text, "training.local_epochs", federation.training.local_epochs, "local_steps; or normalized")
    members = len(federation.present)
    if 3 <= members < hides.colluders + 2:
        text = f"too many: of the {members} members of a sum two must be honest"
        mistakes.add(text, "privacy.colluders", hides.colluders, f"1 to {members - 2}, or more nodes")


def _refuse_out_of_step(federation: FederationConfig, colluders: int, instead: str, mistakes: Mistakes) -> None:
    """Report what cannot be where each round is one sum of all members; `instead` is another way than sums."""
    training, kind, members = federation.training, federation.in_step_by, len(federation.present)
    if members < 3:
        text = f"too few nodes for {kind}: of the sum of two, each knows the other's part"
        mistakes.add(text, "node", members, f"3 or more, or {instead}")
    quorum = (len(federation.members) + colluders) // 2 + 1
    if members < quorum and federation.retired:
        text = f"too few nodes for {kind}: {quorum} must sign each sum, as removed members count too"
        mistakes.add(text, "node", members, f"{quorum} or more, or a federation without those that were removed")
    for key, spec in (
        ("training.time_s", training.time_s),
        ("training.stop", training.stop),
        ("training.schedule", training.schedule if parse_schedule(training.schedule).by_time else None),
    ):
        if spec is not None:
            text = f"cannot be combined with {kind}: all nodes go in step, by the number of rounds"
            mistakes.add(text, key, spec, f"training.rounds; or {instead}")
    able = ("plain",) if federation.hides is None else ("normalized", "plain", "prox", "variate")
    methods, is_allowed = " or ".join(able), federation.method.partition(":")[0] in able
    for key, value, usual in (
        ("gossip.rule", federation.gossip.rule, "mean"),
        ("training.method", methods if is_allowed else federation.method, methods),
        ("gossip.share", list(federation.gossip.share), ["*"]),
    ):
        if value != usual:
            text = f"cannot be combined with {kind}: a round is one sum, in which no node's part is seen alone"
            mistakes.add(text, key, value, f"{usual}; or {instead}")


def _refuse_tables(federation: FederationConfig, privacy: PrivacyConfig, mistakes: Mistakes) -> None:
    options = federation.task.options
    if options.get("schema") in ("agreed", "agreed-openly"):
        text = "to agree on a schema, nodes sum or send statistics without noise; [privacy] forbids that"
        mistakes.add(text, "task.schema", options["schema"], "the name of a schema file, such as `p2pfl new` writes")
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
