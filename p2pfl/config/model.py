"""The contents of a federation file and a node file as frozen values, and the keys with their allowed values.

Parsing and error messages are in `load`; these classes only hold the result. Times are in seconds, sizes in bytes. A
default here is the default in the file.

`federation_id` defines what two nodes must agree on before they communicate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from p2pfl.config import sections, tables
from p2pfl.config.sections import NO_STATS, HideConfig, PrivacyConfig, StatsConfig, parse_schedule
from p2pfl.config.tables import CHANGED, NAMED, REQUIRED, Kinds, choice, flag, kinds_of, setting, text
from p2pfl.core.settings import STALENESS, parse_staleness
from p2pfl.specs import number, spelled, whole

Edges = tuple[tuple[int, int], ...]
"""Sorted pairs (i, j) of member indices with i < j."""

USUAL_METHOD, USUAL_ROBUST_METHOD = "variate:beta=0.1", "plain"


def usual_method(rule: str) -> str:
    """Return the default learning method for a rule."""
    return USUAL_METHOD if rule == "mean" else USUAL_ROBUST_METHOD


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """The task. `name` is a built-in one, `file.py:object` (relative to the federation file) or
    `package.module:object`, `options` the remaining keys of `[task]`, which the task itself validates.
    """

    name: str = "digits"
    options: dict[str, Any] = field(default_factory=dict)
    given: Any = field(default=None, compare=False, repr=False)
    """The task object, if a Python program supplied it instead of a name."""


EvaluateEvery = int | Literal["auto"]
TAIL = 0.1
"""The fraction of the learning rate in the last closing round, if closing rounds train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Exactly one of `rounds` and `time_s` limits training, and one of `local_steps` and `local_epochs` a round."""

    rounds: int | None = setting(40, whole(1), "rounds of each node")
    time_s: float | None = setting(
        None, number(0, above=True), "how long each node trains, in seconds, instead of rounds"
    )
    local_steps: int | None = setting(20, whole(1), "optimizer steps per round")
    local_epochs: int | None = setting(
        None, whole(1), "passes over the node's data in one round, instead of local_steps"
    )
    batch_size: int = setting(16, whole(1), "rows of data in one step")
    optimizer: str = setting("sgd", choice("sgd", "adam", "adamw"), "optimizer of the local steps")
    learning_rate: float = setting(0.2, number(0, above=True), "step size of the optimizer")
    schedule: str = setting("constant", sections.schedule(), "learning rate schedule, by rounds or time", counts=NAMED)
    keep_optimizer: bool = setting(
        False, flag(), "true: keep the state of momentum or Adam from round to round", counts=NAMED
    )
    momentum: float = setting(0.0, number(0, 1, below=True), "momentum of sgd")
    weight_decay: float = setting(0.0, number(0), "weight decay of the optimizer")
    method: str | None = setting(None, tables.method(), "the learning method: see `p2pfl list methods`")
    """None means the rule's default (see `FederationConfig.method`)."""
    speed_correction: float = setting(
        1.0, number(1), "largest factor for nodes that take fewer rounds than others; 1 turns it off"
    )
    closing_rounds: int = setting(
        10, whole(0), "rounds at the end, which mix without training unless `closing` says train"
    )
    closing: str = setting(
        "mix",
        choice("mix", "train"),
        "closing rounds only mix, or train at a rate that falls to a tenth, as beside a robust rule",
        counts=CHANGED,
    )
    logit_adjust: float = setting(
        0.0,
        number(0, 10),
        "1: the loss of class labels allows for their shares in the node's own rows, which never leave it",
        counts=CHANGED,
    )
    when_through: str = setting(
        "train",
        choice("train", "mix", "train-on"),
        "a node that finishes first trains some rounds more (train), none (mix), or to the end (train-on)",
    )
    stop: str | None = setting(None, sections.stop(), "ends a node's training before its rounds are done", counts=NAMED)
    evaluate_every: EvaluateEvery = setting(
        1,
        tables.or_auto(whole(0)),
        'rounds between two tests; "auto": tests take at most a tenth of the time; 0: only at the end',
    )

    def rate(self, rounds: int, elapsed_s: float, closing: int = 0) -> float:
        """Return the learning rate for a node's next round, after `rounds` rounds in `elapsed_s` seconds.

        In closing round `closing` (from 1) it falls linearly, to a tenth in the last, and is never less than that.
        """
        factor = parse_schedule(self.schedule).factor(rounds, elapsed_s)
        if closing:
            factor = max(TAIL, factor * (1.0 - (1.0 - TAIL) * closing / self.closing_rounds))
        return self.learning_rate * factor

    @property
    def trained_rounds(self) -> int | None:
        """Return how many rounds train: `rounds`, and the closing ones if these do; None if time bounds training."""
        return self.rounds and self.rounds + self.closing_rounds * (self.closing == "train")

    @property
    def least_rate(self) -> float:
        """Return the smallest learning rate in any round."""
        least = parse_schedule(self.schedule).least
        return self.learning_rate * (min(TAIL, least) if self.closing == "train" else least)


