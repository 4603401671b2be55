"""`p2pfl topology list`, `info`, `compare`: the families of graphs, and the figures of one graph or of several."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from topologies.cli import terminal
from topologies.cli.terminal import (
    FAR_HELP,
    cell,
    far_options,
    format_option,
    read_distances,
    write_facts,
    write_json,
    write_rows,
)

if TYPE_CHECKING:
    from topologies.family import Family, FamilyParameter

GROUPS: Mapping[str, str] = {
    "static": "Static graphs: undirected, always the same. A federation can run them.",
    "schedule": "Schedules: undirected, another graph in each round. A federation can run them.",
    "directed": "Directed graphs, another in each round: for study. A federation cannot run them.",
}
MANY, LIMITS_S = 100_000, (10.0, 60.0)
"""The processor time that a graph may take by default: up to so many nodes, and with more."""
SHARE = 0.75
"""The part of it after which eigenvalues are looked for no longer: the other figures take the rest."""
INDENT = 26
LEGEND = """\
n is the number of nodes, lambda_2 the algebraic connectivity; in parentheses, parameters without a
default. The path of a graph file is a topology too. With its source: p2pfl topology list NAME"""

LIST_EXAMPLES = """\b
Examples:
  p2pfl topology list
  p2pfl topology list base
"""

CAUTION = "How fast a graph mixes does not alone say how well a network learns on it (Vogels et al., 2022)."
MEANING = """
What the words mean:
  algebraic connectivity   lambda_2, the second smallest eigenvalue of the Laplacian;
                           0 where disconnected
  certified                lambda_2 is proven to within a millionth; --certify tries harder
  method, residual         how lambda_2 was computed, and how far from an eigenvalue
                           the result can be
  mixing rate              factor by which one round of averaging with --weights shrinks
                           the distance to consensus: near 0 is fast, near 1 slow
  rounds to consensus      rounds until that distance is epsilon of what it was
  fewest rounds            no weights at all need fewer on these edges; with --weights optimal
  exchange, round          with --far: how long an exchange over an edge
                           takes, there and back, and a round of a node, which waits for
                           its neighbors, but not long for one much slower than the rest
  consensus                time until all agree, each node at its own pace: an estimate,
                           within about a factor of two of simulated nodes
  consensus in step        the same if all waited for all in each round, as no node does
  edge connectivity        edges that have to fail before the graph falls apart;
                           vertex connectivity: nodes
  bridges, cut nodes       edges, and nodes, of which one alone is enough for that
  thinnest cut             the narrowest place that was found: nodes on its two sides, and
                           edges across
  conductance              of all places, not only that cut: the smallest share of a side's
                           edge ends that lead across; the cut that was found is the upper
                           end, lambda_2 gives the lower one
  robustness               r: of any two separate groups one has a node with r neighbors
                           outside (LeBlanc 2013)
  liars per node           mixes: with so many lying neighbors a node still mixes;
                           guaranteed: with so many the honest agree for certain;
                           at most: with more they may not, even if nobody lies
  a to b                   the value lies in between, and is not known better
  not computed             the graph is too large for that; nothing is wrong

Of a schedule, or a directed graph:
  edges, diameter, algebraic connectivity   of all rounds together, without directions
  exact after              so many rounds after which every node has the mean itself
  mixing rate              from the worst start, a round's mean over one period
  certified                the mixing rate is right; connectivity certified: lambda_2 is
"""
INFO_EPILOG = f"""{FAR_HELP}
\b
Examples:
  p2pfl topology info torus -n 36 --explain
  p2pfl topology info ring -n 30 --far 28-29=60ms --train 50ms
  p2pfl topology info graph.json --model-bytes 400K --format json
  p2pfl topology info base:k=1 -n 25

Exit codes: 2 a mistake, 4 an eigenvalue did not converge, or not in time, or --certify could
not prove it.

