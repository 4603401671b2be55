"""`p2pfl new`, which creates an example federation, and `p2pfl key`, which creates a node's identity.

The example works at once, offline, and is written completely or not at all. The secret key of an identity stays in its
file; the federation file lists the public key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from p2pfl.config.model import GOSSIP
from p2pfl.config.tables import NAME, Mistakes, read_table
from p2pfl.config.tables import name as kind
from p2pfl.console import NewPlan
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import UserError
from p2pfl.features import import_declared
from topologies import TopologyError

MOST_NODES = 1_000
THREE = ("node0", "node1", "node2")
LAST_PORT = 65_535


class NamesOrCount(click.ParamType):  # type: ignore[type-arg] # it has none in older versions of click
    """The names of nodes, or their number, for names node0, node1 and so on."""

    name = "integer or names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        if str(value).strip().lstrip("-").isdigit():
            count = click.IntRange(2, MOST_NODES).convert(value, param, ctx)
            return tuple(f"node{index}" for index in range(count))
        names = tuple(part.strip() for part in str(value).split(","))
        wrong = next((name for name in names if not NAME.fullmatch(name) or names.count(name) > 1), None)
        if wrong is not None or not 2 <= len(names) <= MOST_NODES:
            self.fail(
                f"{value!r}: write a number from 2 to {MOST_NODES}, or different names such as pi1,pi2,pi3", param
            )
        return names


@click.command(
    epilog="\b\nExamples:\n  p2pfl new ward-7 --nodes pi1,pi2,pi3 --admin\n"
    "  p2pfl new hospitals --task csv a.csv b.csv c.csv --target outcome\n"
    "  p2pfl new chat --task lora --model ./tinyllama --data texts/"
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--nodes", type=NamesOrCount(), help="How many, or their names: pi1,pi2.  [default: 3; one per TABLE]")
@click.option("--topology", help="A topology spec, or a graph file.  [default: ring; with --admin keyed-rings]")
@click.option(
    "--task",
    type=click.Choice(["own", "digits", "csv", "lora"]),
    default="own",
    show_default=True,
    help="own: a task.py for you to edit, of digits at first. csv: your TABLEs. lora: adapters of a language model.",
)
@click.option("--rule", default="mean", show_default=True, help="Rule for mixing neighbors: see `p2pfl list rules`.")
@click.option("--hide-models", is_flag=True, help="Rounds are secure sums: no neighbor sees a node's model.")
@click.option(
    "--base-port",
    type=click.IntRange(1, LAST_PORT),
    default=8470,
    show_default=True,
    help="Port of node0; the other nodes get the ports after it.",
)
def new(
    *,
    directory: Path,
    nodes: tuple[str, ...] | None,
    topology: str | None,
    task: str,
    rule: str,
    hide_models: bool,
    base_port: int,
    **said: Any,
) -> None:
    """Create an example federation to edit in DIR, a new or empty folder, whose name it has.

    It contains federation.toml, the same on every node, task.py, which defines what is learned, and for each node a
    folder with node.toml and its secret node.key. With --admin also members.toml, and admin.key, which signs it.

    With --task csv the TABLEs stay where they are: DIR gets a schema.toml for you to correct, which says how to read
    them.
    """
    from p2pfl.config.load import load_config  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.config.writing import TASK_TEXT, federation_text  # noqa: PLC0415 - as above
    from p2pfl.node.folders import appearing, complete, make_node, own_graph  # noqa: PLC0415 - as above
    from p2pfl.reporting.figures import fragments_instead  # noqa: PLC0415 - as above

    place = directory.absolute()
    name, rule = _name_of(place), _checked_rule(rule)
    plan, parts = NewPlan(task=task, nodes=nodes, topology=topology), [kind() for kind in import_declared("NEW")]
    for part in parts:
        part.plan(plan, said)
    nodes, topology = plan.nodes or THREE, plan.topology or "ring"
    if hide_models and rule != "mean":
        text = "a robust rule compares the models of neighbors, which are hidden"
        raise UserError(text, key="--rule", value=rule, allowed="mean with --hide-models")
    if hide_models and len(nodes) < 3:
        text = "of the sum of two, each knows the other's part"
        raise UserError(text, key="--nodes", value=len(nodes), allowed="3 or more with --hide-models")
    if base_port + len(nodes) - 1 > LAST_PORT:
        raise UserError(f"{len(nodes)} nodes need as many ports", key="--base-port", value=base_port)
    check_graph(topology, len(nodes), names=nodes)
    with appearing(place) as folder:
        members = [
            make_node(
                folder, node, None if plan.discovery or plan.relays else base_port + index, data=plan.data.get(node)
            )
            for index, node in enumerate(nodes)
        ]
        files = plan.files | ({"task.py": TASK_TEXT} if task == "own" else {})
        files["federation.toml"] = federation_text(
            name=name,
            topology=own_graph(topology, folder),
            task="task.py:task" if task == "own" else task,
            members=members,
            rule=rule,
            admin=plan.admin,
            discovery=plan.discovery,
            relays=plan.relays,
            task_keys=plan.task_keys,
            training=plan.training,
            hides=hide_models,
        )
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        for part in parts:
            part.write(folder)
        complete(folder)
    for part in parts:
        part.tell(directory)
    if plan.size and (fewer := fragments_instead(load_config(directory), plan.size)):
        click.echo(fewer, err=True)
    click.echo(f"made {directory}; next: p2pfl check {directory}", err=True)


for brought in import_declared("NEW"):  # options that features define
    beside = [known.name for known in new.params].index(brought.after) + 1
    new.params[beside:beside] = brought.parameters


def check_graph(topology: str, nodes: int, seed: int = 0, *, names: Sequence[str] = ()) -> None:
    from p2pfl.config.graph import DisconnectedGraph, federation_graph  # noqa: PLC0415 - `--help` stays instant
    from topologies.graph import components  # noqa: PLC0415 - as above

    names = names or [f"node{index}" for index in range(nodes)]
    try:
        graph, _ = federation_graph(topology, names, seed, Path())
    except TopologyError as error:
        error.key = "--topology" if error.key in (None, "topology") else f"--topology: {error.key}"
        raise
    if len(components(graph)) > 1:
        raise DisconnectedGraph(
            f"this graph on {nodes} nodes is not connected", key="--topology", value=topology, allowed="more edges"
        )


@click.command(epilog="\b\nExample:\n  p2pfl key ward-7/node0/node.key")
@click.argument("path", type=click.Path(path_type=Path))
def key(path: Path) -> None:
    """Create a node's identity in the file PATH, or show the existing one.

    PATH may be a folder, for node.key in it. The command prints the public key, for `key` in federation.toml. The file
    itself is secret: it stays on its node, and an existing one is never overwritten.
    """
    from p2pfl.node.folders import KEY_FILE  # noqa: PLC0415 - `--help` stays instant

    file = path / KEY_FILE if path.is_dir() else path
    if file.exists():
        identity = Identity.load(file)
    else:
        identity = Identity.generate()
        identity.save(file)
        click.echo(f"made {file}; keep it on this node", err=True)
    click.echo(public_text(identity.public))


def _name_of(folder: Path) -> str:
    try:
        kind().read(folder.name)
    except ValueError:
        text = "its last part is no name for a federation"
        raise UserError(text, key="DIR", value=folder.name, allowed=kind().allowed) from None
    return folder.name


def _checked_rule(rule: str) -> str:
    """Return the spec in its canonical spelling."""
    mistakes = Mistakes(Path())
    values = read_table({"rule": rule}, "gossip.", GOSSIP, mistakes)
    for mistake in mistakes.errors:
        mistake.file, mistake.key = None, "--rule"
        raise mistake
    return str(values["rule"])
