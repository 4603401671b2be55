"""Reads a federation file and a node file once, at the edge, into the frozen values of `model`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2pfl.config.edges import read_edges
from p2pfl.config.graph import DisconnectedGraph, read_graph
from p2pfl.config.members import read_members
from p2pfl.config.method import of_control_variate
from p2pfl.config.model import USUAL_ROBUST_METHOD, Federation, GossipConfig, TaskConfig, TrainingConfig
from p2pfl.config.schema import FEDERATION, GOSSIP, OLD_TRAINING, OLD_VARIATE, TABLES, TASK, TRAINING
from p2pfl.config.tables import Mistakes, exclusive, read_document, read_table, require, unknown_keys
from p2pfl.errors import UserError

FILE_NAME = "federation.toml"


def load_federation(path: Path | str) -> Federation:
    """The federation that a file describes; a folder stands for the `federation.toml` in it.

    Raises:
        UserError: the first mistake in the file; `federation_mistakes` has them all.
        DisconnectedGraph: its graph is not connected, and nothing else is wrong.
    """
    federation, mistakes = read_federation(path)
    if mistakes:
        raise mistakes[0]
    if federation is None:
        raise AssertionError("no federation and no mistake")
    return federation


def federation_mistakes(path: Path | str) -> list[UserError]:
    """Everything that is wrong with a federation file; empty if it can be loaded."""
    return read_federation(path)[1]


def read_federation(path: Path | str) -> tuple[Federation | None, list[UserError]]:
    """The federation and its mistakes. There is a federation if none is worse than a graph in several parts."""
    file = federation_file(path)
    try:
        document = read_document(file)
    except UserError as error:
        return None, [error]
    mistakes = Mistakes(file)
    federation = federation_from(document, mistakes)
    usable = all(isinstance(mistake, DisconnectedGraph) for mistake in mistakes.found)
    return (federation if usable else None), mistakes.found


def federation_file(path: Path | str) -> Path:
    path = Path(path)
    return path / FILE_NAME if path.is_dir() else path


def federation_from(document: dict[str, Any], mistakes: Mistakes) -> Federation:
    """What a document says that has the tables of a federation file; what is wrong with it goes to `mistakes`."""
    unknown_keys(document, "", TABLES, mistakes)
    head: dict[str, Any] = {"seed": 0, "topology": "ring", "name": ""} | _head(document.get("federation", {}), mistakes)
    task = _task(document.get("task", {}), mistakes)
    training = _training(document.get("training", {}), mistakes)
    gossip = GossipConfig(**read_table(document.get("gossip", {}), "gossip.", GOSSIP, mistakes))
    notices = _modernize(training, gossip, mistakes.file)
    members = read_members(document.get("node", []), mistakes)
    edges, schedule = read_graph(head["topology"], members, head["seed"], mistakes) if members else ((), ())
    own = read_edges(document.get("edge", []), members, edges, mistakes)
    return Federation(
        path=mistakes.file.absolute(),
        **head,
        task=task,
        training=TrainingConfig(**training),
        gossip=gossip,
        members=members,
        edges=edges,
        schedule=schedule,
        notices=notices,
        edge_compressors=own,
    )


def _head(table: Any, mistakes: Mistakes) -> dict[str, Any]:
    require(table, "federation.", ("name",), FEDERATION, mistakes)
    return read_table(table, "federation.", FEDERATION, mistakes)


def _task(table: Any, mistakes: Mistakes) -> TaskConfig:
    """Keys other than `name` are the task's own, and it is the task that checks them."""
    options = {key: value for key, value in table.items() if key != "name"} if isinstance(table, dict) else {}
    named = {"name": table["name"]} if isinstance(table, dict) and "name" in table else {}
    known = read_table(named if isinstance(table, dict) else table, "task.", TASK, mistakes)
    return TaskConfig(**known, options=options)


def _training(table: Any, mistakes: Mistakes) -> dict[str, Any]:
    """Giving the other one of two exclusive keys turns off the default of the first."""
    values = read_table(table, "training.", {**TRAINING, **OLD_TRAINING}, mistakes)
    for usual, other in (("rounds", "time_s"), ("local_steps", "local_epochs")):
        exclusive(table, "training.", usual, other, mistakes)
        if other in values:
            values.setdefault(usual, None)
    exclusive(table, "training.", "method", OLD_VARIATE, mistakes)
    return values


def _modernize(training: dict[str, Any], gossip: GossipConfig, file: Path) -> tuple[str, ...]:
    """Put keys of today in place of old ones; what is to be said about that."""
    beta = training.pop(OLD_VARIATE, None)
    if beta is None:
        return ()
    spec = of_control_variate(beta) if gossip.rule == "mean" else USUAL_ROBUST_METHOD
    training.setdefault("method", spec)
    return (f'{file}: training.{OLD_VARIATE} = {beta:g} is an old name: write method = "{spec}" in its place',)
