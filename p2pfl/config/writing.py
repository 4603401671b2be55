"""New contents: the text of new files, and the next charter, not signed yet.

In a new file every key appears with its default, inactive until the `#` is removed, and with an explanation: its
description in the tables of `model`, which a comment that begins with `:`, `;` or `,` continues and any other replaces.

In charters an index is never reused: a new member gets the next one, a removed member keeps its row. A replacement
takes over the edges of the member that it replaces. After any other change of members, the topology's spec is resolved
again for the current ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2pfl.config import model
from p2pfl.config.charter import FEWEST, Charter, realm_of
from p2pfl.config.graph import read_graph
from p2pfl.config.load import find_member
from p2pfl.config.model import Edges, FederationConfig, GossipConfig, Member, TrainingConfig, usual_method
from p2pfl.config.sections import PRIVACY
from p2pfl.config.tables import Kinds, Mistakes, port_of
from p2pfl.errors import UserError
from p2pfl.limits import MOST_MEMBERS

SCHEMAS = ".schema"
"""The folder beside a federation file with the JSON Schemas that editors read: `schemas` writes them."""
HAS_SCHEMA = f"#:schema {SCHEMAS}/federation.json\n"
"""The first line of a new federation file."""
COMMENT_COLUMN = 40
TABLES: Mapping[str, Kinds] = {
    "federation": model.FEDERATION,
    "task": model.TASK,
    "training": model.TRAINING,
    "gossip": model.GOSSIP,
    "privacy": PRIVACY,
    "network": model.NETWORK,
    "node": model.NODE,
}
_TABLE = re.compile(r"(?:# +)?\[(\w+)\]")
_KEY = re.compile(r"(?:# +)?(\w+) = ")

_TRAINING, _GOSSIP = TrainingConfig(), GossipConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMember:
    """A member in a new file, with its public key as text; without an `address` it dials, or is found on the LAN."""

    name: str
    key: str
    address: str | None


def federation_text(
    *,
    name: str,
    topology: str,
    task: str,
    members: Sequence[NewMember],
    seed: int = 0,
    rule: str = _GOSSIP.rule,
    admin: str | None = None,
    discovery: bool = False,
    relays: Sequence[str] = (),
    task_keys: str = "",
    training: Mapping[str, Any] | None = None,
    hides: bool = False,
) -> str:
    """Return the text of a federation file. Arguments must already be valid: only the rule, which may name a file, is
    escaped. `task_keys` are additional lines for `[task]`, `training` has keys that differ from the defaults.

    `admin` is the public key of the person who may change the members while nodes run; with `discovery` nodes find
    each other on the LAN, with `relays` they meet there; if it `hides`, each round is a secure sum.
    """
    signs = "" if admin is None else _ADMIN.format(key=admin)
    head = _HEAD.format(name=name, topology=topology, task=task, seed=seed, admin=signs, keys=task_keys)
    network = _NETWORK.format(
        line="discovery = true" if discovery else "# discovery = false",
        relays=f"relays = {toml_value(relays)}" if relays else "# relays = []",
    )
    tuning = _tuning(rule, training or {}, hides=hides) + (_HIDDEN if hides else _PRIVATE)
    return HAS_SCHEMA + _aligned(head + tuning + network) + _members(members)


def node_text(
    member: NewMember,
    *,
    reachable: bool = False,
    compute: Mapping[str, str] | None = None,
    data: Mapping[str, Any] | None = None,
) -> str:
    """Return a node file: `reachable` from other machines, with device and precision (`compute`) and `[data]`."""
    port = None if member.address is None else port_of(member.address)
    listen = _ANYWHERE if port is None else (_REACHABLE if reachable else _LOCAL).format(port=port)
    lines = {key: f'{key} = "{value}"' if (value := (compute or {}).get(key)) else off for key, off in _COMPUTE.items()}
    keys = "".join(f"{key} = {toml_value(value)}\n" for key, value in (data or {}).items())
    return _aligned(_NODE.format(name=member.name, schemas=SCHEMAS, listen=listen, **lines)) + (keys or _NO_DATA)


def toml_value(value: Any) -> str:
    """Write a value as TOML: JSON's texts, numbers, booleans and lists are TOML; nested tables get braces."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_value(str(key))} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    text = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")


