"""`p2pfl sim sweep`: many runs from one file, in parallel, and their results in one table.

`p2pfl sim compare`: what many nodes learn on each of several graphs, as arrays.

`p2pfl sim plot`: draw reports side by side, or the results of a sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import msgspec

from p2pfl.console.output import Form, cell, write_json, write_rows
from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE, read_file
from p2pfl.reporting.measures import value_of, worst
from p2pfl.reporting.plot import X, check_picture, draw_runs
from p2pfl.reporting.report import Report
from sim.sweeps.figure import draw_sweep
from sim.sweeps.plan import SweepFile, load_sweep
from sim.sweeps.results import Results, complaints, flat_rows, readable_rows
from sim.sweeps.run import Folder, Runner, Sweep, SweepView, cores, default_folder, run_by_dask, run_here, run_sweep
from topologies.cli.terminal import readable_bytes

STOPPED = 130


def sweep(
    *,
    file: Path,
    out: Path | None,
    jobs: int | None,
    scheduler: str | None,
    quiet: bool,
    form: Form,
) -> int:
    """Carry the command out: see its options in `sim.cli`."""
    runner: Runner = partial(run_here, count=jobs or cores())
    if scheduler is not None:
        import distributed as _  # noqa: F401, PLC0415 - an extra: missing, it must show at once

        runner = partial(run_by_dask, scheduler=scheduler)
    with SweepView(quiet=quiet) as view:
        described, out = load_sweep(file), out or default_folder(file)
        results = run_sweep(described, out, runner=runner, on_change=view.update)
    _show(results, form)
    return _exit_code(results)


def _show(sweep: Sweep, form: Form) -> None:
    results: dict[str, Any] = sweep.results
    match form:
        case "json":
            write_json(results)
        case "csv":
            write_rows(flat_rows(results), "csv")
        case "table":
            write_rows(readable_rows(results), "table")
    for line in complaints(results):
        click.echo(line, err=True)


def _exit_code(sweep: Sweep) -> int:
    standing = sweep.standing
    if sweep.interrupted:
        click.echo(f"stopped: {standing.done} of {standing.total} runs are done; start again to go on", err=True)
        return STOPPED
    if standing.failed:
        click.echo(f"{standing.failed} of {standing.total} runs failed; the same command runs them again", err=True)
        return 1
    return 0


def compare(*, graphs: tuple[str, ...], plot: Path | None, quiet: bool, form: Form, **asked: Any) -> int:
    """Carry the command out: see its options in `sim.cli`."""
    if plot is not None:
        check_picture(plot)
    graphs = tuple(dict.fromkeys(graphs))
    reports = _reports(graphs, {key: value for key, value in asked.items() if value is not None}, quiet=quiet)
    if reports is None:
        click.echo("stopped; nothing was compared", err=True)
        return STOPPED
    rows = [_row(graph, report) for graph, report in zip(graphs, reports, strict=True)]
    write_rows(rows if form == "json" else [_shown(row) for row in rows], form)
    if plot is not None:
        draw_runs(reports, plot, "bytes", graphs)
        click.echo(f"picture: {plot}", err=True)
    return 0


def _reports(graphs: tuple[str, ...], asked: dict[str, Any], *, quiet: bool) -> list[Report] | None:
    """Run one federation on each graph, a sweep without folder; None after Ctrl-C. Raises UserError, with the graph."""
    seeds = (asked.pop("seed", 0),)
    file = SweepFile(
        path=Path.cwd() / "graphs", fixed={"arrays": True, **asked}, axes={"topology": graphs}, seeds=seeds
    )
    with TemporaryDirectory() as place, SweepView(quiet=quiet) as view:
        sweep = run_sweep(file, Path(place), runner=partial(run_here, count=cores()), on_change=view.update)
        if sweep.interrupted:
            return None
        for row in sweep.results["rows"]:
            if row["failed"]:
                raise UserError(f"{row['values']['topology']}: {row['failed'][0]['reason']}", key="GRAPH")
        reports = [Folder(Path(place)).report(row["keys"][0]) for row in sweep.results["rows"]]
        return [Report.from_json(content) for content in reports if content is not None]


def _row(graph: str, report: Report) -> dict[str, Any]:
    main, rates, time_s = report.main_measure, report.contraction, report.virtual_time_s
    learned = value_of(report, main)
    return {
        "graph": graph,
        "worst": learned and worst(learned, main),
        "mean": learned and learned.mean,
        "apart": report.consensus_distance,
        "sent": (report.bytes_sent or 0) / len(report.nodes),
        **({} if time_s is None else {"time, s": time_s}),
        "lambda_2": report.algebraic_connectivity,
        "predicted": rates.predicted,
        "measured": rates.measured,
    }


def _shown(row: dict[str, Any]) -> dict[str, str]:
    """Format a row for a table of 80 columns, in which a spec is whole, so that it can be used again."""
    figures = {
        key: cell(None) if value is None else _brief(f"{value:.3g}") for key, value in row.items() if key != "graph"
    }
    rates = [cell(None) if row[key] is None else _brief(f"{row[key]:.3f}") for key in ("predicted", "measured")]
    figures |= {
        "apart": _brief(f"{row['apart']:.2g}"),
        "sent": readable_bytes(float(figures["sent"])),
        "lambda": figures["lambda_2"],
        "mixing": " ".join(rates),
    }
    del figures["lambda_2"], figures["predicted"], figures["measured"]
    return {"graph": row["graph"]} | figures


def _brief(figure: str) -> str:
    return figure.lstrip("0") or "0"


RESULTS = "results.json"
COMPARISON = Path("comparison.png")
WANTED = "the report of a run (`sim run --report`, `demo`, `launch`), or a sweep's folder or its results.json"


def plot(*, reports: tuple[Path, ...], output: Path | None, x: X | None) -> None:
    """Carry the command out: see its options in `sim.cli`."""
    files = [path / RESULTS if path.is_dir() else path for path in reports]
    target = output or (files[0].with_suffix(".png") if len(files) == 1 else COMPARISON)
    check_picture(target, key="--output")
    contents = [read_file(file, allowed=WANTED) for file in files]
    sweeps = [_sweep(content) for content in contents]
    if any(sweeps):
        _draw_sweep(sweeps, files, target, x)
    else:
        _draw_runs(contents, files, target, x)
    click.echo(f"picture: {target}", err=True)


def _sweep(content: bytes) -> dict[str, Any] | None:
    """Read the results of a sweep; None if this is something else."""
    try:
        results = msgspec.json.decode(content, type=Results)
    except UNREADABLE:
        return None
    plain: dict[str, Any] = msgspec.to_builtins(results)
    return plain


def _draw_sweep(sweeps: Sequence[dict[str, Any] | None], files: Sequence[Path], target: Path, x: X | None) -> None:
    if len(files) > 1 or sweeps[0] is None:
        raise UserError("a sweep is drawn by itself", key="REPORT", value=len(files), allowed="one sweep, or reports")
    if x is not None:
        raise UserError("the axes of a sweep decide what runs across", key="--x", value=x, allowed="not with a sweep")
    draw_sweep(sweeps[0], target)


def _draw_runs(contents: Sequence[bytes], files: Sequence[Path], target: Path, x: X | None) -> None:
    """Draw runs over time, or `x`; over rounds if real runs are mixed with simulated ones, whose seconds differ."""
    runs = [_run(*pair) for pair in zip(contents, files, strict=True)]
    one_clock = len({run.simulated for run in runs}) == 1
    draw_runs(runs, target, x or ("time" if one_clock else "rounds"), _labels(files))


def _run(content: bytes, file: Path) -> Report:
    try:
        run = Report.from_json(content)
    except UNREADABLE as error:
        raise UserError(f"this is not a report: {error}", file=file, allowed=WANTED) from None
    if not run.history:
        raise UserError("its history is empty: nothing to draw", file=file)
    return run


def _labels(files: Sequence[Path]) -> list[str]:
    """Return the shortest distinct labels: the names, with their folders if necessary."""
    names = [file.stem for file in files]
    return names if len(set(names)) == len(names) else [str(file.with_suffix("")) for file in files]
