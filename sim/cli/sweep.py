"""`p2pfl sim sweep`: many runs from one file, in parallel, and their results in one table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from p2pfl.console.output import Form, write_json, write_rows
from p2pfl.errors import UserError
from p2pfl.reporting.plot import check_picture
from sim.sweeps.figure import draw_sweep
from sim.sweeps.plan import load_sweep
from sim.sweeps.results import complaints, flat_rows, readable_rows
from sim.sweeps.run import Sweep, SweepView, default_folder, run_sweep
from sim.sweeps.runners import Runner, cores, run_by_dask, run_here

STOPPED = 130


def sweep(
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
    """Carry the command out: see its options in `sim.cli`."""
    if plot is not None:
        check_picture(plot)
    runner = _runner(engine, scheduler, jobs or cores())
    with SweepView(quiet=quiet) as view:
        described, out = load_sweep(file), out or default_folder(file)
        found = run_sweep(described, out, runner=runner, retry=retry, on_change=view.update)
    _show(found, form)
    if plot is not None:
        draw_sweep(found.results, plot)
        click.echo(f"picture: {plot}", err=True)
    return _exit_code(found)


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
