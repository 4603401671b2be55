"""The parts of the study: a sweep file each, and the reductions for a smaller study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sim.sweeps.model import SweepFile
from sim.sweeps.plan import load_sweep, located

HERE = Path(__file__).parent
FULL, QUICK, SMALLEST = "full", "quick", "smallest"
SIZES = (FULL, QUICK, SMALLEST)
SMALL_MNIST = {"base": "small-mnist-federation.toml", "rounds": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """Replacements for values of the sweep file; paths are relative to it."""

    seeds: int = 1
    fixed: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part. `quick` is None for a part that the quick study leaves out. `mnist`: it needs the images."""

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
        smaller = _smaller(file, self.quick)
        return _smaller(smaller, _smallest(smaller)) if size == SMALLEST else smaller


PARTS = (
    Part(name="references", quick=Smaller(seeds=2, fixed={"rounds": 20})),
    Part(name="graphs", quick=Smaller(seeds=2, fixed={"rounds": 20})),
    Part(name="sixteen", quick=Smaller(seeds=2, fixed={"rounds": 20}, axes={"method": ("variate:beta=0.1",)})),
    Part(name="slow", quick=Smaller(seeds=2)),
    Part(
        name="methods",
        quick=Smaller(fixed={"rounds": 20}),
    ),
    Part(name="mnist-references", quick=Smaller(fixed=SMALL_MNIST), mnist=True),
    Part(name="mnist", quick=Smaller(fixed=SMALL_MNIST, axes={"topology": ("ring", "complete")}), mnist=True),
    Part(name="mnist-graphs-references", quick=None, mnist=True),
    Part(name="mnist-graphs", quick=None, mnist=True),
)


def _smallest(file: SweepFile) -> Smaller:
    """Reduce the sweep to the least that shows that all of it can be run."""
    length = {"time_s": 0.5} if "time_s" in file.fixed else {"rounds": 2}
    nodes = {"nodes": min(8, file.fixed["nodes"])}
    return Smaller(fixed={**length, **nodes}, axes={name: values[:1] for name, values in file.axes.items()})


def _smaller(file: SweepFile, by: Smaller) -> SweepFile:
    """Reduce a sweep file. Raises KeyError: the file has no such option or axis."""
    for name in (*by.fixed, *by.axes):
        if name not in file.fixed and name not in file.axes:
            raise KeyError(f"{file.path.name} has no {name}")
    fixed = {**file.fixed, **{name: located(name, value, HERE) for name, value in by.fixed.items()}}
    return replace(file, fixed=fixed, axes={**file.axes, **by.axes}, seeds=tuple(range(by.seeds)))
