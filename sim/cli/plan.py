"""`p2pfl plan`: which graph, rule, compressor and method fit the wishes, found by simulation."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, format_option, size, write_json, write_rows
from p2pfl.system import signals_held
from topologies.cli.terminal import Bytes

if TYPE_CHECKING:
    from sim.plans.search import SystemPlan, SystemStanding

STOPPED, REFUSED = 130, 1
OUT = Path("p2pfl-plan")
EPILOG = """\b
Examples:
  p2pfl plan --nodes 20 --max-degree 6 --liars 1 --world bad.toml
  p2pfl plan --nodes 200 --bytes-per-day 1G --within 20m
  p2pfl plan --task ward-7 --liars 1 -o ward-plan

It tries graphs of several degrees, rules, compressors and methods, simulates each once and the best of them with three
seeds under five attacks, and ranks them by the worst node in the worst condition. OUT then has the federation of the
best, graphs, and plan.json with the command of each figure. Exits with 1 if a wish cannot be had, and says what
can; with 130 after Ctrl-C, with the best so far. docs/how-to/plan.md
"""
LEGEND = "; attacked: of the worst under the worst attack; liars: so many beside a node are borne for certain"
DIVERGED = 1e29
"""Losses above this are those of models that are no longer finite."""


class _Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in later releases of click
    """A time with a unit, as 90s, 5m or 1h; seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([smh]?)", str(value).strip())
        seconds = float(match[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]] if match else 0.0
        if not seconds:
            self.fail(f"{value!r}; allowed: a time above zero, as 90s, 5m or 1h", param, ctx)
        return seconds


