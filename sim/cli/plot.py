"""`p2pfl sim plot`: draw reports side by side, or the results of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE, read_file
from p2pfl.reporting.plot import X, check_picture, draw_runs
from p2pfl.reporting.report import Report
from sim.sweeps.figure import draw_sweep
from sim.sweeps.results import Results

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
        found = msgspec.json.decode(content, type=Results)
    except UNREADABLE:
        return None
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def _draw_sweep(sweeps: Sequence[dict[str, Any] | None], files: Sequence[Path], target: Path, x: X | None) -> None:
    if len(files) > 1 or sweeps[0] is None:
        raise UserError("a sweep is drawn by itself", key="REPORT", value=len(files), allowed="one sweep, or reports")
    if x is not None:
        raise UserError("the axes of a sweep decide what runs across", key="--x", value=x, allowed="not with a sweep")
    draw_sweep(sweeps[0], target)


def _draw_runs(contents: Sequence[bytes], files: Sequence[Path], target: Path, x: X | None) -> None:
    """Draw runs over time, or over `x`; over rounds if real runs are mixed with simulated ones, whose seconds
    differ.
    """
    runs = [_run(*one) for one in zip(contents, files, strict=True)]
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
