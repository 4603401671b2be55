"""`p2pfl sim sweep`: many runs from one file, in parallel, and their results in one table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, format_option, write_json, write_rows
from p2pfl.errors import UserError
from p2pfl.reporting.plot import check_picture
from sim.sweeps.figure import draw_sweep
from sim.sweeps.plan import load_sweep
from sim.sweeps.results import complaints, flat_rows, readable_rows
from sim.sweeps.run import SweepView, default_folder, run_sweep
from sim.sweeps.runners import cores, run_by_dask, run_here

if TYPE_CHECKING:
    from sim.sweeps.run import Sweep
    from sim.sweeps.runners import Runner

STOPPED = 130
EPILOG = """\b
A file, sweep.toml:
  [sweep]
  nodes = 20
  rounds = 40
  seeds = 5                # 0 to 4
  [axes]
  topology = ["ring", "random-regular:degree=4", "complete"]
  compressor = ["none", "q4"]

\b
Examples:
  p2pfl sim sweep sweep.toml                   run it, or go on with it
  p2pfl sim sweep sweep.toml --plot sweep.svg  and draw it
  p2pfl sim sweep sweep.toml --retry           run again what failed
"""


@click.command("sweep", epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="The folder of reports and results.  [default: FILE's name-results]",
)
@click.option("--jobs", type=click.IntRange(1), help="How many runs at a time.  [default: one for each core]")
@click.option("--retry", is_flag=True, help="Run failed runs again.")
@click.option(
    "--engine",
    type=click.Choice(["processes", "dask"]),
    default="processes",
    show_default=True,
    help="What runs them: processes of this machine, or Dask.",
)
@click.option("--scheduler", help="With --engine dask: host:port of a scheduler.  [default: processes here]")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the results: a .png, .svg or .pdf file.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@format_option("table", "json", "csv")
def command(
    *,
    file: Path,
    out: Path | None,
    jobs: int | None,
    retry: bool,
    engine: str,
    scheduler: str | None,
    plot: Path | None,
    quiet: bool,
    form: Form,
) -> int:
    """Run every combination of the axes in FILE over several seeds: a table with 95% confidence intervals.

    Every run leaves a report in the folder, under a hash of all that it depends on. Started again after a stop, a sweep
    goes on where it was; after a change of FILE it runs what is new. Exits with 1 if a run failed, 130 after Ctrl-C.
    """
    if plot is not None:
        check_picture(plot)
    runner = _runner(engine, scheduler, jobs or cores())
    with SweepView(quiet=quiet) as view:
        described, out = load_sweep(file), out or default_folder(file)
        sweep = run_sweep(described, out, runner=runner, retry=retry, on_change=view.update)
    _show(sweep, form)
    if plot is not None:
        draw_sweep(sweep.results, plot)
        click.echo(f"picture: {plot}", err=True)
    return _exit_code(sweep)


def _runner(engine: str, scheduler: str | None, count: int) -> Runner:
    if engine == "dask":
        import distributed as _  # noqa: F401, PLC0415 - an extra: missing, it must show at once

        return partial(run_by_dask, count=count, scheduler=scheduler)
    if scheduler is not None:
        raise UserError("only Dask has a scheduler", key="--scheduler", value=scheduler, allowed="with --engine dask")

    return partial(run_here, count=count)


def _show(sweep: Sweep, form: Form) -> None:
    found: dict[str, Any] = sweep.results
    match form:
        case "json":
            write_json(found)
        case "csv":
            write_rows(flat_rows(found), "csv")
        case "table":
            write_rows(readable_rows(found), "table")
    for line in complaints(found):
        click.echo(line, err=True)


def _exit_code(sweep: Sweep) -> int:
    standing = sweep.standing
    if sweep.interrupted:
        click.echo(f"stopped: {standing.done} of {standing.total} runs are done; start again to go on", err=True)
        return STOPPED
    if standing.failed:
        click.echo(f"{standing.failed} of {standing.total} runs failed; --retry runs them again", err=True)
        return 1
    return 0