@click.command("plan", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", type=click.IntRange(2), metavar="N", help="Number of nodes; with --task FOLDER that of it.")
@click.option("--max-degree", type=click.IntRange(1), metavar="D", help="Most neighbors of a node.  [default: 12]")
@click.option("--liars", type=click.IntRange(0), default=0, metavar="K", help="So many nodes may lie, whichever.")
@click.option("--world", type=click.Path(path_type=Path, exists=True), help="Speeds, links, faults: a world file.")
@click.option("--bytes-per-day", type=Bytes(), metavar="BYTES", help="Most that any node may send in a day, as 1G.")
@click.option(
    "--task",
    default="digits",
    show_default=True,
    metavar="TASK",
    help="digits, or a federation's folder: its task, data and training.",
)
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Rounds of each node.  [default: the task's]")
@click.option("--partition", metavar="SPEC", help="Who holds which rows: see `p2pfl sim run --help`.")
@click.option("--within", type=_Duration(), default="5m", show_default=True, metavar="TIME", help="Time for all of it.")
@click.option("-o", "--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="The folder.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@format_option("table", "json")
def plan(*, within: float, out: Path, quiet: bool, form: Form, **wished: Any) -> int:
    """Find the system for your wishes: which graph, rule, compressor and method, by simulation."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded: threads take turns on small matrices
    from sim.plans.search import make_plan  # noqa: PLC0415 - `--help` stays instant
    from sim.plans.systems import PlanWishes  # noqa: PLC0415 - as above
    from sim.plans.winner import check_place, evidence, write_plan  # noqa: PLC0415 - as above
    from sim.sweeps.run import (  # noqa: PLC0415 - as above
        ENDING,
        cores,
        ended_by_signals,
    )

    check_place(out)
    try:
        with ended_by_signals(), _view(within, quiet=quiet) as tell:
            ranked = make_plan(PlanWishes(**wished), out, within_s=within, jobs=cores(), tell=tell)
    except KeyboardInterrupt:
        click.echo("stopped before any run had ended; the same command begins again", err=True)
        return STOPPED
    with signals_held(*ENDING):
        winner = write_plan(ranked, out)
    if form == "json":
        write_json(evidence(ranked))
    else:
        write_rows([_row(standing) for standing in ranked.ranking], "table")
    _advise(ranked, winner)
    return STOPPED if ranked.interrupted else REFUSED if ranked.refused else 0


def _view(within_s: float, *, quiet: bool) -> Any:
    from p2pfl.console.output import ProgressView  # noqa: PLC0415 - `--help` stays instant
    from sim.progress import duration  # noqa: PLC0415 - as above

    class PlanView(ProgressView):
        """Shows how much of the time is used, and what is being done."""

        begun = time.monotonic()

        def __enter__(self) -> Any:
            super().__enter__()
            return self.tell

        def tell(self, words: str) -> None:
            used_s = min(time.monotonic() - self.begun, within_s)
            self.show(f"{words}; at most {duration(within_s - used_s)} left")

    return PlanView(quiet=quiet)


def _row(standing: SystemStanding) -> dict[str, Any]:
    from sim.progress import duration  # noqa: PLC0415 - `--help` stays instant

    system = standing.system
    low, high = system.guaranteed
    row: dict[str, Any] = {"degree": system.graph.degree}
    if system.hides is None:
        rule, method = (words.partition(":")[0] for words in (system.rule, system.method))
        row |= {"rule": rule, "compressor": system.compressor, "method": method}
    else:
        row |= {"bits": system.hides.bits, "outer": system.hides.outer, "outer_rate": system.hides.outer_rate or "-"}
    row |= {"worst": _figure(standing.honest_worst), "mean": _figure(standing.honest_mean)}
    if standing.lied_to is not None:
        row |= {"attacked": _figure(standing.worst), "liars": str(low) if low == high else f"{low} to {high}"}
    return row | {
        "bytes/day": size(standing.bytes_per_day),
        "time": duration(standing.time_s) if standing.time_s else "-",  # nodes in step have no clock
    }


def _figure(value: float) -> str:
    return "diverged" if abs(value) > DIVERGED else f"{value:.3f}"


def _advise(ranked: SystemPlan, winner: Path) -> None:
    from sim.plans.search import HONEST  # noqa: PLC0415 - as above
    from sim.plans.winner import command_of  # noqa: PLC0415 - as above
    from topologies.plots import counted  # noqa: PLC0415 - as above

    label, best = ranked.measure.label, ranked.winner
    attacks = f", {counted(best.attacks, 'attack')}" if best.attacks else ""
    order = "best first, of equals in two digits the one that sends less"
    rough = ", by arrays where they can" if any(standing.arrays for standing in ranked.ranking) else ", exact"
    click.echo(f"each line: {counted(best.seeds, 'seed')}{attacks}{rough}; {order}", err=True)
    click.echo(
        f"worst, mean: {label} of the honest nodes if nobody lies" + LEGEND * bool(ranked.wishes.liars), err=True
    )
    for text in ranked.refused:
        click.echo(f"cannot be had: {text}", err=True)
    if ranked.interrupted:
        click.echo("stopped: this is the best so far; the same command goes on", err=True)
    elif ranked.hurried:
        text = f"time was short: {ranked.tried} of {ranked.of} systems had a look; a longer --within shows more"
        click.echo(text, err=True)
    if ranked.failures:
        failed = counted(len(ranked.failures), "run")
        click.echo(f"{failed} failed, and its system is left out: {ranked.failures[0]}", err=True)
    arrays = f", of which {ranked.by_arrays:,} by arrays" if ranked.by_arrays else ", all exact"
    done = f"{counted(ranked.runs, 'run')} of {counted(ranked.tried, 'system')}{arrays}"
    click.echo(f"{done}. Every figure: {winner.parent / 'plan.json'}", err=True)
    attack = HONEST if best.lied_to is None else best.lied_to[0]
    click.echo(f"repeat the first line: {command_of(ranked, best, attack, ranked.wishes.seed)}", err=True)
    if ranked.wishes.base is None:
        click.echo(f"run it: p2pfl launch {winner}", err=True)
    else:
        text = f"write what {winner}/changes.toml says into every node's federation.toml, and copy graph.json beside it"
        click.echo(f"use it: {text}", err=True)
        if ranked.wishes.base.admin:
            rounds = "" if ranked.wishes.rounds is None else f" --rounds {ranked.wishes.rounds}"
            text = f"then, as the admin decides the graph: p2pfl member set FOLDER --topology graph.json{rounds}"
            click.echo(text, err=True)
