"""`p2pfl demo`: the typical use on one machine: real processes, each with a few of the digits, end with a model of all
ten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from p2pfl.aggregate import make_rule, parse_rule
from p2pfl.cli.launch import REFERENCES, REPORT_FILE, run_fleet
from p2pfl.cli.new import check_graph
from p2pfl.compress import make_compressor, require_fit
from p2pfl.config.load import load_config
from p2pfl.config.model import GOSSIP, FederationConfig, TrainingConfig, usual_method
from p2pfl.config.tables import Mistakes, read_table
from p2pfl.console.output import Form, format_option, report_target
from p2pfl.errors import UserError
from p2pfl.fleet.fleet import Attackers, Lies, find_attackers
from p2pfl.learn.task import parse_partition
from p2pfl.methods import CONSERVATIVE, ROBUST, allowed, from_here, make_method
from p2pfl.net.address import free_ports
from p2pfl.node.folders import appearing, check_result, make_node, own_graph
from p2pfl.reporting.figures import bearings, names
from p2pfl.reporting.plot import check_picture, check_target

MARK = ".p2pfl-demo"
MOST_OF_DEMO = 64
PARAMETERS = 2_410
"""The number of parameters in the digits model, known here without importing torch."""


EPILOG = """\b
Examples:
  p2pfl demo
  p2pfl demo --nodes 5 --topology star --partition iid --rounds 20
  p2pfl demo --topology complete --byzantine 1 --attack foe --rule hampel:b=1
"""


@click.command(epilog=EPILOG)
@click.option("--nodes", type=click.IntRange(2, MOST_OF_DEMO), default=8, show_default=True, help="How many processes.")
@click.option("--topology", default="ring", show_default=True, help="The graph: see `p2pfl topology list`.")
@click.option("--rounds", type=click.IntRange(1), default=40, show_default=True, help="Rounds that each node trains.")
@click.option(
    "--partition",
    default="shards:2",
    show_default=True,
    help="Who holds which digits: iid, dirichlet:ALPHA[,LEAST], shards:K, classes:K, sizes:A,B,..., draw:K.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of model and partition.")
@click.option(
    "--compressor", default="q4", show_default=True, help="How messages are compressed: `p2pfl list compressors`."
)
@click.option("--rule", default="mean", show_default=True, help="Rule for mixing neighbors: see `p2pfl list rules`.")
@click.option(
    "--method", metavar="SPEC", help="Learning method: `p2pfl list methods`.  [default: the rule's usual one]"
)
@click.option(
    "--byzantine",
    type=click.IntRange(0),
    default=0,
    metavar="K",
    show_default=True,
    help="Number of malicious nodes, spread over the graph.",
)
@click.option("--attack", metavar="NAME", help="What malicious nodes do: see `p2pfl list attacks`.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("p2pfl-demo"),
    show_default=True,
    help="Folder for the federation; replaces an older demo.",
)
@click.option(
    "--report", type=click.Path(path_type=Path), help="The report's file; by default report.json in DIR; - is stdout."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw accuracy and consensus distance over time.")
@click.option("--references", is_flag=True, help=REFERENCES)
@click.option("--quiet", is_flag=True, help="No live view.")
@format_option("table", "json")
def demo(
    *,
    nodes: int,
    topology: str,
    rounds: int,
    partition: str,
    seed: int,
    compressor: str,
    rule: str,
    method: str | None,
    byzantine: int,
    attack: str | None,
    folder: Path,
    report: Path | None,
    form: Form,
    **how: Any,
) -> int:
    """Watch several nodes on this machine learn handwritten digits, without a server.

    Each node is a process with images of a few of the ten digits, which come with p2pfl, and talks only to its
    neighbors in the graph. A report follows at the end. After Ctrl-C, `p2pfl launch DIR` continues the run.
    """
    report, form = report_target(report, form)
    if report is not None:
        check_target(report, key="--report", coming=folder)
    if how["plot"] is not None:
        check_picture(how["plot"], coming=folder)
    attackers = _find_attackers(nodes, byzantine, attack)
    if find_spec("torch") is None:
        raise ModuleNotFoundError("the digits are learned with torch", name="torch")
    options = {"rounds": rounds, "compressor": compressor, "rule": rule, "method": _own_method(method, rule)}
    federation = _make(folder, nodes=nodes, topology=topology, partition=partition, seed=seed, options=options)

    described = load_config(federation)
    lies = _lies(attackers, described, byzantine, attack)
    for text in _warnings(described, () if lies is None else lies.names):
        click.echo(f"warning: {text}", err=True)
    return run_fleet(described, report=report or folder / REPORT_FILE, form=form, lies=lies, **how)


def _find_attackers(nodes: int, byzantine: int, attack: str | None) -> Attackers | None:
    """Return the attackers, or None if the options ask for none. Raises UserError: the options contradict each
    other.
    """
    if not byzantine and attack is None:
        return None
    if not byzantine:
        raise UserError("an attack without liars", key="--attack", value=attack, allowed="with --byzantine K")
    if byzantine >= nodes:
        text = f"no honest node is left of {nodes}"
        raise UserError(text, key="--byzantine", value=byzantine, allowed=f"0 to {nodes - 1}")
    if attack is None:
        raise UserError("liars without an attack", key="--byzantine", value=byzantine, allowed="with --attack NAME")
    attackers = find_attackers()
    attackers.check(attack)
    return attackers


def _lies(attackers: Attackers | None, federation: FederationConfig, byzantine: int, attack: str | None) -> Lies | None:
    if attackers is None or attack is None:
        return None
    lies = Lies(attackers=attackers, spec=attack, names=attackers.choose(federation, byzantine))
    verb = "lies" if byzantine == 1 else "lie"
    click.echo(f"{', '.join(lies.names)} {verb} to every neighbor: {attack}", err=True)
    return lies


def _warnings(federation: FederationConfig, liars: Sequence[str]) -> Iterator[str]:
    """Warn if the rule does not tolerate these malicious nodes, or if a node can mix with nobody under it."""
    of_all = bearings(federation)
    if liars and not of_all[0].liars:
        yield f'rule = "{of_all[0].rule}" trusts every neighbor: expect malicious nodes to ruin what honest nodes learn'
        return
    lying = {federation.member(name).index for name in liars}
    honest = [node for node in range(len(of_all)) if node not in lying]
    if idle := [node for node in honest if of_all[node].liars and not of_all[node].mixes]:
        yield f"{names(federation, idle)}: {of_all[idle[0]]}"
    heard = {node: len(lying.intersection(federation.neighbors(node))) for node in honest}
    if beaten := [node for node in honest if of_all[node].mixes and heard[node] > of_all[node].liars]:
        most, rule = max(heard[node] for node in beaten), of_all[0]
        yield f"{names(federation, beaten)}: {most} malicious among the neighbors, {rule.rule} tolerates {rule.liars}"


def _make(folder: Path, *, nodes: int, topology: str, partition: str, seed: int, options: dict[str, object]) -> Path:
    """Write the demo's federation file into a new folder; remove only what an earlier demo left there."""
    _check_options(partition, str(options["compressor"]), str(options["rule"]))
    options = options | {"rule": _own_rule(str(options["rule"]))}
    check_graph(topology, nodes, seed)
    target = folder.absolute()
    if target.is_dir() and any(target.iterdir()) and not (target / MARK).is_file():
        raise UserError("is not a demo", key="--dir", value=str(folder), allowed="a new folder, or an older demo's")
    with appearing(target, replacing=(target / MARK).is_file()) as staging:
        (staging / MARK).touch()
        members = [make_node(staging, f"node{index}", port) for index, port in enumerate(free_ports(nodes))]
        tables = [f'[[node]]\nname = "{m.name}"\nkey = "{m.key}"\naddress = "{m.address}"\n' for m in members]
        head = TEXT.format(topology=own_graph(topology, staging), partition=partition, seed=seed, **options)
        (staging / "federation.toml").write_text(head + "\n".join(tables), encoding="utf-8")
        check_result(staging)
    return folder / "federation.toml"


