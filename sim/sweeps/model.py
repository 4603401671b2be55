"""The nouns of a sweep: a job is one run, a combination is one row of the table, a plan is all of them.

The module also defines which options may vary between runs, their allowed values, and how a run ended, in a form that
can be sent between processes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from p2pfl.config.model import GOSSIP, TRAINING, Kinds
from p2pfl.config.tables import choice, text
from p2pfl.errors import P2PFLError
from p2pfl.reporting.report import Report
from p2pfl.specs import Kind, whole
from sim.worlds.model import flag
from topologies.errors import TopologyError

Options: TypeAlias = Mapping[str, Any]
"""Values by names from `OPTIONS`; paths are absolute."""

OWN: Kinds = {
    "base": text(),
    "world": text(),
    "nodes": whole(2),
    "topology": text(),
    "partition": text(),
    "privacy": text(),
    "byzantine": whole(0),
    "attack": text(),
    "references": flag(),
    "arrays": flag(),
    "clock": choice("apart", "in-step"),
}
OPTIONS: Kinds = {**OWN, **TRAINING, **GOSSIP}

FILES = ("base", "world")
NONE = "none"
"""The value for the built-in digits (`base`), the default world (`world`), or no liars (`attack`)."""

EXCLUSIVE = (("rounds", "time_s"), ("local_steps", "local_epochs"))
"""Pairs of options of which a run may have only one."""

Endings: TypeAlias = "Generator[tuple[Job, RunOutcome], None, None]"
"""Yields each job with its outcome as it ends; if closed early, it stops the running jobs."""
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run. `identity` is everything that its result depends on, `key` the hash of that."""

    options: Options
    seed: int
    identity: Mapping[str, Any] = field(repr=False)
    key: str


RunJob: TypeAlias = Callable[[Job], Report]
"""Runs a job and returns its report. It must be importable by name in another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One value for each axis, as in the file, with a job for each seed. `impossible` has reasons by job key."""

    values: Mapping[str, Any]
    jobs: tuple[Job, ...]
    impossible: Mapping[str, str] = field(default_factory=dict)

    @property
    def possible(self) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs if job.key not in self.impossible)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """The content of a sweep file, with paths as written. `fixed` applies to every run, unless an axis has the same
    name.
    """

    path: Path
    fixed: Options
    axes: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    skip_impossible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    file: SweepFile
    combinations: tuple[Combination, ...]

    @property
    def jobs(self) -> dict[str, Job]:
        """Return every possible run once, by its key; combinations that mean the same share their runs."""
        return {job.key: job for combination in self.combinations for job in combination.possible}


def name_of(values: Mapping[str, Any]) -> str:
    """Name a combination for people: `topology=ring, nodes=10`."""
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "the only combination"


def report_once(reason: str, names: Sequence[str]) -> str:
    """Report one complaint shared by many combinations: the first names, and how many more there are."""
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]}{others}: {reason}"


def seeds() -> Kind:
    """Define the option: a number of seeds, counted from 0, or a list of distinct ones; always a tuple afterwards."""

    def read(value: object) -> tuple[int, ...]:
        if isinstance(value, int):
            return tuple(range(whole(1, 100_000).read(value)))
        if not isinstance(value, list) or not value:
            raise ValueError
        listed = tuple(whole(0).read(one) for one in value)
        if len(set(listed)) < len(listed):
            raise ValueError
        return listed

    return Kind("how many, as 5 for 0 to 4, or a list of different whole numbers from 0", read)


HEAD: Kinds = {"seeds": seeds(), "skip_impossible": flag(), **OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """A report as JSON, or the reason why there is none, in one line; `trace` helps to find a bug."""

    report: bytes | None = None
    reason: str | None = None
    trace: str | None = None


def perform(run_job: RunJob, job: Job) -> RunOutcome:
    """Perform a job; whatever goes wrong in the run affects only its outcome."""
    try:
        report = run_job(job)
        report.sweep = {"key": job.key, "identity": job.identity}
        return RunOutcome(report=report.to_bytes())
    except MemoryError:
        return RunOutcome(reason="needs more memory than there is")
    except (P2PFLError, TopologyError) as error:
        return RunOutcome(reason=in_one_line(str(error)))
    except Exception as error:  # noqa: BLE001 - as the docstring says
        return RunOutcome(reason=in_one_line(f"{type(error).__name__}: {error}"), trace=traceback.format_exc())


def in_one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."
