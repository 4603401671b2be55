"""A sweep from Python: `sim.sweep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from p2pfl.errors import UserError
from sim.sweeps.plan import load_sweep, sweep_from
from sim.sweeps.run import Sweep, SweepStanding, default_folder, run_sweep
from sim.sweeps.runners import cores, run_here
from sim.sweeps.work import build, run


def sweep(
    what: Path | str | Mapping[str, Any],
    out: Path | str | None = None,
    *,
    jobs: int | None = None,
    retry: bool = False,
    on_change: Callable[[SweepStanding], None] | None = None,
) -> Sweep:
    """Run every combination of some axes over several seeds, in processes of this machine.

    `what` is a sweep file, or its tables: `{"sweep": {"nodes": 20}, "axes": {"topology": ["ring", "torus"]}}`. Each run
    leaves a report in the folder `out`, by default beside the file, and a run whose report is there is not made again.
    `jobs` runs go on at a time, by default one for each core. `retry` makes those again that failed before. The
    processes import the script that calls this, so the call must stand under `if __name__ == "__main__":`.
    Raises UserError: a mistake in the sweep, a combination that cannot be, or a folder that cannot be used;
    ExceptionGroup: several mistakes.
    """
    if getattr(current_process(), "_inheriting", False):  # said here: later the folder is in use already
        text = "a process of the sweep imports this script, and would begin the sweep again"
        raise UserError(text, key="sweep", allowed='the call under `if __name__ == "__main__":`')
    if isinstance(what, Mapping):
        if out is None:
            raise UserError("a sweep without a file needs a folder", file="sweep", key="out", allowed="a new folder")
        file = sweep_from(what, Path("sweep"))
    else:
        file, out = load_sweep(Path(what)), out or default_folder(Path(what))
    runner = partial(run_here, count=jobs or cores())
    return run_sweep(file, Path(out), run_job=run, check=build, runner=runner, retry=retry, on_change=on_change)