NOT_FROZEN = "!requires_grad=False"
"""The pattern that excludes the parameters that are not trained, whatever their names."""


def _staleness(spec: str) -> str:
    parse_staleness(spec)
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipConfig:
    compressor: str = setting(
        "q4", tables.compressor(), "how models are compressed for sending: see `p2pfl list compressors`"
    )
    share: tuple[str, ...] = setting(
        ("*",), tables.texts(), "parameters to share, the rest stays on each node: patterns of their names"
    )
    """Names are those of the model's `state_dict`."""
    rule: str = setting(
        "mean",
        tables.rule(),
        "how a node mixes with its neighbors, and how many liars it tolerates: see `p2pfl list rules`",
    )
    staleness: str = setting(
        "hinge-polynomial:4,0.5",
        spelled(lambda: STALENESS.usages, _staleness),
        "how much a neighbor's old model counts: see `p2pfl list staleness`",
    )
    gamma: float = setting(1.0, number(0, 1, above=True), "step size of mixing with the rule mean")
    start_wait_s: float = setting(60.0, number(0), "longest wait for neighbors before the first round, in seconds")
    linger_s: float = setting(30.0, number(0), "keep answering neighbors this long after the last round, in seconds")
    max_wait_s: float = setting(5.0, number(0, above=True), "longest wait of a round for one exchange, in seconds")
    exchanges_per_s: float = setting(
        200.0, number(0, above=True), "most exchanges that one neighbor may request per second"
    )
    """Beyond it, the answer is Busy."""
    audit_every: int = setting(64, whole(1), "exchanges between two checks that both ends of an edge hold the same")
    vitals: bool = setting(
        True, flag(), "members send each other phase, round, accuracy and alarms, for the status page"
    )
    share_frozen: bool = setting(
        True,
        flag(),
        "false: parameters that are not trained are not sent, and must be equal on all nodes",
        counts=CHANGED,
    )

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns for what is shared, with what `share_frozen` excludes."""
        return self.share if self.share_frozen else (*self.share, NOT_FROZEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One `[[node]]`. `index` is its position in the file; the end of an edge with the lower index initiates its
    transactions.

    In a federation with admin keys, an index is assigned once and for all; a removed member keeps its row, as
    `retired`.
    """

    index: int
    name: str
    key: bytes
    """The Ed25519 public key, 32 bytes."""
    address: str | None
    """The address host:port or URL of a WebSocket, or None for a node that only dials."""
    retired: bool = False
    """True if the member was removed: it has no edges, and no node talks to it or waits for it."""