{CAUTION}
"""


@click.command("list", epilog=LIST_EXAMPLES)
@click.argument("name", required=False)
@format_option("table", "json", "csv")
def list_command(name: str | None, form: str) -> None:
    """All families of graphs, or the one called NAME: parameters with defaults, rule, degree, lambda_2, source.

    A federation can run what is static, and schedules of undirected graphs. Directed graphs are for study only.
    """
    from topologies.errors import TopologyError, nearest, refuse_gone  # noqa: PLC0415 - `--help` stays instant
    from topologies.families import FAMILIES  # noqa: PLC0415 - as above

    if name is not None and name not in FAMILIES:
        refuse_gone("topology", name)
        raise TopologyError("unknown topology", key="name", value=name, allowed=nearest(name, FAMILIES))
    rows = [_row(each, family) for each, family in FAMILIES.items() if name in {None, each}]
    if form == "json":
        write_json(rows if name is None else rows[0])
    elif form == "csv":
        write_rows([_texts(row) for row in rows], form)
    elif name is not None:
        write_facts(_flat(rows[0]))
    else:
        for line in _page(rows):
            click.echo(line)


WITHIN_HELP = "Processor time to take.  [default: 10s up to 100,000 nodes, else 1m; with --certify any]"


@click.command(
    "info",
    help=f"What the graph SPEC is like: how connected, how fast it mixes, what it tolerates.\n\n{terminal.SPEC_HELP}",
    epilog=INFO_EPILOG,
)
@click.argument("spec")
@terminal.nodes_option()
@terminal.seed_option()
@terminal.weights_option()
@terminal.model_bytes_option()
@far_options
@click.option("--within", type=terminal.Time(), default=None, help=WITHIN_HELP)
@click.option("--certify", is_flag=True, help="Prove lambda_2, with minutes and gigabytes if need be.")
@click.option("--explain", is_flag=True, help="Also say what each figure means; not with --format json.")
@format_option("table", "json")
def info_command(
    *, weights: str | None, within: float | None, certify: bool, explain: bool, form: str, **asked: Any
) -> int:
    if not certify:
        # numpy's threads would wait for each other: several times slower on a shared processor
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from topologies.spectral import check_weights  # noqa: PLC0415 - `--help` stays instant

    if weights is not None:
        check_weights(weights)
    late = _late(within, certify=certify)
    described = _describe(weights=weights, certify=certify, late=late, **asked)
    if form == "json":
        write_json(described)
    else:
        write_facts(_readable_facts(described))
        click.echo(MEANING, nl=False) if explain else click.echo("note: --explain says what the words mean", err=True)
    return _verdict(described, late=late(described["nodes"]), certify=certify)


IN_STEP = "Schedules mix this fast while all nodes are in the same round; those of a federation are not."
IN_BYTES = ("bytes", "busiest_bytes")
COLUMNS_HELP = """\b
Columns:
  topology  n  edges  degree_max  lambda_2  mixing_rate  diameter
  rounds, messages, bytes  until consensus, from the worst start
  busiest_bytes            sent in a round by the node with the most neighbors
                           (it and bytes are shown only with --model-bytes)
  certified                lambda_2 is proven, not only computed

\b
Examples:
  p2pfl topology compare ring torus exponential -n 16,64,256
  p2pfl topology compare ring base:k=1 -n 16 --model-bytes 400K
"""


def _sizes(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Read integers separated by commas."""
    try:
        return () if text is None else tuple(map(int, text.split(",")))
    except ValueError:
        said = f"{text!r} is no list of sizes; allowed: whole numbers joined by commas, as 16,64"
        raise click.BadParameter(said) from None


@click.command(
    "compare",
    help=f"The graphs SPECS side by side: what each costs, and how fast it mixes.\n\n{terminal.SPEC_HELP}",
    epilog=COLUMNS_HELP,
)
@click.argument("specs", nargs=-1, required=True)
@click.option("-n", "--nodes", "sizes", metavar="N,N,...", callback=_sizes, help="How many nodes; several by commas.")
@terminal.weights_option()
@terminal.seed_option()
@terminal.model_bytes_option()
@format_option("table", "json", "csv")
def compare_command(
    *, specs: tuple[str, ...], sizes: tuple[int, ...], model_bytes: int | None, form: str, **asked: Any
) -> None:
    from topologies.families import is_static  # noqa: PLC0415 - `--help` stays instant
    from topologies.metrics.describe import compare  # noqa: PLC0415 - `--help` stays instant

    table = compare(specs, sizes, model_bytes=model_bytes, **asked)
    sized = model_bytes is not None
    write_rows([_readable_row(row, sized=sized) for row in table.rows] if form == "table" else table.rows, form)
    for missing in table.missing:
        click.echo(f"note: {missing}", err=True)
    if form == "table":
        click.echo(f"note: {CAUTION}", err=True)
        if not all(is_static(spec) for spec in specs):
            click.echo(f"note: {IN_STEP}", err=True)


