"""`p2pfl sim run`: one federation in one world."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, format_option, log_option, report_target, write_report
from p2pfl.errors import UserError
from sim.cli import gone

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig
    from p2pfl.reporting.logs import Logs
    from p2pfl.reporting.report import Report
    from sim.progress import RunProgress, RunView
    from sim.worlds.model import WorldSpec

STOPPED = 130


class Switch(click.Option):
    """An option with a `--no-` form, which the help shows as `--[no-]name`."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (f"--[no-]{self.opts[0].removeprefix('--')}", record[1])


EPILOG = """\b
Examples:
  p2pfl sim run
  p2pfl sim run --nodes 1000 --topology random-regular:degree=4 --rounds 20
  p2pfl sim run ward-7 --world bad.toml --report bad.json

World files: docs/reference/worlds.md. The figures: docs/how-to/simulate.md.
"""


@click.command("run", epilog=EPILOG)
@click.argument("federation", required=False, type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(2), metavar="N", help="Number of nodes.  [default: 8]")
@click.option("--topology", metavar="SPEC", help="See `p2pfl topology list`.  [default: ring]")
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Rounds of each node.  [default: 40]")
@click.option(
    "--partition",
    metavar="SPEC",
    help="Who holds which rows: iid, shards:K, dirichlet:ALPHA[,LEAST], classes:K, sizes:A,B,..., natural, draw:K.  "
    "[default: shards:2; over 500 nodes draw:14]",
)
@click.option("--rule", metavar="SPEC", help="See `p2pfl list rules`.  [default: mean]")
@click.option("--compressor", metavar="SPEC", help="See `p2pfl list compressors`.  [default: q4]")
@click.option("--method", metavar="SPEC", help="See `p2pfl list methods`.")
@click.option("--privacy", metavar="SPEC", help="Keys of [privacy], as epsilon=8; or none.")
@click.option("--byzantine", type=click.IntRange(0), metavar="K", help="Number of liars, chosen at random.")
@click.option("--attack", metavar="NAME", help="See `p2pfl list attacks`.")
@click.option("--world", metavar="FILE", help="Speeds, links, faults, liars.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of all randomness.  [default: 0]")
@gone("--replay", "a seed repeats a run; `make faults` of a checkout checks every invariant after every event")
@gone("--no-batching", "there is one way to compute a run")
@gone("--workers", "use p2pfl sim sweep --jobs")
@click.option("--arrays", is_flag=True, help="As arrays, for very many nodes.")
@click.option("--clock", type=click.Choice(["apart", "in-step"]), help="Of --arrays.  [default: apart]")
@click.option(
    "--references/--no-references",
    cls=Switch,
    default=None,
    help="Also each node alone; no: nothing else.",
)
@click.option("--limit-s", type=float, metavar="S", help="End at this virtual time at the latest.")
@click.option("--evaluate-every-s", type=float, metavar="S", help="Between two points of the history.")
@click.option("--report", type=click.Path(path_type=Path), help="Write the report, as JSON; - is stdout.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw accuracy, distance and bytes over time.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@log_option
@format_option("table", "json")
def command(
    *,
    arrays: bool,
    clock: str | None,
    references: bool | None,
    report: Path | None,
    plot: Path | None,
    quiet: bool,
    log: tuple[str, ...],
    form: Form,
    **asked: Any,
) -> int:
    """Simulate a federation: the code of every node, under virtual time.

    FEDERATION is a federation file, or the folder of its federation.toml, whose values are the defaults. Without it,
    nodes learn the built-in digits. A node whose folder is beside the file learns from its own data. Exits with 130
    after Ctrl-C.
    """
    from p2pfl.reporting.logs import check_target, open_logs  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.reporting.plot import check_picture  # noqa: PLC0415 - as above
    from sim.cli.views import show  # noqa: PLC0415 - as above

    report, form = report_target(report, form)
    if report is not None:
        check_target(report, key="--report")
    if plot is not None:
        check_picture(plot)
    for key, value in {"--references": references or None}.items() if arrays else {"--clock": clock}.items():
        if value is not None:
            how_else = "without" if arrays else "with"
            raise UserError(f"is for runs {how_else} --arrays", key=key, value=value, allowed=f"{how_else} --arrays")
    if "P2PFL_COMPILED" in os.environ:
        click.echo("note: P2PFL_COMPILED is ignored: there is no compiled unit any more", err=True)
    asked = {key: value for key, value in asked.items() if value is not None}
    how = {"references": references is not False, "alone": bool(references), "arrays": arrays, "clock": clock}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logs = open_logs(log)
    try:
        federation, world = _build(asked | {"arrays": arrays, "clock": clock})
        with _named_as_asked(asked):
            found = _simulate(federation, world, how, logs, data="federation" in asked, quiet=quiet)
    except KeyboardInterrupt:
        click.echo(f"stopped; {'no report' if log else 'nothing'} was written", err=True)
        return STOPPED
    finally:
        logs.close()
    if report is not None:
        write_report(found, report)
    click.echo(found.to_json()) if form == "json" else show(found)
    if report is not None:
        click.echo(f"report: {report}", err=True)
    if plot is not None:
        found.plot(plot)
        click.echo(f"picture: {plot}", err=True)
    return 0


def _build(asked: Mapping[str, Any]) -> tuple[FederationConfig, WorldSpec]:
    """Build what the options describe; paths in them start in the working folder. Raises UserError as `build_run`."""
    from p2pfl.methods import allowed, from_here  # noqa: PLC0415 - `--help` stays instant
    from sim.attacks import ALLOWED_ATTACKS, make_attack, with_absolute_path  # noqa: PLC0415 - as above
    from sim.sweeps.job import build_run  # noqa: PLC0415 - as above

    options = dict(asked)
    if "federation" in options:
        options["base"] = str(options.pop("federation"))
    if options.get("world") == "random" and not Path("random").exists():
        instead = "a file; `python tests/faults/many_worlds.py` of a checkout draws worlds"
        raise UserError("random worlds are gone", key="--world", value="random", allowed=instead)
    method, attack = options.get("method"), options.get("attack")
    try:
        if method is not None:
            options["method"] = from_here(method)
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
    """Name options instead of FEDERATION in errors: all of them if there is no file, otherwise only a compressor, which
    must fit the model, and privacy.
    """
    try:
        yield
    except UserError as error:
        table, _, name = (error.key or "").partition(".")
        if error.key == "gossip.compressor" and "compressor" in asked:
            error.file, error.key = None, "--compressor"
        elif table.startswith("privacy") and "privacy" in asked:
            error.file, error.key = None, f"--privacy {error.key}".replace("privacy privacy.", "privacy ")
        elif "federation" not in asked and table in ("federation", "task", "training", "gossip") and name:
            known = {one.name for one in command.params}
            error.file, error.key = None, f"--{name}" if name in known else name
        raise


def _simulate(
    federation: FederationConfig, world: WorldSpec, how: dict[str, Any], logs: Logs, *, data: bool, quiet: bool
) -> Report:
    from sim.federations import own_tables  # noqa: PLC0415 - `--help` stays instant
    from sim.progress import RunView  # noqa: PLC0415 - as above
    from sim.simulation import simulate  # noqa: PLC0415 - as above

    if world.path is not None and world.links.loss:
        text = "links.loss now loses packets, which TCP sends again; messages that vanish for good are links.drop"
        click.echo(f"note: {world.path}: {text}", err=True)
    if federation.task.name != "quadratic":
        import torch  # noqa: PLC0415 - the task's

        torch.set_num_threads(1)
    with RunView(quiet=quiet) as view:
        tables = own_tables(federation) if data else None
        report = simulate(federation, world=world, data=tables, on_progress=partial(_tell, view, logs), **how)
    for text in report.warnings:
        click.echo(f"warning: {text}", err=True)
    logs.point(report.history[-1] if report.history else None)
    return report


def _tell(view: RunView, logs: Logs, progress: RunProgress) -> None:
    logs.point(progress.point)
    view.update(progress)
