"""`p2pfl sim run`: one federation in one world, and `p2pfl sim attacks`: how liars can lie in it."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, format_option, log_option, write_rows

if TYPE_CHECKING:
    from p2pfl.reporting.logs import Logs
    from p2pfl.reporting.report import Report
    from sim.cli.from_options import Options
    from sim.cli.views import RunView
    from sim.simulation import RunProgress

STOPPED = 130
EPILOG = """\b
Examples:
  p2pfl sim run
  p2pfl sim run --nodes 1000 --topology random-regular:degree=4 --rounds 20
  p2pfl sim run ward-7 --world bad.toml --report bad.json --plot bad.png
  p2pfl sim run --nodes 20 --byzantine 2 --attack sign-flip
  p2pfl sim run --world random --replay 17

What a world file says: docs/worlds.md. What the figures mean: docs/simulator.md.
"""


@click.command("run", epilog=EPILOG)
@click.argument("federation", required=False, type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(2), help="How many.  [default: the file's, or 8]")
@click.option("--topology", help="Who talks to whom: `p2pfl topology list`.  [default: the file's, or ring]")
@click.option("--rounds", type=click.IntRange(1), help="Own rounds of each node.  [default: the file's, or 40]")
@click.option(
    "--partition",
    help="Who holds which rows: iid, dirichlet:ALPHA[,LEAST], shards:K, classes:K, sizes:A,B,..., natural, draw:K.  "
    "[default: the file's, or shards:2; draw:14 of more than 500 nodes]",
)
@click.option("--rule", help="How neighbors are mixed: `p2pfl rules`.  [default: the file's, or mean]")
@click.option("--compressor", help="What travels: `p2pfl compressors`.  [default: the file's, or q4]")
@click.option("--method", metavar="SPEC", help="What nodes learn by: `p2pfl methods`.  [default: the file's]")
@click.option(
    "--privacy",
    metavar="SPEC",
    help='What is promised, as in "epsilon=8,delta=1e-5": keys of [privacy]; or none.  [default: the file\'s]',
)
@click.option("--byzantine", type=click.IntRange(0), metavar="K", help="So many nodes lie; chance chooses them.")
@click.option("--attack", metavar="NAME", help="How they lie: `p2pfl sim attacks`.")
@click.option(
    "--world", metavar="FILE", help="Speeds, links, faults and liars; or `random`: federation and world are drawn."
)
@click.option("--seed", type=click.IntRange(0), help="Of everything that chance decides.  [default: the file's, or 0]")
@click.option(
    "--replay",
    type=click.IntRange(0),
    metavar="SEED",
    help="This seed, one operation at a time, with every invariant checked after every event.",
)
@click.option("--no-batching", is_flag=True, help="One operation at a time: slow, and the same figures.")
@click.option(
    "--references/--no-references",
    default=None,
    help="Also what each node learns alone; or not even what a server or pooled data would have given.",
)
@click.option("--limit-s", type=float, metavar="SECONDS", help="End at this virtual time at the latest.")
@click.option(
    "--evaluate-every-s", type=float, metavar="SECONDS", help="Virtual time between two points of the history."
)
@click.option("--report", type=click.Path(path_type=Path), help="Write everything to this file, as JSON; - is stdout.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw accuracy, distance and bytes over time.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@log_option
@format_option("table", "json")
def command(
    *,
    federation: Path | None,
    seed: int | None,
    replay: int | None,
    no_batching: bool,
    references: bool | None,
    report: Path | None,
    plot: Path | None,
    quiet: bool,
    log: tuple[str, ...],
    form: Form,
    **asked: Any,
) -> int:
    """Simulate a federation: the code of every node, under virtual time, in this process.

    FEDERATION is a federation file, or the folder of its federation.toml; without it nodes learn the built-in digits,
    as in `p2pfl demo`. A node whose folder stands beside the file learns from the data that its node.toml names. The
    same seed gives the same run. Exits with 1 if --replay finds an invariant broken, with 130
    after Ctrl-C.
    """
    from p2pfl.console.output import where  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above
    from p2pfl.reporting.logs import open_logs  # noqa: PLC0415 - as above
    from sim.cli.from_options import Options  # noqa: PLC0415 - as above

    report, form = where(report, form)
    _check_targets(report, plot)
    if replay is not None and seed is not None:
        raise UserError("cannot be combined with --replay", key="--seed", value=seed, allowed="one of the two")
    options = Options(file=federation, seed=seed if replay is None else replay, **asked)
    how = {"batching": not no_batching, "check": replay is not None}
    how |= {"references": references is not False, "alone": bool(references)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logs = open_logs(log)
    try:
        found = _simulated(options, how, logs, quiet=quiet)
    except KeyboardInterrupt:
        click.echo(f"stopped; {'no report' if log else 'nothing'} was written", err=True)
        return STOPPED
    finally:
        logs.close()
    if found is None:
        return 1
    _deliver(found, report, plot, form)
    return 0


@click.command("attacks")
@format_option("table", "json", "csv")
def attacks(form: Form) -> None:
    """What may stand after `--attack`, and in a world's [liars]. In brackets: what may be left out.

    Your own attack is `file.py:object` or `module:object`: docs/byzantine.md.
    """
    from sim.attacks import ATTACKS  # noqa: PLC0415 - `--help` stays instant

    rows = [
        {"attack": one.usage, "shows": one.shows, "knows": one.knows, "source": one.source} for one in ATTACKS.values()
    ]
    write_rows(rows, form, title="attacks")


def _check_targets(report: Path | None, plot: Path | None) -> None:
    from p2pfl.console.output import check_report  # noqa: PLC0415 - as above
    from p2pfl.reporting.plot import check_picture  # noqa: PLC0415 - `--help` stays instant

    if report is not None:
        check_report(report)
    if plot is not None:
        check_picture(plot)


def _simulated(options: Options, how: dict[str, bool], logs: Logs, *, quiet: bool) -> Report | None:
    """The report; None where an invariant was broken, which has been told by then."""
    from sim.cli.from_options import build, without_file  # noqa: PLC0415 - as above
    from sim.cli.views import RunView  # noqa: PLC0415 - `--help` stays instant
    from sim.federations import own_tables  # noqa: PLC0415 - as above
    from sim.simulation import InvariantError, simulate  # noqa: PLC0415 - as above

    federation, world = build(options)
    if federation.task.name != "quadratic":
        import torch  # noqa: PLC0415 - the task's

        torch.set_num_threads(1)
    try:
        with RunView(quiet=quiet) as view, without_file(options):
            data = None if options.file is None else own_tables(federation)
            report = simulate(federation, world=world, data=data, on_progress=partial(_tell, view, logs), **how)
    except InvariantError as error:
        click.echo("\n".join(["the last events:", *(f"  {line}" for line in error.events)]), err=True)
        click.echo(f"error: {error}", err=True)
        return None
    for text in report.warnings:
        click.echo(f"warning: {text}", err=True)
    logs.point(report.history[-1] if report.history else None)
    if how["check"] and report.cost is not None:
        click.echo(f"every invariant held after each of {report.cost.events:,} events", err=True)
    return report


def _tell(view: RunView, logs: Logs, progress: RunProgress) -> None:
    logs.point(progress.point)
    view.update(progress)


def _deliver(found: Report, report: Path | None, plot: Path | None, form: Form) -> None:
    from p2pfl.console.output import write_report  # noqa: PLC0415 - `--help` stays instant
    from sim.cli.views import show  # noqa: PLC0415 - as above

    if report is not None:
        write_report(found, report)
    click.echo(found.to_json()) if form == "json" else show(found)
    if report is not None:
        click.echo(f"report: {report}", err=True)
    if plot is not None:
        found.plot(plot)
        click.echo(f"picture: {plot}", err=True)
