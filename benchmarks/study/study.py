"""The study: the price of giving up the center. Run what is missing, then make every figure and table in
docs/explanation/study.md.

    python benchmarks/study/study.py --out bench-out/study                    all of it: hours
    python benchmarks/study/study.py --size quick --out bench-out/study       the same directions, in minutes
    python benchmarks/study/study.py --only graphs slow --out FOLDER          some parts
    python benchmarks/study/study.py --only --out FOLDER --page docs/explanation/study.md   no runs: pictures and tables

Each part is a sweep, with a file next to this one and its own folder below FOLDER/SIZE; however it was stopped, it
resumes where it was. `served` is a server that compresses as the peers do, beside each run of the references; their own
server sends float32, as in McMahan et al., and comparing it with peers that compress would measure the compressor more
than the peers. MNIST is the folder `mnist` inside the one named by P2PFL_DATA; without it, the parts that need it are
left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from results import COMPRESSOR, PLACES, SERVED, SETTINGS, Results, Served, note_places, read_served, served_file

from p2pfl.errors import P2PFLError
from sim.sweeps.job import Job, build, run
from sim.sweeps.plan import SweepFile, load_sweep, located, make_plan
from sim.sweeps.run import SweepView, cores, run_here, run_sweep
from sim.sweeps.run import replace as replace_file

HERE = Path(__file__).parent
FULL, QUICK, SMALLEST = "full", "quick", "smallest"
SIZES = (FULL, QUICK, SMALLEST)
SMALL_MNIST = {"base": "small-mnist-federation.toml", "rounds": 5}
MNIST_FILE = "train-images-idx3-ubyte"
STOPPED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """Replacements for values of the sweep file; paths are relative to it."""

    seeds: int = 1
    fixed: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def of(self, file: SweepFile) -> SweepFile:
        """Reduce a sweep file. Raises KeyError if the file has no such option or axis."""
        for name in (*self.fixed, *self.axes):
            if name not in file.fixed and name not in file.axes:
                raise KeyError(f"{file.path.name} has no {name}")
        fixed = {**file.fixed, **{name: located(name, value, HERE) for name, value in self.fixed.items()}}
        return replace(file, fixed=fixed, axes={**file.axes, **self.axes}, seeds=tuple(range(self.seeds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part. `quick` is None if the quick study leaves the part out. `mnist` says that it needs the images."""

    name: str
    quick: Smaller | None
    mnist: bool = False

    @property
    def path(self) -> Path:
        return HERE / f"{self.name}.toml"

    def sweep(self, size: str) -> SweepFile | None:
        """Return the sweep at this size; None if the part is left out."""
        file = load_sweep(self.path)
        if size == FULL:
            return file
        if self.quick is None:
            return None
        file = self.quick.of(file)
        if size == QUICK:
            return file
        # The minimum that shows that all of it can be run.
        fixed: dict[str, Any] = {"time_s": 0.5} if "time_s" in file.fixed else {"rounds": 2}
        fixed["nodes"] = min(8, file.fixed["nodes"])
        return Smaller(fixed=fixed, axes={name: values[:1] for name, values in file.axes.items()}).of(file)


PARTS = (
    Part(name="references", quick=Smaller(seeds=2, fixed={"rounds": 20})),
    Part(name="graphs", quick=Smaller(seeds=2, fixed={"rounds": 20})),
    Part(name="sixteen", quick=Smaller(seeds=2, fixed={"rounds": 20}, axes={"method": ("variate:beta=0.1",)})),
    Part(name="slow", quick=Smaller(seeds=2)),
    Part(name="methods", quick=Smaller(fixed={"rounds": 20})),
    Part(name="mnist-references", quick=Smaller(fixed=SMALL_MNIST), mnist=True),
    Part(name="mnist", quick=Smaller(fixed=SMALL_MNIST, axes={"topology": ("ring", "complete")}), mnist=True),
    Part(name="mnist-graphs-references", quick=None, mnist=True),
    Part(name="mnist-graphs", quick=None, mnist=True),
)
NAMES = (*(part.name for part in PARTS), SERVED)
REFERENCES = {setting.references for setting in SETTINGS.values()}