def _aligned(text: str) -> str:
    """Align the comments after values in one column."""
    lines: list[str] = []
    kinds: Kinds = {}
    for line in text.split("\n"):
        if table := _TABLE.match(line):
            kinds = TABLES.get(table[1], {})
        code, _, comment = line.partition("  # ")
        key = _KEY.match(code)
        if key and key[1] in kinds and comment[:1] in ("", ":", ";", ","):
            comment = kinds[key[1]].means + comment
        lines.append(f"{code:{COMMENT_COLUMN}}  # {comment}" if comment else code)
    return "\n".join(lines)


def _tuning(rule: str, given: Mapping[str, Any], *, hides: bool) -> str:
    from p2pfl.aggregate import liars_of  # noqa: PLC0415 - `p2pfl new --help` stays instant

    given = {**beside(rule, given.get("optimizer", "sgd")), **given}
    gossip = {key: getattr(_GOSSIP, key) for key in GossipConfig.__slots__}
    gossip |= {"share": _GOSSIP.share[0], "rule": json.dumps(rule), "protects": _protects(liars_of(rule))}
    gossip["vitals"] = json.dumps(_GOSSIP.vitals)
    training = {key: given.get(key, getattr(_TRAINING, key)) for key in TrainingConfig.__slots__}
    training["method"] = given.get("method", "plain" if hides else usual_method(rule))
    training["when_through"] = "mix" if hides else training["when_through"]
    training["keep_optimizer"] = json.dumps(_TRAINING.keep_optimizer)
    text = _TUNING.format(**training, **gossip)
    for key in given:
        text = text.replace(f"\n# {key} = ", f"\n{key} = ")
    return text


def beside(rule: str, optimizer: str = "sgd") -> dict[str, Any]:
    """Return the keys of `[training]` that a new federation has beside a rule that bears liars."""
    from p2pfl.aggregate import liars_of  # noqa: PLC0415 - as above

    if not liars_of(rule):
        return {}
    return {"closing": "train", **({"momentum": 0.5} if optimizer == "sgd" else {})}


def _protects(liars: int) -> str:
    """Describe in one line how a rule protects against malicious neighbors."""
    if not liars:
        return "trusts every neighbor: a malicious one can ruin the model; see `p2pfl list rules`"
    who = "one neighbor lies" if liars == 1 else f"{liars} neighbors lie"
    return f"bounds the harm if {who} to a node; it needs {2 * liars + 1} or more there to mix: `p2pfl check`"


def _members(members: Sequence[NewMember]) -> str:
    tables = [
        f'[[node]]\nname = "{member.name}"\nkey = "{member.key}"\n'
        + (f'address = "{member.address}"\n' if member.address is not None else "")
        for member in members
    ]
    return _MEMBERS + "\n".join(tables)


_HEAD = """\
# One federation: the same file on every node. Try it: p2pfl check . ; p2pfl launch .
# A line that starts with '#' and a key shows the default; remove the '#' to change it.

[federation]
name = "{name}"
seed = {seed}
topology = "{topology}"
{admin}
[task]
name = "{task}"
{keys}
"""

_ADMIN = """\
# `p2pfl member` signs a change into members.toml; topology, rounds and the members below are only how it began.
admin = ["{key}"]
"""

_TUNING = """\
[training]
rounds = {rounds}  # ; or time_s = 3600.0, or stop = "no improvement in 20 rounds"
local_steps = {local_steps}  # ; or local_epochs = 1
batch_size = {batch_size}
optimizer = "{optimizer}"  # : sgd, adam or adamw
learning_rate = {learning_rate}
# schedule = "{schedule}"  # , such as "cosine:rounds=40,warmup=5"
# momentum = {momentum}
# keep_optimizer = {keep_optimizer}
# weight_decay = {weight_decay}
# method = "{method}"
# speed_correction = {speed_correction}
# closing_rounds = {closing_rounds}
# closing = "{closing}"
# logit_adjust = {logit_adjust}
# when_through = "{when_through}"
# evaluate_every = {evaluate_every}

[gossip]
compressor = "{compressor}"
# share = "{share}"  # , such as "backbone.*", or a list
share_frozen = false
rule = {rule}  # {protects}
# staleness = "{staleness}"
# gamma = {gamma}
# start_wait_s = {start_wait_s}
# linger_s = {linger_s}
# max_wait_s = {max_wait_s}
# exchanges_per_s = {exchanges_per_s}
# audit_every = {audit_every}
# vitals = {vitals}

"""

