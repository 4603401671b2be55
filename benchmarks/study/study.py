"""The study: the price of giving up the center. Run what is missing, then make every figure and table in
docs/explanation/study.md.

    python benchmarks/study/study.py --out bench-out/study                    all of it: hours
    python benchmarks/study/study.py --size quick --out bench-out/study       the same directions, in minutes
    python benchmarks/study/study.py --only graphs slow --out FOLDER          some parts
    python benchmarks/study/study.py --only --out FOLDER --page docs/explanation/study.md   no runs: pictures and tables

Each part is a sweep, with a file next to this one and its own folder below FOLDER/SIZE; however it was stopped, it
resumes where it was. MNIST is the folder `mnist` inside the one named by P2PFL_DATA; without it, the parts that need it
are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from budget import Budget, already_spent_s
from cells import PLACES, SERVED, Results, note_places
from contenders import SETTINGS
from parts import FULL, PARTS, QUICK, SIZES, SMALLEST, Part
from served import serve

from p2pfl.errors import P2PFLError
from sim.cli.views import SweepView
from sim.sweeps.plan import make_plan
from sim.sweeps.run import run_sweep
from sim.sweeps.runners import cores, run_here
from sim.sweeps.work import build, run

REAL = "real"
REAL_RUNS = {FULL: {"seeds": 3, "rounds": 30}, QUICK: {"seeds": 1, "rounds": 30}, SMALLEST: {"seeds": 0, "rounds": 2}}
REFERENCES = {setting.references for setting in SETTINGS.values()}
NAMES = (*(part.name for part in PARTS), SERVED, REAL)
HOURS = 10.0
MNIST_FILE = "train-images-idx3-ubyte"
STOPPED = 130


def main() -> int:
    given = _options()
    folder = given.out / given.size
    try:
        for place in (folder, given.pictures or folder):
            place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"{error.filename} cannot be made: {error.strerror}", file=sys.stderr)
        return 2
    budget = Budget(given.hours * 3600, already_spent_s(folder))
    try:
        ended = _run_all(given, folder, budget)
    except P2PFLError as error:
        print(error, file=sys.stderr)
        return 2
    from pictures import draw_all  # noqa: PLC0415 - as above
    from study_page import write_pages  # noqa: PLC0415 - matplotlib, needed only if there is something to draw

    results = Results(folder)
    draw_all(results, given.pictures or folder)
    write_pages(results, folder, given.page)
    print(f"CPU-hours: {budget.spent_s / 3600:.2f} of {given.hours:g}; tables and pictures: {folder}")
    return ended


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench-out/study"), help="the folder of results")
    parser.add_argument("--size", choices=SIZES, default=FULL)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time")
    parser.add_argument(
        "--hours", type=float, default=HOURS, help="CPU-hours, those of earlier starts included, but for real processes"
    )
    parser.add_argument("--page", type=Path, help="a page whose marked tables are replaced: docs/explanation/study.md")
    parser.add_argument("--pictures", type=Path, help="where pictures go; by default with the results")
    return parser.parse_args()


def _run_all(options: argparse.Namespace, folder: Path, budget: Budget) -> int:
    """Run all parts. Returns 0; 1 if a run failed or the budget ended it; 130 if a person did."""
    worst = 0
    for part in PARTS:
        if part.name in options.only:
            code = _run(part, options, folder / part.name, budget)
            if code == STOPPED:
                return code
            worst = max(worst, code)
    beside = {SERVED: _serve_all, REAL: _run_real}
    try:
        for name in (name for name in beside if name in options.only):
            worst = max(worst, beside[name](options.size, folder, budget))
    except KeyboardInterrupt:
        return STOPPED
    return worst


def _run(part: Part, options: argparse.Namespace, folder: Path, budget: Budget) -> int:
    file = part.sweep(options.size)
    if file is None:
        print(f"{part.name}: not in a {options.size} study")
        return 0
    if part.mnist and not has_mnist():
        print(f"{part.name}: left out, because P2PFL_DATA names no folder with mnist in it")
        return 0
    plan = make_plan(file)
    print(f"{part.name}: {len(plan.jobs)} runs of {part.path.name}", flush=True)
    runner = budget.bounded(partial(run_here, count=options.jobs), options.jobs)
    with SweepView() as view:
        sweep = run_sweep(file, folder, run_job=run, check=build, runner=runner, on_change=view.update)
    note_places(folder, plan)
    for failure in sweep.results.get("failures", ()):
        print(f"  failed: {failure}", file=sys.stderr)
    if sweep.interrupted:
        return STOPPED
    if sweep.standing.left:
        print(f"  {sweep.standing.left} runs are left out: {options.hours:g} CPU-hours are spent", file=sys.stderr)
    return int(sweep.standing.left > 0 or sweep.standing.failed > 0)


def _serve_all(size: str, folder: Path, budget: Budget) -> int:
    """Run the servers for all references that were run; return 1 if the budget left any out."""
    left_out = 0
    for part in PARTS:
        file = part.sweep(size)
        if part.name in REFERENCES and file is not None and (folder / part.name / PLACES).exists():
            print(f"{SERVED}: a server that compresses, beside {part.name}", flush=True)
            left_out += serve(part.name, make_plan(file), folder / SERVED, budget)
    if left_out:
        print(f"  {left_out} runs are left out: the CPU-hours are spent", file=sys.stderr)
    return int(left_out > 0)


def _run_real(size: str, folder: Path, budget: Budget) -> int:
    from twice import compare  # noqa: PLC0415 - part of the tests, which are not installed

    if not budget.left:
        print(f"{REAL}: left out, the CPU-hours are spent", file=sys.stderr)
        return 1
    print("real processes beside simulated ones", flush=True)
    budget.spent_s += compare(folder / REAL, **REAL_RUNS[size])
    return 0


def has_mnist() -> bool:
    folder = Path(os.environ.get("P2PFL_DATA", "")) / "mnist"
    return "P2PFL_DATA" in os.environ and any(folder.rglob(f"{MNIST_FILE}*"))


if __name__ == "__main__":
    raise SystemExit(main())