def main() -> int:
    given = _options()
    folder = given.out / given.size
    try:
        for place in (folder, given.pictures or folder):
            place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"{error.filename} cannot be made: {error.strerror}", file=sys.stderr)
        return 2
    try:
        ended = run_all(given, folder)
    except P2PFLError as error:
        print(error, file=sys.stderr)
        return 2
    from pictures import draw_all  # noqa: PLC0415 - matplotlib, needed only if there is something to draw
    from tables import write_tables  # noqa: PLC0415 - as above

    results = Results(folder)
    draw_all(results, given.pictures or folder)
    write_tables(results, folder, given.page)
    print(f"tables and pictures: {folder}")
    return ended


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench-out/study"), help="the folder of results")
    parser.add_argument("--size", choices=SIZES, default=FULL)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time")
    parser.add_argument("--page", type=Path, help="a page whose marked tables are replaced: docs/explanation/study.md")
    parser.add_argument("--pictures", type=Path, help="where pictures go; by default with the results")
    return parser.parse_args()


def run_all(options: argparse.Namespace, folder: Path) -> int:
    """Run all parts. Returns 0; 1 if a run failed; 130 if a person stopped it."""
    worst = 0
    for part in PARTS:
        if part.name in options.only:
            code = run_part(part, options, folder / part.name)
            if code == STOPPED:
                return code
            worst = max(worst, code)
    try:
        for part in PARTS if SERVED in options.only else ():
            if part.name in REFERENCES and (folder / part.name / PLACES).exists():
                print(f"{SERVED}: a server that compresses, beside {part.name}", flush=True)
                serve(part, options.size, folder / SERVED)
    except KeyboardInterrupt:
        return STOPPED
    return worst


def run_part(part: Part, options: argparse.Namespace, folder: Path) -> int:
    file = part.sweep(options.size)
    if file is None:
        print(f"{part.name}: not in a {options.size} study")
        return 0
    if part.mnist and not has_mnist():
        print(f"{part.name}: left out, because P2PFL_DATA names no folder with mnist in it")
        return 0
    plan = make_plan(file)
    print(f"{part.name}: {len(plan.jobs)} runs of {part.path.name}", flush=True)
    with SweepView() as view:
        runner = partial(run_here, count=options.jobs)
        sweep = run_sweep(file, folder, run_job=run, check=build, runner=runner, on_change=view.update)
    note_places(folder, plan)
    for failure in sweep.results.get("failures", ()):
        print(f"  failed: {failure}", file=sys.stderr)
    return STOPPED if sweep.interrupted else int(sweep.standing.failed > 0)


def serve(part: Part, size: str, folder: Path) -> None:
    """Run what is missing or was made from different inputs, and write a file below `folder` for each run."""
    import torch  # noqa: PLC0415 - reading what there is takes no torch

    file = part.sweep(size)
    if file is None:
        return
    torch.set_num_threads(1)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    for combination in make_plan(file).combinations:
        for job in combination.jobs:
            path = served_file(folder, part.name, combination.values, job.seed)
            identity: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(job.identity)))
            served = read_served(path)
            if served is None or (served.identity, served.compressor) != (identity, COMPRESSOR):
                replace_file(path, msgspec.json.encode(_served(job, identity)))


def _served(job: Job, identity: dict[str, Any]) -> Served:
    from p2pfl.compress import make_compressor  # noqa: PLC0415 - as above
    from sim.learning.batching import make_learners  # noqa: PLC0415 - as above
    from sim.learning.references import fedavg  # noqa: PLC0415 - as above

    began_s = time.process_time()
    federation, _ = build(job)
    server = fedavg(federation, make_learners(federation), compressor=make_compressor(COMPRESSOR))
    if server is None:
        raise TypeError(f"no server has the models of this task: {job.options.get('base')}")
    return Served({"cpu_s": time.process_time() - began_s}, server, COMPRESSOR, identity)


def has_mnist() -> bool:
    folder = Path(os.environ.get("P2PFL_DATA", "")) / "mnist"
    return "P2PFL_DATA" in os.environ and any(folder.rglob(f"{MNIST_FILE}*"))


if __name__ == "__main__":
    raise SystemExit(main())
