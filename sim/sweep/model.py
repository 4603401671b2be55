"""The nouns of a sweep: a job is one run, a combination is one row of the table, a plan is all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Options: TypeAlias = Mapping[str, Any]
"""Names as in `options.OPTIONS`; paths are absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run. `identity` is everything that its result depends on, `key` the hash of that."""

    options: Options
    seed: int
    identity: Mapping[str, Any] = field(repr=False)
    key: str


RunJob: TypeAlias = Callable[[Job], dict[str, Any]]
"""Runs a job and returns its report. It must be importable by name in another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One value of each axis, as the file has it, and a job for each seed. `impossible` has reasons by job key."""

    values: Mapping[str, Any]
    jobs: tuple[Job, ...]
    impossible: Mapping[str, str] = field(default_factory=dict)

    @property
    def possible(self) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs if job.key not in self.impossible)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """What the file says, paths as it has them. `fixed` holds for every run, unless an axis has the same name."""

    path: Path
    fixed: Options
    axes: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    skip_impossible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    file: SweepFile
    combinations: tuple[Combination, ...]

    @property
    def jobs(self) -> dict[str, Job]:
        """Every possible run once, by its key: combinations that mean the same share their runs."""
        return {job.key: job for combination in self.combinations for job in combination.possible}


def named(values: Mapping[str, Any]) -> str:
    """A combination as a person calls it: `topology=ring, nodes=10`."""
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "the only combination"
