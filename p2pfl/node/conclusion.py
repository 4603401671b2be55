"""The end of a node: the last test of its model, the log lines about the whole run, and its result."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from p2pfl.core.course import Course
from p2pfl.core.facts import Phase
from p2pfl.engine.state import NodeState
from p2pfl.errors import StorageError
from p2pfl.learn.interface import Learner, Score
from p2pfl.node import workshop
from p2pfl.node.driver import Driver
from p2pfl.node.status import Status
from p2pfl.node.workshop import Moment, Waiting, start_errand
from p2pfl.reporting.status import NodeResult
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

RESULT_FILE = "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """The CPU time of the process in seconds, in all and while the node ran."""

    total_s: float
    running_s: float


async def last_test(
    learner: Learner, state: NodeState, driver: Driver, waiting: Waiting, *, hasty: bool, compute: Executor | None
) -> Score | None:
    """Test the last model, for as long as it takes unless the node was asked to end; return the score on own data."""
    shop = driver.local.workshop
    local: list[Score | None] = []

    def test() -> None:
        shop.measure(state.model, Moment(state.rounds, state.version, final=True))
        local.append(shop.score(state.model, "local"))

    under_way = driver.local.under_way
    if await waiting.until(driver.local.learner_is_free, limit_s=workshop.LAST_ROUND_S if hasty else None):
        learner.load_local_state(state.local)  # a round that ended too late does not count
        errand = start_errand(test, compute)
        under_way = "test"
        if await waiting.until(errand.done, limit_s=workshop.LAST_TEST_S if hasty else None):
            errand.result()
            return local[0]
    if shop.figures.tested is None or not shop.figures.tested.moment.final:
        log.warning("%s", workshop.why_untested(under_way, shop.figures.tested))
    return None


def say_how_it_went(status: Status, *, never_exchanged: bool) -> None:
    core = status.core
    if never_exchanged:
        log.warning("no exchange with any neighbor: check addresses, listen and the firewall")
    if alone := core.facts.alone:
        notice.info("%d of %d rounds were trained without a neighbor", alone, core.facts.rounds)
    if core.ended_by is not None:
        names = ", ".join(status.name_of(member) for member in core.unfinished)
        without = f"; not through: {names}" if names else ""
        notice.info("training ended after round %d: %s%s", core.facts.rounds, core.ended_by, without)


def has_finished(core: Course) -> bool:
    """Return True if the node has done its rounds and nobody has asked it to stop."""
    return core.phase is Phase.FINISHED and not (core.resigned or core.retired)


def result_of(status: Status, *, finished: bool, local: Score | None, cpu_time: CpuTime | None) -> NodeResult:
    """Return the result. `local` is the score on the node's own data; no `cpu_time` where nodes share a process."""
    core, shop = status.core, status.workshop
    return NodeResult(
        **msgspec.structs.asdict(status.full()),
        finished=finished,
        resigned=core.resigned,
        removed=core.retired,
        pid=os.getpid(),
        local_accuracy=None if local is None else local.accuracy,
        local_loss=None if local is None else local.loss,
        local_metrics={} if local is None else dict(local.metrics),
        steps=shop.figures.steps,
        wall_time_s=round(time.monotonic() - status.started_at, 3),
        cpu_time_s=None if cpu_time is None else round(cpu_time.total_s, 3),
        cpu_time_running_s=None if cpu_time is None else round(cpu_time.running_s, 3),
        cpu_time_training_s=round(shop.figures.cpu_s, 3),
    )


def write_result(state_dir: Path, result: NodeResult) -> None:
    """Write the result; if the disk refuses, only this file is lost."""
    try:
        replace_file(state_dir / RESULT_FILE, [msgspec.json.format(result.to_bytes(), indent=2)])
    except StorageError as error:
        log.warning("%s", error)
