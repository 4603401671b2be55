"""How one run ended, in a form that travels between processes."""

from __future__ import annotations

import json
import traceback
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from p2pfl.errors import P2PFLError
from p2pfl.reporting import finite
from sim.sweep.model import Job, RunJob
from topologies.errors import TopologyError

Endings: TypeAlias = "Generator[tuple[Job, Outcome], None, None]"
"""Each job with how it ended, as they end; closed early, it stops those that run."""
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A report as JSON, or the reason why there is none, in one line; `trace` is for who looks for a bug."""

    report: bytes | None = None
    reason: str | None = None
    trace: str | None = None


def perform(run_job: RunJob, job: Job) -> Outcome:
    """Whatever goes wrong in a run belongs to that run alone."""
    try:
        report = {**run_job(job), "sweep": {"key": job.key, "identity": job.identity}}
        return Outcome(report=json.dumps(finite(report), indent=1, allow_nan=False).encode())
    except MemoryError:
        return Outcome(reason="needs more memory than there is")
    except (P2PFLError, TopologyError) as error:
        return Outcome(reason=in_one_line(str(error)))
    except Exception as error:  # noqa: BLE001 - as the docstring says
        return Outcome(reason=in_one_line(f"{type(error).__name__}: {error}"), trace=traceback.format_exc())


def in_one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."