def _row(name: str, family: Family) -> dict[str, Any]:
    return {
        "name": name,
        "spec": _spec(name, family.parameters),
        "parameters": {key: _default_text(parameter.default) for key, parameter in family.parameters.items()},
        "allowed": {key: parameter.allowed for key, parameter in family.parameters.items()},
        "meaning": {key: parameter.meaning for key, parameter in family.parameters.items() if parameter.meaning},
        "kind": family.kind.value,
        "live": family.kind.value != "directed",
        "random": family.random,
        "rule": family.rule,
        "degree": family.degree,
        "algebraic_connectivity": family.connectivity,
        "closed_form": family.closed is not None,
        "source": family.source,
    }


def _spec(name: str, parameters: Mapping[str, FamilyParameter]) -> str:
    """Write the family with its defaults, as a person would type it."""
    settings = [
        f"{key}={_default_text(known.default)}" for key, known in parameters.items() if known.default is not None
    ]
    return f"{name}:{','.join(settings)}" if settings else name


def _default_text(default: Any) -> Any:
    return "-".join(map(str, default)) if isinstance(default, tuple) else default


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one line for each parameter instead of three dictionaries."""
    facts = {key: value or None for key, value in row.items() if key not in {"parameters", "allowed", "meaning"}}
    for key, default in row["parameters"].items():
        said = [row["meaning"].get(key), row["allowed"][key], None if default is None else f"default {default}"]
        facts[f"parameter {key}"] = "; ".join(filter(None, said))
    return facts | {key: row[key] for key in ("live", "random", "closed_form")}


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return cells for CSV: a dictionary becomes `key=value; key=value`."""
    joined = {
        key: "; ".join(f"{name}={cell(part, '')}" for name, part in value.items())
        for key, value in row.items()
        if isinstance(value, dict)
    }
    return {key: joined.get(key, cell(value, "")) for key, value in row.items()}


def _page(rows: list[dict[str, Any]]) -> Iterator[str]:
    for kind, title in GROUPS.items():
        yield click.style(title, bold=True)
        yield ""
        for row in rows:
            if row["kind"] == kind:
                yield from _entry(row)
        yield ""
    yield LEGEND


