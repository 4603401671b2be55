"""The federation to simulate: a file as `p2pfl launch` reads it, or the built-in digits, with some options changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from p2pfl.config.charter import compacted
from p2pfl.config.graph import DisconnectedGraph, edge_weights, federation_graph
from p2pfl.config.load import federation_file, load_config, load_node, node_file
from p2pfl.config.model import GOSSIP, Edges, FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig
from p2pfl.config.tables import Mistakes, read_table
from p2pfl.errors import UserError
from p2pfl.learn.load import resolved
from sim.privacy import refuse_broken, with_privacy
from sim.worlds.memory_needed import check_count
from topologies import TopologyError
from topologies.graph import components

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
    applies to the others. `privacy` is a line as in `sim.privacy`. `directed` lets a directed graph pass, for arrays in
    step alone. Raises UserError for a mistake in the file or an
    option, DisconnectedGraph if the graph is not connected.
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
    wanted = {key: value for key, value in (("rule", rule), ("compressor", compressor)) if value is not None}
    federation = replace(federation, gossip=_gossip(federation.gossip, wanted))
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
    for mistake in mistakes.found:
        mistake.file, mistake.key = None, f"--{mistake.key}"
        raise mistake
    return replace(gossip, **values)
