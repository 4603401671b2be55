"""The federation to simulate: a file as `p2pfl launch` reads it, or the built-in digits, with some options changed.

Privacy may be given in one line, for `sim run --privacy` and sweeps: the keys of `[privacy]`, as in
`epsilon=8,delta=1e-5`. Before anything is built, the memory that a simulation needs is estimated: does it fit this
machine?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from p2pfl.config.charter import compacted
from p2pfl.config.graph import DisconnectedGraph, edge_weights, federation_graph
from p2pfl.config.load import federation_file, load_config, load_node, node_file, refuse_broken_promises
from p2pfl.config.model import GOSSIP, Edges, FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig
from p2pfl.config.sections import PRIVACY, read_privacy
from p2pfl.config.tables import Mistakes, read_table
from p2pfl.errors import UserError
from p2pfl.learn.load import resolved
from sim.worlds.model import WorldSpec
from topologies import TopologyError
from topologies.graph import components

FLOAT_BYTES = 4
BASE_BYTES = 330 * 2**20
"""Python, numpy, torch and the data that all nodes share."""
VECTORS_PER_NODE, VECTORS_PER_EDGE = 5, 6
"""Per node: model, its copy for tests, and model, variate and result of a round. Per edge: replica and flow, twice."""
PERSONAL_COPIES = 3
"""Copies of a personal part: in the module, after the last round, and in the state to which a crash returns."""
PAYLOADS_PER_EDGE = 4
"""A Request and a Reply, each pending at one end and in flight or in the log."""
OBJECT_BYTES_PER_NODE, OBJECT_BYTES_PER_EDGE = 150_000, 60_000
"""Objects, and what is freed only at the end. For 100 and 1,000 digit nodes: .39 and .68 GB; measured .40 and .70."""
TRAINING_VECTORS_PER_ROW = 6
"""Vectors of a training node: parameters, gradients, optimizer state and autograd's copies."""
ROWS_AT_ONCE = 256
"""The maximum number of nodes trained in one batched call."""
DESCRIBED_BYTES_PER_NODE = 1_500
"""A member and its edges as a federation describes them, in any simulator."""
ARRAYS_BYTES_PER_NODE, ARRAYS_BYTES_PER_EDGE = 15_000, 15_000
"""Beside vectors: report, clock, the graph's spectrum above all. Measured: 1,000 and 10,000 nodes of degree 2 to 8."""
USABLE_SHARE = 0.9
"""The fraction of available memory that may be planned; the rest covers what the estimate misses."""


def needed_bytes(*, nodes: int, edges: int, size: int, payload_bytes: int, personal: int = 0) -> int:
    """Estimate the bytes that a run takes at its peak.

    `size` is the number of shared values, `payload_bytes` the total size of one payload on every edge. `personal` is
    the number of values that each node does not share; if there are any, each node has its own module.
    """
    rows = min(nodes, ROWS_AT_ONCE)
    vectors = nodes * VECTORS_PER_NODE + edges * VECTORS_PER_EDGE + rows * TRAINING_VECTORS_PER_ROW
    modules = nodes * (size + PERSONAL_COPIES * personal) if personal else 0
    payloads = PAYLOADS_PER_EDGE * payload_bytes
    objects = nodes * OBJECT_BYTES_PER_NODE + edges * OBJECT_BYTES_PER_EDGE
    return BASE_BYTES + (vectors * size + modules) * FLOAT_BYTES + payloads + objects


def check_memory(
    *, nodes: int, edges: int, size: int, payload_bytes: int, personal: int = 0, root: Path = Path("/")
) -> None:
    """Refuse a run that exceeds the available memory, if that is known. Raises UserError, saying what to change."""
    needed = needed_bytes(nodes=nodes, edges=edges, size=size, payload_bytes=payload_bytes, personal=personal)
    refuse_too_large(needed, nodes=nodes, edges=edges, size=size, root=root)


def arrays_bytes(*, nodes: int, edges: int, size: int, in_step: bool, replicas: bool, corrected: int) -> int:
    """Estimate the bytes that arrays take at their peak: with `replicas` a compressor keeps what was shown, `corrected`
    are the vectors that the method remembers at a node.

    In step each node has its model and one product, what it has shown and its flow; apart a model and the start of a
    round, flow and correction, and each edge two replicas, or up to two slots while they grow.
    """
    vectors = nodes * (2 + replicas + corrected) if in_step else nodes * (2 + 2 * corrected) + 2 * edges
    return BASE_BYTES + vectors * size * FLOAT_BYTES + nodes * ARRAYS_BYTES_PER_NODE + edges * ARRAYS_BYTES_PER_EDGE


def refuse_too_large(needed: int, *, nodes: int, edges: int, size: int, root: Path = Path("/")) -> None:
    """Raise UserError, saying what to change, if so many bytes exceed the available memory and that is known."""
    what = f"{nodes} nodes with {edges} edges and a model of {size} parameters need about"
    allowed = "fewer nodes, a graph of lower degree, a smaller model, or a machine with more memory"
    _refuse(needed, what, root, key="memory", allowed=allowed)