_PRIVATE = """\
# What a node sends reveals something about its data. Noise can limit it: docs/how-to/privacy.md, `p2pfl check`,
# `p2pfl privacy begin`.
#   [privacy]
#   unit = "record"
#   epsilon = 8.0  # ; or noise = 1.1
#   noise = "shared"  # one noise for the sum of all nodes, in step: docs/how-to/shared-noise.md
#   delta = 1e-5
#   clip = 1.0
#   test_set = "private"
# Or each round is a secure sum, without noise: no neighbor sees a node's model, but nothing bounds what sums reveal.
#   [privacy]
#   hide = "models"
#   colluders = 1

"""

_HIDDEN = """\
[privacy]
hide = "models"
# bits = 8
# colluders = 1
# outer = "adam"

"""

_NETWORK = """\
[network]
{line}
{relays}  # : docs/how-to/relay.md

"""

_MEMBERS = """\
# A slow link may have its own compressor; the two must be neighbors:
#   [[edge]]
#   between = ["node0", "node1"]
#   compressor = "rotate+sign"

# The members: nodes whose key is not here are refused. A node creates its key with `p2pfl key NAME/node.key`;
# only the public key that this prints belongs here. For several machines, set addresses that the others can reach.

"""

_LOCAL = 'listen = "127.0.0.1:{port}"  # this machine only; "0.0.0.0:{port}" if others must reach it'
_REACHABLE = 'listen = "0.0.0.0:{port}"  # "127.0.0.1:{port}" for this machine only'

_ANYWHERE = (
    '# listen = "0.0.0.0:0"  # any free port, which is announced; "0.0.0.0:8470" fixes it, such as for a firewall'
)

_COMPUTE = {
    "device": '# device = "cpu"  # ; or cuda, cuda:1, mps',
    "precision": '# precision = "float32"',
}

_NODE = """\
#:schema ../{schemas}/node.json
# Settings of {name} alone. This folder stays on {name}: node.key is its secret identity.
# A line that starts with '#' and a key shows the default. Paths are relative to this file.

[node]
{listen}
# Others dial the port in this node's address. If a router forwards another port to it: forwarded_port = 9000
# key_file = "node.key"
# state_dir = "state"
# status_listen = "127.0.0.1:0"
# status_names = []  # , such as ["{name}.local"]
# durability = "auto"
# snapshot_s = 60.0
# threads = 1
# nice = 0
{device}
{precision}
# If a step takes too much memory, at most so many rows of a batch are computed at once: micro_batch_size = 4
# compile = false
# checkpoint_every = 0
# checkpoints_kept = 3
# checkpoint_dir = "checkpoints"

[data]  # for the task, which finds these keys in `node.local`
"""
_NO_DATA = '# path = "data.npz"\n'

TASK_TEXT = '''\
"""The learning task of this federation. Put in your own model and data; every node runs the same file."""

import torch

from p2pfl import Task
from p2pfl.learn.digits import load_digits


def data(node):
    """This node's training set, and the test set that all nodes share (or None).

    Each is a pair (inputs, targets) of arrays or tensors with one row per sample. Your own may come from
    np.load(node.path()), where `path` is in the [data] table of this node's node.toml.
    """
    (inputs, targets), test = load_digits()
    rows = node.partition(targets, "dirichlet:0.5")  # this node's own share, unlike the others'
    return (inputs[rows], targets[rows]), test


def model():
    """Map 64 pixels to one score for each of ten digits."""
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


task = Task(model=model, data=data)  # cross entropy and accuracy, unless loss= and metrics= say otherwise
'''


def successor(federation: FederationConfig) -> Charter:
    """Keep members and graph and increase the version; the first charter of a federation is made so, too."""
    edition = federation.edition
    return Charter(
        realm=realm_of(federation),
        version=1 if edition is None else edition.version + 1,
        previous=b"" if edition is None else edition.digest,
        topology=federation.topology,
        rounds=federation.training.rounds,
        members=federation.members,
        edges=federation.edges,
        schedule=federation.schedule,
    )