class Edition(NamedTuple):
    """The edition of a charter. Editions are ordered; the higher one is newer."""

    version: int
    """The number that its signer assigned, from 1."""
    digest: bytes
    """A 32-byte hash of everything that was signed; it decides between two charters with the same version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationConfig:
    """One federation file, with its graph resolved.

    There is a session for every one of `edges`. `schedule` is empty for a static graph. Otherwise version v of a node's
    model is exchanged on the edges `schedule[v % len(schedule)]`, closing round t uses the edges with number t, and
    `edges` is the union of all.
    """

    path: Path
    name: str
    seed: int
    topology: str
    task: TaskConfig
    training: TrainingConfig
    gossip: GossipConfig
    members: tuple[Member, ...]
    edges: Edges
    schedule: tuple[Edges, ...] = ()
    notices: tuple[str, ...] = ()
    """Remarks about a file that is valid as it is, such as a key that has been renamed."""
    edge_compressors: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """The compressors of edges (i, j), i < j, with tables of their own; others use `gossip.compressor`."""
    edge_weights: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """The mixing weights of all edges (i, j), i < j; empty if the graph's file has none, and the degrees decide."""
    admin: tuple[bytes, ...] = ()
    """The public keys (32 bytes) of those who may change the members; if empty, nobody may while nodes run."""
    founders: tuple[bytes, ...] = ()
    """With admin keys, the public keys of the `[[node]]` tables: the file determines their indices."""
    edition: Edition | None = None
    """The edition of the charter that defines members, graph and rounds; None if the file itself defines them."""
    charter: bytes = field(default=b"", repr=False)
    """The bytes of that charter as they are sent; empty if there is none."""
    discovery: bool = False
    """True if nodes find each other on a LAN, unless a node's own file says otherwise. Nodes may differ in this."""
    relays: tuple[str, ...] = ()
    """The URLs of relays that all members use; a node's own file may add more. Nodes may differ in this, too."""
    privacy: PrivacyConfig | None = None
    """The privacy promised to the people in the data; None if there is no promise."""
    hides: HideConfig | None = None
    """How sums hide the nodes' models, where nothing more is promised; `privacy` is None then."""

    @property
    def method(self) -> str:
        """Return the spec of the learning method: by default the rule's usual one, `plain` where rounds are sums."""
        return self.training.method or ("plain" if self.in_step_by else usual_method(self.gossip.rule))

    @property
    def grows_trees(self) -> bool:
        """True if the model is trees, which grow by secure sums."""
        return self.task.name == "csv" and self.task.given is None and self.task.options.get("model") == "trees"

    @property
    def in_step_by(self) -> str:
        """Return what makes all rounds secure sums, in step; empty if nodes gossip."""
        if self.privacy is not None and self.privacy.is_shared:
            return "shared noise"
        if self.hides is not None:
            return "hidden models"
        return "trees" if self.grows_trees else ""

    def compressor_of(self, i: int, j: int) -> str:
        """Return the compressor that two neighbors use."""
        return self.edge_compressors.get((min(i, j), max(i, j)), self.gossip.compressor)

    @property
    def retired(self) -> frozenset[int]:
        """Return the indices of the removed members."""
        return frozenset(member.index for member in self.members if member.retired)

    @property
    def edges_at_once(self) -> float:
        """Return the number of edges that one round of all nodes uses, on average over a period of the schedule."""
        return sum(map(len, self.schedule)) / len(self.schedule) if self.schedule else len(self.edges)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Return, for each member, the largest number of its edges that one round uses."""
        most = [0] * len(self.members)
        for edges in self.schedule or (self.edges,):
            for node, count in Counter(node for edge in edges for node in edge).items():
                most[node] = max(most[node], count)
        return tuple(most)

    def neighbors(self, index: int) -> tuple[int, ...]:
        """Return the indices of the members joined to member `index` by an edge, in ascending order."""
        return tuple(sorted(b if a == index else a for a, b in self.edges if index in (a, b)))

    @property
    def present(self) -> tuple[Member, ...]:
        """Return the members that were not removed, by index."""
        return tuple(member for member in self.members if not member.retired)

    @property
    def charter_version(self) -> int:
        """Return the version of its charter, 0 if it has none."""
        return 0 if self.edition is None else self.edition.version

    def member(self, name: str) -> Member:
        """Return the current member with that name. Raises KeyError: there is none."""
        for member in self.present:
            if member.name == name:
                return member
        raise KeyError(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A node's devices and precision in training and tests. Errors name `file`."""

    device: str = setting(
        "cpu",
        tables.matching(re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?"), 'auto, cpu, cuda, cuda:N as in "cuda:1", mps'),
        "where the node trains; auto takes the best there is",
    )
    precision: str = setting(
        "float32", choice("float32", "bf16"), "bf16: mixed-precision training; parameters stay float32"
    )
    micro_batch_size: int | None = setting(
        None, whole(1), "most rows of a batch at once; their gradients are added: less memory"
    )
    """None computes each batch as a whole."""
    compile: bool = setting(
        False, flag(), "torch.compile translates the model for training, which takes a minute and a C++ compiler"
    )
    file: Path | None = field(default=None, compare=False)


STATE_DIR = "state"
LEAST_KBIT_S = 32.0
"""A chunk of a body must arrive every 30 s, whatever else is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNetwork:
    """The ways by which a node's lines leave its site, and bounds on their traffic. Paths are absolute."""

    cert: Path | None = setting(
        None, text(), "file of the certificate with which the node takes TLS at `listen`, beside plain connections"
    )
    key: Path | None = setting(None, text(), "file of the certificate's secret key")
    """Both the certificate and its key are there, or none."""
    proxy: str | None = setting(
        None,
        tables.proxy(),
        "the HTTP proxy through which it dials; without it HTTPS_PROXY and NO_PROXY say",
    )
    """"none" means no proxy."""
    proxy_password_file: Path | None = setting(
        None, text(), "file with user:password for the proxy, which nobody else may read"
    )
    max_kbit_s: float | None = setting(
        None, number(LEAST_KBIT_S), "most that the node sends on average, to all neighbors together, in kbit/s"
    )
    hours: str | None = setting(
        None,
        tables.hours(),
        "the only hours in which the node takes part, by the clock of this machine; then it pauses",
    )
    month_gb: float | None = setting(
        None, number(0, above=True), "most that it sends and receives in a calendar month, in GB; then it pauses"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The settings of one node only. Paths are absolute."""

    path: Path
    name: str
    key_file: Path = setting(Path("node.key"), text(), "the node's secret identity")
    state_dir: Path = setting(Path(STATE_DIR), text(), "folder of what the node needs to resume")
    listen: str = setting(REQUIRED, tables.address(0), "where the node listens to others; port 0 takes any free one")
    forwarded_port: int | None = setting(
        None, whole(1, 65535), "the port of the node's address where a router passes it on to `listen`"
    )
    """None if both are the same."""
    status_listen: str | None = setting(
        "127.0.0.1:0",
        tables.or_none(tables.address(0)),
        'the status page; port 0 takes a free one, "none" turns it off',
    )
    status_names: tuple[str, ...] = setting(
        (), tables.hosts(), "names of this machine under which browsers reach the status page"
    )
    """They come on top of addresses and localhost."""
    durability: str = setting(
        "auto",
        choice("auto", "exchange", "snapshot"),
        "exchange: a crash loses nothing; snapshot: fewer writes to an SD card; auto: by model size",
    )
    """"auto" means "exchange" for models below 1 MB."""
    snapshot_s: float = setting(60.0, number(0, above=True), "seconds between two snapshots of the state")
    threads: int = setting(1, whole(1, 1024), "processor threads for training")
    nice: int = setting(0, whole(0, 19), "how much the node yields to other programs; 19 yields to everything else")
    compute: Compute = field(default_factory=Compute)
    checkpoint_dir: Path = setting(Path("checkpoints"), text(), "folder of the checkpoints")
    checkpoint_every: int = setting(
        0, whole(0), "rounds between two model files as `p2pfl export` writes them; 0: none"
    )
    checkpoints_kept: int = setting(3, whole(1), "the most checkpoints that are kept")
    data: dict[str, Any]
    """The `[data]` table, passed to the task."""
    stats: StatsConfig = NO_STATS
    """The `[stats]` table."""
    discovery: bool = False
    """True if the node announces itself on the LAN and looks for the others."""
    interfaces: tuple[str, ...] = ()
    """The network interfaces to announce on; empty for all that `listen` covers except bridges and tunnels."""
    relays: tuple[str, ...] = ()
    """The URLs of relays: those of the federation, then the node's own."""
    relay_token: Path | None = None
    """The file with the token that opens the relays; None if tickets do."""
    network: OwnNetwork = field(default_factory=OwnNetwork)


TABLES = ("federation", "task", "training", "gossip", "privacy", "network", "node", "edge")

FEDERATION: Kinds = {
    "name": tables.name().key("what people call this federation"),
    "seed": whole(0).key("every node starts from the same model, drawn from this"),
    "topology": text().key("the graph: a family of `p2pfl topology list`, or a graph file"),
    "admin": tables.public_keys().key(
        "public keys of those who may change the members, the graph and the rounds while nodes run"
    ),
}

TASK: Kinds = {
    "name": text().key("what is learned: digits, mnist-idx, csv, lora, or file.py:object, package.module:object")
}

TRAINING: Kinds = kinds_of(TrainingConfig)
GOSSIP: Kinds = kinds_of(GossipConfig)

NETWORK: Kinds = {
    "discovery": flag().key("true: nodes on one LAN find each other without addresses; pip install '.[lan]'"),
    "relays": tables.relays().key("machines that run `p2pfl relay`, for members without an address that others reach"),
}

MEMBER: Kinds = {
    "name": tables.name().key("the node's name, and that of its folder"),
    "key": tables.public_key().key("the node's public key; a node whose key is in no table is refused"),
    "address": tables.member_address().key(
        "where others reach the node; without it the node only dials, or others find it on the LAN"
    ),
}

EDGE: Kinds = {
    "between": tables.pair().key("two neighbors in the graph"),
    "compressor": GOSSIP["compressor"].key("the compressor on this edge, instead of the one in [gossip]"),
}

COMPUTE: Kinds = kinds_of(Compute)
_OWN = {name: {name: kind} for name, kind in kinds_of(NodeConfig).items()} | {"compute": COMPUTE}
NODE: Kinds = {key: kind for name in NodeConfig.__dataclass_fields__ for key, kind in _OWN.get(name, {}).items()}


def needed_features(federation: FederationConfig) -> dict[str, str]:
    """Return the names of the features that the file needs, each with the key that needs it."""
    asked = {"members": ("federation.admin", federation.admin), "privacy": ("privacy", federation.privacy)}
    return {name: key for name, (key, value) in asked.items() if value}


OWN_NETWORK: Kinds = {
    **NETWORK,
    "interfaces": tables.texts().key(
        "network interfaces to announce on; without it all that `listen` covers but bridges and tunnels"
    ),
    **kinds_of(OwnNetwork),
    "relay_token": text().key("file with the token of a relay, where the federation has no admin key; mode 0600"),
}
"""The keys of `[network]` in a node file."""
