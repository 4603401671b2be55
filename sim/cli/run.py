"""`p2pfl sim run`: one federation in one world; a table of its nodes, or of the worst of many, and its summary."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from p2pfl.config.model import FederationConfig
from p2pfl.console.output import (
    Form,
    beyond_facts,
    cell,
    learned_facts,
    node_rows,
    reference_facts,
    report_target,
    score_words,
    size,
    write_facts,
    write_report,
    write_rows,
)
from p2pfl.errors import UserError
from p2pfl.learn.metrics import Measure
from p2pfl.methods import allowed, from_here, parse_method
from p2pfl.reporting.figures import AGREED
from p2pfl.reporting.measures import measures_of, merit, value_of
from p2pfl.reporting.plot import check_target
from p2pfl.reporting.report import NodeReport, Report
from sim.attacks import ALLOWED_ATTACKS, make_attack, with_absolute_path
from sim.federations import own_tables
from sim.progress import RunView
from sim.sweeps.job import DESCRIBED, build_run
from sim.worlds.model import WorldSpec

STOPPED = 130
MOST_ROWS = 20
WORST = 5
MOST_NAMES = 8


def run(
    *,
    arrays: bool,
    clock: str | None,
    references: bool | None,
    report: Path | None,
    quiet: bool,
    form: Form,
    **asked: Any,
) -> int:
    """Carry the command out: see its options in `sim.cli`."""
    report, form = report_target(report, form)
    if report is not None:
        check_target(report, key="--report")
    asked = {key: value for key, value in asked.items() if value is not None}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        federation, world = _build(asked | {"arrays": arrays, "clock": clock})
        for key, value in {"--references": references or None}.items() if arrays else {"--clock": clock}.items():
            if value is not None:
                how_else = "without --arrays" if arrays else "with --arrays"
                raise UserError(f"is for runs {how_else}", key=key, value=value, allowed=how_else)
        how = {"references": references is not False, "alone": bool(references), "arrays": arrays, "clock": clock}
        with _named_as_asked(asked):
            outcome = _simulate(federation, world, how, data="federation" in asked, quiet=quiet)
    except KeyboardInterrupt:
        click.echo("stopped; nothing was written", err=True)
        return STOPPED
    if report is not None:
        write_report(outcome, report)
    click.echo(outcome.to_json()) if form == "json" else show(outcome)
    if report is not None:
        click.echo(f"report: {report}", err=True)
    return 0


def _build(asked: Mapping[str, Any]) -> tuple[FederationConfig, WorldSpec]:
    """Build what the options describe; paths in them start in the working folder. Raises UserError as `build_run`."""
    options = dict(asked)
    if "federation" in options:
        options["base"] = str(options.pop("federation"))
    if options.get("world") == "random" and not Path("random").exists():
        instead = "a file; `python tests/faults/many_worlds.py` of a checkout draws worlds"
        raise UserError("random worlds are gone", key="--world", value="random", allowed=instead)
    method, attack = options.get("method"), options.get("attack")
    try:
        if method is not None:
            options["method"] = from_here(str(parse_method(method)))
    except ValueError as error:
        raise UserError(str(error), key="--method", value=method, allowed=allowed()) from None
    if attack is not None:
        if options.get("byzantine") == 0:
            text, instead = "an attack without liars", "with --byzantine K, or [liars]"
            raise UserError(text, key="--attack", value=attack, allowed=instead)
        try:
            make_attack(attack)
        except (UserError, ValueError) as error:
            given = (
                error if isinstance(error, UserError) else UserError(str(error), value=attack, allowed=ALLOWED_ATTACKS)
            )
            given.key = "--attack"
            raise given from None
        options["attack"] = with_absolute_path(attack, Path())
    return build_run(options)


@contextmanager
def _named_as_asked(asked: Mapping[str, Any]) -> Iterator[None]:
    """Name options, not FEDERATION, in errors: all without a file, else privacy and a compressor (it must fit)."""
    try:
        yield
    except UserError as error:
        table, _, name = (error.key or "").partition(".")
        if error.key == "gossip.compressor" and "compressor" in asked:
            error.file, error.key = None, "--compressor"
        elif error.key == "liars.attack" and "attack" in asked:
            error.file, error.key = None, "--attack"
        elif table.startswith("privacy") and "privacy" in asked:
            error.file, error.key = None, f"--privacy {error.key}".replace("privacy privacy.", "privacy ")
        elif error.key == "training.closing" and "closing" in asked:
            error.file, error.key = None, "--closing"
        elif "federation" not in asked and table in ("federation", "task", "training", "gossip") and name:
            error.file, error.key = None, f"--{name}" if name in {*DESCRIBED, "seed"} else name
        raise


def _simulate(
    federation: FederationConfig, world: WorldSpec, how: dict[str, Any], *, data: bool, quiet: bool
) -> Report:
    from sim.simulation import simulate  # noqa: PLC0415 - as above

    if federation.task.name != "quadratic":
        import torch  # noqa: PLC0415 - the task's

        torch.set_num_threads(1)
    with RunView(quiet=quiet) as view:
        tables = own_tables(federation) if data else None
        report = simulate(federation, world=world, data=tables, on_progress=view.update, **how)
    for text in report.warnings:
        click.echo(f"warning: {text}", err=True)
    return report


def show(report: Report) -> None:
    nodes, measures = report.nodes, measures_of([report, *report.nodes])
    if len(nodes) <= MOST_ROWS:
        write_rows(node_rows(nodes, measures), "table")
    else:
        rows = node_rows(_worst(nodes, measures[0]), measures)
        write_rows(rows, "table", title=f"the worst {len(rows)} of {len(nodes):,} nodes")
    write_facts(
        _learning_facts(report)
        | _set_apart(reference_facts(report))
        | _cost_facts(report)
        | {"  ": ""}
        | _graph_facts(report)
        | {"   ": ""}
        | _computation_facts(report)
    )


def _worst(nodes: list[NodeReport], main: Measure) -> list[NodeReport]:
    """Return the honest finished nodes that learned least; of all nodes, if no honest one finished."""
    ended = [node for node in nodes if node.finished and not node.byzantine] or nodes
    return sorted(ended, key=lambda node: merit(value_of(node, main), main))[:WORST]


def _learning_facts(report: Report) -> dict[str, Any]:
    main = report.main_measure
    return {
        "nodes": _standing(report.nodes),
        "died": _names(report.died),
        "byzantine": _names(report.byzantine),
        "alarms": _alarms(report.nodes),
        **_mixing_facts(report),
        **_privacy_facts(report),
        **learned_facts(report, worst_of="honest node", mean_of="of the honest"),
        **_attack_facts(report),
        "the mean of the honest models": score_words(report.mean_model, main) if report.mean_model else None,
        "consensus distance": report.consensus_distance,
    }


def _privacy_facts(report: Report) -> dict[str, Any]:
    """Return the privacy figures. A simulation makes no promise: it shows what keeping one costs."""
    privacy = (report.config or {}).get("privacy")
    if privacy is None:
        return {}
    if "hide" in privacy:
        return {"privacy": f"hidden models: {privacy['bits']} bits, outer step {privacy['outer']}"}
    amount = f"epsilon {privacy['epsilon']:g}" if privacy["noise"] is None else f"noise {privacy['noise']:g}"
    return {"privacy": f"by {privacy['unit']}: {amount}, delta {privacy['delta']:g}, clip {privacy['clip']:g}"}


def _mixing_facts(report: Report) -> dict[str, Any]:
    """Return how often nodes mixed; nothing for the mean, with which every exchange mixes."""
    honest = [node for node in report.nodes if not node.byzantine and node.rounds_mixed is not None]
    if not honest:
        return {}
    mixed, alone = sum(node.rounds_mixed or 0 for node in honest), sum(node.rounds_alone or 0 for node in honest)
    return {
        "rule": report.rule,
        "rounds that the rule mixed": f"{mixed:,}" + (f", and {alone:,} with too few neighbors" if alone else ""),
    }


def _attack_facts(report: Report) -> dict[str, Any]:
    """Return how often poisoned data misled the honest nodes' models as intended."""
    success = report.attack_success
    if not success:
        return {}
    return {
        "attack": report.attack,
        "attack success, mean of the honest": success.mean,
        "attack success, from least to most": f"{cell(success.min)} to {cell(success.max)}",
    }