def _check_options(partition: str, compressor: str, rule: str) -> None:
    """Collect all mistakes in these options, each under its option's name."""
    found = Mistakes(Path())
    gossip = read_table({"compressor": compressor, "rule": rule}, "gossip.", GOSSIP, found)
    mistakes = found.found
    try:
        parse_partition(partition)
    except UserError as error:
        error.key = "task.partition"
        mistakes.append(error)
    try:
        if "compressor" in gossip:
            require_fit(make_compressor(gossip["compressor"]), PARAMETERS)
    except UserError as error:
        mistakes.append(error)
    for mistake in mistakes:
        mistake.file, mistake.key = None, "--" + str(mistake.key).rpartition(".")[2]
    if mistakes:
        raise ExceptionGroup("mistakes in the options", mistakes)


def _own_rule(rule: str) -> str:
    """Return the rule. A rule file is looked up from the current folder, because the demo's own folder is created anew.

    Raises UserError: the rule is the user's own and cannot be imported.
    """
    parsed = parse_rule(rule)
    if not parsed.is_object:
        return rule
    try:
        make_rule(rule, Path())
    except UserError as error:
        error.key = "--rule"
        raise
    return str(replace(parsed, name=str(Path(parsed.name).absolute())) if ".py:" in parsed.name else parsed)


def _own_method(method: str | None, rule: str) -> str:
    """Return the method; by default the usual one for the rule.

    Raises UserError: there is no such method, it cannot be imported, or is incompatible with the rule.
    """
    if method is None:
        return usual_method(rule)
    try:
        spec = from_here(method)
    except ValueError as error:
        raise UserError(str(error), key="--method", value=method, allowed=allowed()) from None
    try:
        make_method(spec, TrainingConfig(), profile=CONSERVATIVE if rule == "mean" else ROBUST)
    except UserError as error:
        error.key = "--method"
        raise
    return spec


TEXT = """\
# Made by `p2pfl demo`; `p2pfl launch` on this folder continues where it stopped; malicious nodes are honest then.

[federation]
name = "demo"
seed = {seed}
topology = "{topology}"

[task]
name = "digits"
partition = "{partition}"

[training]
rounds = {rounds}
method = "{method}"

[gossip]
compressor = "{compressor}"
rule = "{rule}"

"""