def with_member(federation: FederationConfig, *, name: str, key: bytes, address: str | None) -> Charter:
    """Add a member. Raises UserError: the name or the key is taken, or there is no such graph with one more member."""
    _require_new(federation, name=name, key=key)
    _require_free(federation.present, name, address)
    newcomer = Member(index=len(federation.members), name=name, key=key, address=address)
    return _resolved(federation, (*federation.members, newcomer), federation.topology)


def without_member(federation: FederationConfig, name: str) -> Charter:
    """Remove a member. Raises UserError: there is no such member, or no such graph with one member fewer."""
    leaving = find_member(federation, name)
    if len(federation.present) <= FEWEST:
        raise UserError("too few members would be left", key="NAME", value=name, allowed=f"{FEWEST} or more")
    members = _retired(federation.members, leaving)
    return _resolved(federation, members, federation.topology)


def with_replacement(federation: FederationConfig, *, name: str, key: bytes, address: str | None) -> Charter:
    """Replace the key of a name, which keeps its neighbors, and its address if none is given. Raises UserError: there
    is no such member, or the key is taken.
    """
    leaving = find_member(federation, name)
    _require_new(federation, key=key)
    _require_free([member for member in federation.present if member is not leaving], name, address)
    index = len(federation.members)
    newcomer = Member(index=index, name=name, key=key, address=address or leaving.address)

    def moved(edges: Edges) -> Edges:
        ends = (tuple(index if end == leaving.index else end for end in edge) for edge in edges)
        return tuple(sorted((min(edge), max(edge)) for edge in ends))

    return replace(
        successor(federation),
        members=(*_retired(federation.members, leaving), newcomer),
        edges=moved(federation.edges),
        schedule=tuple(moved(edges) for edges in federation.schedule),
    )


def with_settings(
    federation: FederationConfig,
    *,
    rounds: int | None = None,
    topology: str | None = None,
    addresses: Sequence[tuple[str, str | None]] = (),
) -> Charter:
    """Change the rounds, the graph, or members' addresses, possibly to none. Raises UserError: impossible."""
    if rounds is not None and federation.training.rounds is None:
        raise UserError("training is limited by time, not by rounds", file=federation.path, key="training.time_s")
    new = {find_member(federation, name).index: address for name, address in addresses}
    members = tuple(replace(member, address=new.get(member.index, member.address)) for member in federation.members)
    for index, address in new.items():
        others = [member for member in members if member.index != index and not member.retired]
        _require_free(others, members[index].name, address)
    charter = replace(successor(federation), members=members)
    if topology is not None:
        charter = _resolved(federation, members, topology)
    return charter if rounds is None else replace(charter, rounds=rounds)


def _require_new(federation: FederationConfig, *, key: bytes, name: str | None = None) -> None:
    for member in federation.members:
        if member.key == key:
            gone = " and was removed: a key does not come back" if member.retired else ""
            text = f"{member.name} has this key{gone}"
            raise UserError(text, key="REQUEST", allowed="the key of a new member, which makes it itself: `p2pfl join`")
        if member.name == name and not member.retired:
            allowed = f"another name, or `p2pfl member replace` if this is the new {name}"
            raise UserError("the name is taken", key="REQUEST", value=name, allowed=allowed)
    if len(federation.members) >= MOST_MEMBERS:
        raise UserError("too many members, including those that were removed", allowed=f"at most {MOST_MEMBERS}")


def _require_free(others: Sequence[Member], name: str, address: str | None) -> None:
    """Refuse an address that is taken. Raises UserError: one of the `others` already has it."""
    for other in others:
        if address is not None and other.address == address:
            text = f"{other.name} already has the address given for {name}"
            raise UserError(text, key="address", value=address, allowed="a different one for each member")


def _retired(members: Sequence[Member], leaving: Member) -> tuple[Member, ...]:
    return tuple(replace(member, retired=member.retired or member is leaving) for member in members)


def _resolved(federation: FederationConfig, members: tuple[Member, ...], topology: str) -> Charter:
    mistakes = Mistakes(federation.path)
    edges, schedule, _ = read_graph(topology, members, federation.seed, mistakes)
    for mistake in mistakes.errors:
        raise mistake
    return replace(successor(federation), members=members, topology=topology, edges=edges, schedule=schedule)