def refuse_data(needed: int, root: Path = Path("/")) -> None:
    """Refuse data that were read, but cannot be put together: they are copied once. Raises UserError."""
    allowed = "fewer rows or nodes, or a machine with more memory"
    _refuse(needed, "the nodes' data, put together, need another", root, key="memory", allowed=allowed)


def check_count(nodes: int, *, each: int = DESCRIBED_BYTES_PER_NODE, root: Path = Path("/")) -> None:
    """Refuse nodes that cannot fit at `each` so many bytes, before any is made. Raises UserError: need, available."""
    allowed = "fewer nodes, or a machine with more memory"
    _refuse(BASE_BYTES + nodes * each, "so many need at least", root, key="--nodes", value=nodes, allowed=allowed)


def _refuse(needed: int, what: str, root: Path, **where: Any) -> None:
    available = available_bytes(root)
    if available is not None and needed > available * USABLE_SHARE:
        there = f"{_gigabytes(available)} of memory are available"
        raise UserError(f"{what} {_gigabytes(needed)}; {there}", **where)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still take: the lowest limit among machine and control groups."""
    known = [left for left in (_machine(root), *_groups(root)) if left is not None]
    return min(known, default=None)


def _machine(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable" and rest.split():
            kilobytes = rest.split()[0]
            return int(kilobytes) * 1024 if kilobytes.isdecimal() else None
    return None


def _groups(root: Path) -> list[int | None]:
    """Return the limits of each control group (version 2) that this process is in."""
    mount = root / "sys/fs/cgroup"
    own = [line[3:].strip("/\n ") for line in _text(root / "proc/self/cgroup").splitlines() if line.startswith("0::")]
    inner = mount / own[0] if own else mount
    folders = [inner, *inner.parents] if inner != mount else [mount]
    return [
        _remaining(folder / "memory.max", folder / "memory.current", folder / "memory.stat")
        for folder in folders
        if folder == mount or mount in folder.parents
    ]


def _remaining(limit: Path, usage: Path, stat: Path) -> int | None:
    """Return the limit minus what is in use; file caches that the kernel would release do not count as used."""
    most, used = _text(limit).strip(), _text(usage).strip()
    if not most.isdecimal() or not used.isdecimal():
        return None
    given_up = [line.split()[1] for line in _text(stat).splitlines() if line.startswith("inactive_file ")]
    return max(0, int(most) - int(used) + sum(int(text) for text in given_up if text.isdecimal()))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


NONE = "none"
"""Turns privacy off, whatever the file says."""
KEY = "--privacy"
ALLOWED = f'{NONE}, or keys of [privacy] as in "epsilon=8,delta=1e-5": {", ".join(PRIVACY)}'


def with_privacy(federation: FederationConfig, spec: str) -> FederationConfig:
    """Replace the federation's `[privacy]` with the keys in `spec`. Raises UserError if the spec is wrong."""
    if spec == NONE:
        return replace(federation, privacy=None, hides=None)
    mistakes = Mistakes(federation.path)
    privacy, hides = read_privacy(_table(spec), mistakes)
    for mistake in mistakes.errors:
        said = f"{mistake.key}: {mistake.message}".replace("privacy.", "")
        raise UserError(said, key=KEY, value=mistake.value or spec, allowed=mistake.allowed)
    return replace(federation, privacy=privacy, hides=hides, training=replace(federation.training, when_through="mix"))


def refuse_broken(federation: FederationConfig) -> FederationConfig:
    """Return the federation unchanged. Raises UserError if options contradict its privacy."""
    mistakes = Mistakes(federation.path)
    if federation.privacy is not None and federation.training.when_through != "mix":
        text = "with privacy a node trains no more rounds than its budget is for"
        mistakes.add(text, "training.when_through", federation.training.when_through, "mix")
    refuse_broken_promises(federation, mistakes)
    for mistake in mistakes.errors:
        mistake.file = None
        raise mistake
    return federation


def refuse_beside_sums(federation: FederationConfig, world: WorldSpec) -> None:
    """Raises UserError: the world has what is not simulated where models are hidden."""
    for key, value in {
        "liars.attack": world.liars and world.liars.attack,
        "amend": world.amendments,
        "links.drop": world.links.drop,
        "links.duplication": world.links.duplication,
    }.items():
        if value and federation.hides is not None:
            text, allowed = "is not simulated where models are hidden", "no such key; or real nodes (p2pfl launch)"
            raise UserError(text, file=world.path, key=key, value=str(value), allowed=allowed)


def _table(spec: str) -> dict[str, Any]:
    """Parse the keys and values. Raises UserError if a part is not a pair, or if its key is unknown or repeated."""
    values: dict[str, Any] = {}
    for part in spec.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or key not in PRIVACY or key in values:
            text = "is given twice" if key in values else "is not a KEY=VALUE of [privacy]"
            raise UserError(f"{part.strip()!r} {text}", key=KEY, value=spec, allowed=ALLOWED)
        values[key] = _number(value)
    return values