def _entry(row: Mapping[str, Any]) -> Iterator[str]:
    """Write a family: its spec, and beside it, or below, what it is."""
    free = [key for key, default in row["parameters"].items() if default is None]
    name = row["spec"] + (f" ({', '.join(free)})" if free else "")
    lambda_2 = f"; lambda_2 {row['algebraic_connectivity']}" if row["algebraic_connectivity"] else ""
    if len(name) >= INDENT:
        yield name
        name = ""
    text = f"{name:{INDENT}}{row['rule']}; degree {row['degree']}{lambda_2}"
    indent = " " * INDENT
    yield from textwrap.wrap(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _late(within: float | None, *, certify: bool) -> Callable[[int], bool]:
    """Begin to measure processor time. Tells whether a graph of so many nodes has had what its eigenvalues may take."""
    began = time.process_time()
    limits = LIMITS_S if within is None else (within, within)
    return lambda nodes: not (certify and within is None) and time.process_time() - began > SHARE * limits[nodes > MANY]


def _describe(
    *,
    spec: str,
    nodes: int | None,
    seed: int,
    weights: str | None,
    certify: bool,
    model_bytes: int | None,
    far: Sequence[str],
    train: float,
    late: Callable[[int], bool],
) -> dict[str, Any]:
    from topologies.errors import TopologyError  # noqa: PLC0415 - as above
    from topologies.families import build_schedule, is_static, resolve  # noqa: PLC0415 - `--help` stays instant

    if is_static(spec) or nodes is None:
        from topologies.metrics.describe import survey  # noqa: PLC0415 - as above

        topology = resolve(spec, nodes, seed)
        apart = read_distances(topology.nodes, topology.names, far=far, train=train)
        known: dict[str, Any] = {"distances": apart, "train_s": train, "model_bytes": model_bytes}
        return survey(topology, weights, certify=certify, over=partial(late, topology.nodes), **known)
    if far:
        text = "the time of a schedule or a directed graph is not known"
        raise TopologyError(text, key="far", allowed="one static graph")
    from topologies.metrics.describe import bytes_sent, describe_schedule  # noqa: PLC0415 - as above

    described = describe_schedule(build_schedule(spec, nodes, seed))
    return described | ({} if model_bytes is None else bytes_sent(described, model_bytes))


LIMITED = ("bridges", "cut_nodes", "thinnest_cut")
"""Figures of a connected graph that are left out only if it is too large for them."""

IN_SECONDS = ("train_s", "exchange_s", "round_s", "consensus_s", "consensus_in_step_s")


def _words_for_too_large(facts: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    """Return the facts with one line for all that a connected graph is too large for."""
    if not described.get("connected") or described["nodes"] < 2:
        return facts
    beyond = [key for key in LIMITED if key in facts and facts[key] is None]
    words = {"not computed": f"too large for: {', '.join(beyond)}".replace("_", " ")} if beyond else {}
    return {key: value for key, value in facts.items() if key not in beyond} | words


def _readable_facts(described: dict[str, Any]) -> dict[str, Any]:
    """Return the facts for people: ranges in words, sizes with units, and nothing twice."""
    facts = _words_for_too_large({key: _readable(value) for key, value in described.items()}, described)
    if "diameter_bounds" in facts:
        facts["diameter"] = facts.pop("diameter_bounds")
    for key in ("probable_lower_bound", "lower_bound"):
        if facts.get("certified") is True or facts.get(key) is None:
            facts.pop(key, None)
    for key in ("converged", "mixing_converged"):
        facts.pop(key, None)  # a figure that did not converge is an error of its own
    for key in ("bytes_to_consensus", "bytes_per_round_busiest_node"):
        if isinstance(facts.get(key), int):
            facts[key] = terminal.readable_bytes(facts[key])
    facts = {
        key.removesuffix("_s"): _readable_time(value) if key in IN_SECONDS else value for key, value in facts.items()
    }
    if isinstance(facts.get("thinnest_cut"), dict):
        facts["thinnest_cut"] = {key: value for key, value in facts["thinnest_cut"].items() if key != "conductance"}
    if isinstance(facts.get("liars_per_node"), dict):
        facts["liars_per_node"] = {key: _readable(value) for key, value in facts["liars_per_node"].items()}
    return facts


def _readable_time(value: Any) -> Any:
    """Write seconds, or each of several, with a unit."""
    if isinstance(value, dict):
        return {key: _readable_time(part) for key, part in value.items()}
    if not isinstance(value, float):
        return value
    return f"{value:.3g} s" if value >= 1.0 or value == 0.0 else f"{1000.0 * value:.3g} ms"


def _readable(value: Any) -> Any:
    """Format a value; two numbers in a list are a range."""
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(end, int | float) for end in value):
        return value
    low, high = (cell(end) for end in value)
    return low if low == high else f"{low} to {high}"


def _verdict(described: dict[str, Any], *, late: bool, certify: bool) -> int:
    """Return the exit code: 4 if lambda_2 is not known, or not proven although required."""
    more = "; --within gives more time" if late else ""
    if not described.get("converged", True):
        text = "no eigenvalue converged: the algebraic connectivity is at most what is printed"
    elif not described.get("mixing_converged", True):
        text = "the eigenvalues behind the mixing rate did not converge"
    elif certify and not described["certified"]:
        text = "not certified: a proof was beyond its limits, or failed"
    else:
        return 0
    click.echo(f"error: {text}{more}", err=True)
    return 4


def _readable_row(row: dict[str, Any], *, sized: bool) -> dict[str, Any]:
    """Write sizes in words; without a model's size, omit the columns that need it."""
    sizes = {key: terminal.readable_bytes(row[key]) for key in IN_BYTES}
    return {key: sizes.get(key, value) for key, value in row.items() if sized or key not in IN_BYTES}