def _standing(nodes: list[NodeReport]) -> str:
    states = Counter(node.state for node in nodes)
    return ", ".join(f"{count:,} {state}" for state, count in states.most_common())


def _alarms(nodes: list[NodeReport]) -> str | None:
    total: Counter[str] = Counter()
    for node in nodes:
        total.update(node.alarms or {})
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(total.items())) or None


def _names(names: list[str]) -> str | None:
    if not names:
        return None
    more = f", ... ({len(names):,} in all)" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _set_apart(facts: dict[str, Any]) -> dict[str, Any]:
    """Put an empty line before and after these lines."""
    return {" ": ""} | facts | ({"    ": ""} if facts else {})


def _cost_facts(report: Report) -> dict[str, Any]:
    count, staleness, sent = len(report.nodes), report.staleness, report.bytes_sent or 0
    rounds, messages = [node.rounds or 0 for node in report.nodes], report.messages_sent
    limit = ", ended by the limit" if report.reached_limit else ""
    return {
        "rounds of a node": _range(rounds),
        **beyond_facts(report),
        "virtual time": None if report.virtual_time_s is None else f"{report.virtual_time_s:.4g} s{limit}",
        "sent, by a node": size(sent / count) + ("" if messages is None else f" in {messages / count:,.0f} messages"),
        "sent, in all": size(sent) + ("" if messages is None else f" in {messages:,} messages"),
        "staleness": staleness and f"{staleness.mean:.3g} rounds, at most {staleness.max:,}",
    }


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}, mean {sum(values) / len(values):,.4g}"


def _graph_facts(report: Report) -> dict[str, Any]:
    """Return the graph's figures. A schedule's: lambda_2 of all edges, and a round's contraction is of the period's."""
    period = len(report.config["schedule"])
    of_union = f" of all {period} rounds' edges" if period else ""
    on_average = f", one of {period} rounds" if period else ""
    contraction, predicted = report.contraction, report.contraction.predicted
    return {
        "topology": report.topology,
        f"algebraic connectivity{of_union}": report.algebraic_connectivity,
        f"contraction, predicted{on_average}": AGREED if predicted is not None and predicted < 1e-12 else predicted,
        f"contraction, measured{on_average}": contraction.measured,
    }


def _computation_facts(report: Report) -> dict[str, Any]:
    cost = report.cost
    if cost is None:
        raise ValueError("not the report of a simulation")
    speed = cost.node_rounds_per_cpu_s
    return {
        "seed": report.seed,
        "digest": report.digest,
        "value digest": report.value_digest,
        "computed": report.computed,
        "node-rounds a CPU-second": speed and f"{speed:,.0f}, without evaluation",
        "CPU-seconds": f"{cost.cpu_s:.3g}",
        "events": f"{cost.events:,}" if cost.events else None,
        "peak memory": report.peak_memory_bytes and size(report.peak_memory_bytes),
    }