def _number(value: str) -> int | float | str:
    """Parse the value as a file would store it."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


NODES = 8
PARTITION = "shards:2"
MANY_NODES = 500
MANY_PARTITION = "draw:14"
"""How the digits are partitioned among more nodes than there are shards."""


def describe(
    *,
    file: Path | None = None,
    nodes: int | None = None,
    topology: str | None = None,
    rounds: int | None = None,
    partition: str | None = None,
    rule: str | None = None,
    compressor: str | None = None,
    method: str | None = None,
    privacy: str | None = None,
    seed: int | None = None,
    directed: bool = False,
) -> FederationConfig:
    """Describe a federation; an argument that is None keeps the value from the file, or from `p2pfl demo`.

    A number of nodes different from the file's means different members of the same kind; a different number, topology
    or seed means a different graph. Settings in the file for single edges apply to the edges that remain; `compressor`
    applies to the others. `privacy` is a line as for `with_privacy`. `directed` lets a directed graph pass, for arrays
    in step alone. Raises UserError for a mistake in the file or an option, DisconnectedGraph if the graph is not
    connected.
    """
    if nodes is not None:
        check_count(nodes)
    federation = _built_in(nodes or NODES) if file is None else compacted(load_config(file))
    if nodes is not None and nodes != len(federation.members):
        federation = replace(federation, members=made_up(nodes), edge_compressors={})
    if seed is not None:
        federation = replace(federation, seed=seed)
    if topology is not None:
        federation = replace(federation, topology=topology)
    if file is None or any(given is not None for given in (nodes, topology, seed)):
        federation = _with_graph(federation, file, directed=directed)
    if rounds is not None:
        federation = replace(federation, training=replace(federation.training, rounds=rounds, time_s=None))
    if method is not None:
        federation = replace(federation, training=replace(federation.training, method=method))
    if partition is not None:
        options = {**federation.task.options, "partition": partition}
        federation = replace(federation, task=replace(federation.task, options=options))
    settings = {key: value for key, value in (("rule", rule), ("compressor", compressor)) if value is not None}
    federation = replace(federation, gossip=_gossip(federation.gossip, settings))
    return refuse_broken(federation if privacy is None else with_privacy(federation, privacy))


def own_tables(federation: FederationConfig) -> dict[str, dict[str, Any]]:
    """Read the `[data]` tables of the members whose node files are next to the federation file, by name.

    Paths are absolute; `simulate` takes the result as `data`. Raises UserError for a mistake in such a file.
    """
    files = {member.name: node_file(federation, member.name) for member in federation.present}
    there = {name: load_node(file, federation, name) for name, file in files.items() if file.exists()}
    return {
        name: {key: resolved(key, value, files[name].parent) for key, value in node.data.items()}
        for name, node in there.items()
    }


def made_up(nodes: int) -> tuple[Member, ...]:
    """Make up members that do not exist, named as in a demo."""
    keys = (blake2b(str(index).encode(), digest_size=32, person=b"p2pfl-simulated").digest() for index in range(nodes))
    return tuple(Member(index=i, name=f"node{i}", key=key, address=None) for i, key in enumerate(keys))


def _built_in(nodes: int) -> FederationConfig:
    partition = PARTITION if nodes <= MANY_NODES else MANY_PARTITION
    return FederationConfig(
        path=Path("federation.toml").absolute(),
        name="digits",
        seed=0,
        topology="ring",
        task=TaskConfig(name="digits", options={"partition": partition}),
        training=TrainingConfig(),
        gossip=GossipConfig(),
        members=made_up(nodes),
        edges=(),
    )


def _with_graph(federation: FederationConfig, file: Path | None, *, directed: bool) -> FederationConfig:
    names = [member.name for member in federation.members]
    folder = Path() if file is None else federation_file(file).parent
    try:
        graph, schedule = federation_graph(federation.topology, names, federation.seed, folder, directed=directed)
        edges: Edges = graph.edges
    except TopologyError as error:
        if error.key == "nodes":
            raise UserError(error.message, key="--nodes", value=len(names), allowed=error.allowed) from None
        said = f"{error.key}: {error.message}" if error.key not in (None, "topology") else error.message
        raise UserError(said, key="--topology", value=federation.topology, allowed=error.allowed) from None
    parts = len(components(graph))
    if parts > 1:
        raise DisconnectedGraph(
            f"this graph on {len(names)} nodes falls into {parts} parts that never hear of each other",
            key="--topology",
            value=federation.topology,
            allowed="a connected graph: more edges, or another --seed for a random one",
        )
    kept = {edge: spec for edge, spec in federation.edge_compressors.items() if edge in edges}
    return replace(federation, edges=edges, schedule=schedule, edge_compressors=kept, edge_weights=edge_weights(graph))


def _gossip(gossip: GossipConfig, settings: Mapping[str, Any]) -> GossipConfig:
    mistakes = Mistakes(Path("sim run"))
    values = read_table(dict(settings), "", GOSSIP, mistakes)
    for mistake in mistakes.errors:
        mistake.file, mistake.key = None, f"--{mistake.key}"
        raise mistake
    return replace(gossip, **values)
