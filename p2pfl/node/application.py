"""One node: build its parts, open its listening sockets, run until the core finishes; its last test and its result."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from p2pfl.config.model import FederationConfig
from p2pfl.core.core import Algorithm
from p2pfl.core.events import MemberEnded
from p2pfl.core.settings import Phase
from p2pfl.engine.engine import Engine
from p2pfl.engine.rounds import neighbor_distance
from p2pfl.engine.state import NodeState
from p2pfl.errors import StorageError, UserError
from p2pfl.learn.interface import Learner, Score
from p2pfl.learn.metrics import Losses
from p2pfl.limits import Limits
from p2pfl.net.links import Links, Watcher
from p2pfl.net.session_table import Callbacks
from p2pfl.net.transport import MakeTransport
from p2pfl.net.websocket import WebSocketTransport, transport_of
from p2pfl.node import assembly
from p2pfl.node.assembly import Setup
from p2pfl.node.current_federation import CurrentFederation, Live, membership_of, name_of_key
from p2pfl.node.driver import Driver
from p2pfl.node.engine_thread import EngineThread, Order, needs_of
from p2pfl.node.feature import (
    Feature,
    FeatureHost,
    NodeView,
    Recovered,
    StateAtStart,
    alarm_texts,
    algorithm_of,
    all_features,
    failure_named,
    recover_each,
    transport_by,
    withheld_by,
)
from p2pfl.node.learner_runner import (
    LearnerRunner,
    LocalRounds,
    ModelFiles,
    Moment,
    OnRound,
    Tested,
    TrainingFigures,
)
from p2pfl.node.service import STARTING
from p2pfl.node.shutdown import Stopping
from p2pfl.node.status import ProgressLines, Status
from p2pfl.reporting.figures import bearings
from p2pfl.reporting.status import WAITING_FOR_DISK, NodeLine, NodeResult, Sketch
from p2pfl.storage import Store
from p2pfl.storage.disk import replace_file

RESULT_FILE = "result.json"
LAST_ROUND_S = 3.0
"""How long a stopped node waits for the current local round or test, in seconds."""
LAST_TEST_S = 8.0
"""How long a stopped node waits for the test of its last model, in seconds; a launcher waits 15 s in all."""


async def last_test(
    learner: Learner, state: NodeState, driver: Driver, stopping: Stopping, *, hasty: bool, compute: Executor | None
) -> Score | None:
    """Test the last model, however long it takes unless the node was asked to end; return the score on its own data."""
    runner = driver.local.runner
    local: list[Score | None] = []

    def test() -> None:
        runner.measure(state.model, Moment(state.rounds, state.version, final=True))
        local.append(runner.score(state.model, "local"))

    under_way = driver.local.under_way
    if await stopping.until(driver.local.learner_is_free, limit_s=LAST_ROUND_S if hasty else None):
        learner.load_local_state(state.local)  # a round that ended too late does not count
        last = start_aside(test, compute)
        under_way = "test"
        if await stopping.until(last.done, limit_s=LAST_TEST_S if hasty else None):
            last.result()
            return local[0]
    if runner.figures.tested is None or not runner.figures.tested.moment.final:
        log.warning("%s", why_untested(under_way, runner.figures.tested))
    return None


def why_untested(under_way: str, tested: Tested | None) -> str:
    """Explain what the node was stopped in (a "round" or a "test"), what is lost, and which model it has scored."""
    if under_way == "round":
        what = "stopped in a long local round, whose work is discarded"
    else:
        what = "stopped in a long test; nothing that was learned is lost"
    of = "is not known" if tested is None else f"is that after round {tested.moment.rounds}"
    return f"{what}: the last model is not tested, its accuracy {of}"


def start_aside(work: Callable[[], None], compute: Executor | None = None) -> Future[None]:
    """Do work that the process need not wait for when it ends, in a separate thread or in `compute`."""
    if compute is not None:
        return compute.submit(work)
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="last test", daemon=True).start()
    return outcome


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


def result_of(
    status: Status, *, finished: bool, local: Score | None, cpu_s: tuple[float | None, float | None]
) -> NodeResult:
    """Return the result. `local` is the score on the node's own data; `cpu_s` are the CPU seconds of the process, in
    all and while the node ran, unknown if nodes share a process.
    """
    core, runner = status.core, status.runner
    return NodeResult(
        **msgspec.structs.asdict(status.full()),
        finished=finished,
        resigned=core.resigned,
        removed=core.retired,
        pid=os.getpid(),
        local_accuracy=None if local is None else local.accuracy,
        local_loss=None if local is None else local.loss,
        local_metrics={} if local is None else dict(local.metrics),
        steps=runner.figures.steps,
        wall_time_s=round(time.monotonic() - status.started_at, 3),
        cpu_time_s=cpu_s[0],
        cpu_time_running_s=cpu_s[1],
        cpu_time_training_s=round(runner.figures.cpu_s, 3),
    )


def write_result(state_dir: Path, result: NodeResult) -> None:
    """Write the result; if the disk refuses, only this file is lost."""
    try:
        replace_file(state_dir / RESULT_FILE, [msgspec.json.format(result.to_bytes(), indent=2)])
    except StorageError as error:
        log.warning("%s", error)


log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")
TRUSTS_ALL = "trusts every member: a wrong part of one can spoil a secure sum, unnoticed"
"""Logs events that deserve a line although nothing is wrong."""

QUIET_WAIT_S = 3.0
OWN_ADDRESSES = ("listen", "status_listen")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneProcess:
    """Parts shared by the nodes of one process. A failing task ends all nodes.

    `compute` is the thread in which they learn in turn; each node awaits `all_ready` before it opens its sockets.
    """

    compute: ThreadPoolExecutor
    all_ready: Callable[[], Awaitable[object]]


class Application:
    """One node, from its files to its result.

    `features` are attached in order; a node can learn without any. `on_line` receives a progress line at most ten times
    a second; if `sketched`, lines include a sketch of the model, and each closing round adds a line. `on_round`
    receives each local round. `run` returns the node's result, which is also written to `<state_dir>/result.json`; None
    if the node was stopped before it began.
    """

    driver: Driver | None = None
    thread: EngineThread
    links: Links
    status: Status
    lines: ProgressLines
    attached: FeatureHost
    transport: MakeTransport

    def __init__(
        self,
        setup: Setup,
        *,
        on_line: Callable[[NodeLine], None],
        sketched: bool = False,
        shared: OneProcess | None = None,
        on_round: OnRound | None = None,
        features: Iterable[Feature] = (),
    ) -> None:
        self.features = tuple(features)
        self.current = CurrentFederation(setup)
        self.shared = shared
        self.on_line, self.on_round, self.sketched = on_line, on_round, sketched
        self.stopping = Stopping(self._show_wait)
        self.begun = False
        self.cpu_began = 0.0

    @property
    def setup(self) -> Setup:
        """The node's setup, with the latest federation."""
        return self.current.setup

    def amend(self, federation: FederationConfig) -> None:
        """Amend the federation: see `CurrentFederation.amend`."""
        self.current.amend(federation)

    async def run(self) -> NodeResult | None:
        self._check_features()
        folder = self.setup.node.state_dir
        was_there = folder.exists()
        opened: list[Store] = []
        durability = self.setup.durability
        if not await self._is_written(lambda: opened.append(Store.open(folder, durability=durability))):
            return None
        store, until_over = opened[0], ExitStack()
        try:
            recovered = assembly.recover(self.setup, store)
            engine = self._engine_of(recovered)
            at_start = StateAtStart(setup=self.setup, state=engine.state, store=store, until_over=until_over)
            kept = recover_each(self.features, at_start)
            for state in kept.values():
                if not await self._is_written(partial(state.keep, engine.state, store)):
                    return None
            needs = needs_of(engine.state, self.setup.durability, engine.codecs, engine.method)
            if shortage := needs.shortage(self.setup.node):  # before anything is written
                log.warning("%s", shortage)
            core = algorithm_of(self.features, self.setup, engine.state)
            core = core or assembly.make_core(self.setup, engine.state, fresh=recovered is None)
            self.current.core_federation = self.setup.federation
            if recovered is not None:
                notice.info("resuming after round %d", core.facts.rounds)
                if core.facts.done:
                    text = "finished, only answers late neighbors for a while: to continue, raise rounds%s"
                    private = self.setup.federation.privacy is not None  # the ledger of its budget is in that folder
                    notice.info(text, ", as far as its privacy budget lasts" if private else f" or remove {folder}")
            driver = self._assemble(core, engine, store)
            began = "for the first time" if recovered is None else f"again, after round {core.facts.rounds}"
            driver.feed.keep("started", None, f"this node has started {began}")
            return await self._serve(core, engine, driver, kept)
        except UserError as error:
            if error.file is None and error.key in OWN_ADDRESSES:
                error.file, error.key = str(self.setup.node.path), f"node.{error.key}"
            raise
        finally:
            store.close()
            until_over.close()
            if not (was_there or self.begun):
                shutil.rmtree(folder)

    def _check_features(self) -> None:
        """Let each feature check the files.

        Raises UserError if a feature that the federation needs is missing, or if the files ask a feature for the
        impossible.
        """
        self.features = all_features(self.setup.federation, self.features)
        for feature in self.features:
            with failure_named(feature, "check"):
                feature.check(self.setup)
        self.transport = transport_of(self.setup.node) if self.shared is None else WebSocketTransport

    def member_ended(self, name: str) -> None:
        """Tell the core, once there is one, that a member has ended for good: the launcher repeats it then."""
        member = next((each for each in self.setup.federation.members if each.name == name), None)
        if self.begun and self.driver is not None and member is not None:  # a charter may have removed it
            self.driver.take(MemberEnded(member=member.index))

    def says(self) -> str:
        """Return in a few words what the node does, for who runs it as a service."""
        if not (self.begun or self.stopping.for_disk):
            return STARTING
        if not self.begun:
            return WAITING_FOR_DISK
        line = self.lines.line()
        return f"{line.phase}, round {line.rounds}, {line.peers} neighbors connected"

    def stop(self) -> None:
        """Stop the node: see `Stopping.stop`."""
        self.stopping.stop()

    async def _is_written(self, write: Callable[[], None]) -> bool:
        return await self.stopping.is_written(write, self.setup.node.state_dir)

    def _show_wait(self, what: str) -> None:
        """Show `what` the node is waiting for in place of its phase."""
        if self.driver is None or not hasattr(self, "status"):
            return
        if what == WAITING_FOR_DISK != self.status.waits_for:
            self.driver.alarms["storage"] += 1
            self.driver.feed.stand("storage", None, "the disk does not take the state: the node waits for it")
        self.status.waits_for = what
        if not what:
            self.driver.feed.settle("storage-restored", None)
        self.lines.tell()

    def _engine_of(self, recovered: NodeState | None) -> Engine:
        return assembly.make_engine(self.setup, recovered)

    def _assemble(self, core: Algorithm, engine: Engine, store: Store) -> Driver:
        setup, training = self.setup, self.setup.federation.training
        sketch = Sketch(setup.learner.size, setup.federation.seed) if self.sketched else None
        losses = Losses(private=setup.federation.privacy is not None, resumed=engine.state.rounds > 0)
        figures = TrainingFigures(withheld_by(self.features, setup), losses)
        node, files = setup.node, None
        if node.checkpoint_every:
            folder, every, kept = node.checkpoint_dir, node.checkpoint_every, node.checkpoints_kept
            about = {"federation": setup.federation.name, "node": node.name}
            files = ModelFiles(folder=folder, every=every, kept=kept, learner=setup.learner, about=about)
        runner = LearnerRunner(
            setup.learner,
            training.evaluate_every,
            sketch,
            figures,
            strict=self.shared is not None,
            files=files,
            on_round=self.on_round,
            node=setup.member.name,
            gauge=setup.gauge,
        )
        header = assembly.snapshot_header(setup)
        self.thread = EngineThread(engine, store, durability=setup.durability, extra=header)
        local = LocalRounds(
            self.thread,
            runner,
            on_measure=self._note_test,
            on_closed=lambda seen: self.lines.closed(seen),  # noqa: PLW0108 - there are no lines yet
            compute=None if self.shared is None else self.shared.compute,
        )
        driver = self.driver = Driver(
            core, self.thread, local, name_of=self._name_of, on_amended=self.current.follow_core
        )
        driver.feed.texts = alarm_texts(self.features)
        self.thread.listener = driver
        return driver

    async def _serve(
        self, core: Algorithm, engine: Engine, driver: Driver, kept: Mapping[Feature, Recovered]
    ) -> NodeResult | None:
        """Open the listening sockets once there is a snapshot, then start the core.

        On shutdown, neighbors get a goodbye before the threads end. The status page stays longer, because the node may
        have to wait for the disk.
        """
        links = self.links = self._links(driver)
        self.status = self._status(core, driver, links)
        self.lines = ProgressLines(
            self.on_line,
            self.status,
            self.thread,
            was_stopped=lambda: self.stopping.is_requested,
            sketched=self.sketched,
        )
        self.attached = FeatureHost(self.features, self._view(core, driver, links), links, kept)
        driver.local.gate = self.attached.gate
        async with AsyncExitStack() as until_over:
            await self.attached.opening(until_over)
            if not await self._is_written(lambda: self.thread.checkpoint(engine.state)):
                return None
            if self.shared is not None:
                await self.shared.all_ready()
            async with AsyncExitStack() as doors:
                doors.push_async_callback(driver.close)
                driver.links = links
                await doors.enter_async_context(links)
                log.info("listening on port %d", links.port)
                await self.attached.opened(doors)
                bearing = self.status.bearing
                if self.status.core.mixes:
                    notice.log(logging.INFO if bearing.mixes else logging.WARNING, "%s", bearing)
                else:
                    notice.info(TRUSTS_ALL)
                self._begin(driver, links)
                tasks = [asyncio.create_task(self._upkeep()), *self.attached.works()]
                for task in tasks:
                    task.add_done_callback(self._end_on_failure)
                try:
                    await driver.finished.wait()
                finally:  # if this is cancelled, they would hold the node for as long as the loop runs
                    for task in tasks:
                        task.cancel()
                await driver.held.drain()
                await self.attached.farewell(hasty=self.stopping.is_requested)
            if driver.failure is not None:
                raise driver.failure
            result = await self._conclude(engine, driver)
            await self.attached.over(result)
            return result

    def _view(self, core: Algorithm, driver: Driver, links: Links) -> NodeView:
        return NodeView(
            setup=lambda: self.setup,
            core=core,
            status=self.status,
            presence=driver.presence,
            runner=driver.local.runner,
            thread=self.thread,
            line=self.lines.line,
            feed=driver.feed,
            network=links,
            say=links.extensions.say,
            clock=driver.loop.time,
            alarm=driver.alarm,
            carry_out=driver.carry_out,
            amend=self.current.amend,
            trust_anew=self.current.trust_anew,
        )

    def _status(self, core: Algorithm, driver: Driver, links: Links) -> Status:
        setup, mixer = self.setup, self.thread.engine.mixer
        return Status(
            name=setup.member.name,
            federation=setup.federation.name,
            rounds=setup.federation.training.trained_rounds,
            core=core,
            runner=driver.local.runner,
            counters=links.counters,
            name_of=self._name_of,
            compressor_of=lambda peer: self.setup.federation.compressor_of(setup.member.index, peer),
            alarms=driver.alarms,
            durability=setup.durability,
            bearing=bearings(setup.federation)[setup.member.index],
            kept=lambda: {} if mixer is None else mixer.kept,
            likeness=lambda: {} if mixer is None else mixer.likeness.scores,
            features=lambda: self.attached.status(),  # noqa: PLW0108 - nothing is attached yet
            refusal=lambda: self.thread.refusal,
        )

    def _begin(self, driver: Driver, links: Links) -> None:
        """Record that the node now has a state, which is kept when it ends."""
        self.thread.start()
        self.begun = True
        self.stopping.begin(driver)
        self.cpu_began = time.process_time()
        self.attached.begin()
        driver.start(links)
        if self.setup.unscaled is not None:
            driver.alarm("unscaled-inputs", None, self.setup.unscaled)
        self.current.begin(Live(driver=driver, status=self.status, trusted_members=self.attached.trusted_members))
        if self.stopping.is_requested:
            driver.stop()

    def _links(self, driver: Driver) -> Links:
        setup = self.setup
        return Links(
            membership_of(setup.federation, setup.member.index, setup.identity, assembly.binding(setup)),
            Callbacks(
                on_open=driver.session_opened,
                on_message=driver.message_received,
                on_close=driver.session_closed,
            ),
            Watcher(
                log=logging.getLogger("p2pfl.net"),
                name_of=self._name_of,
                name_of_key=lambda key: name_of_key(self.setup.federation, key),
                on_alarm=driver.alarm,
            ),
            listen=setup.node.listen,
            max_body_bytes=assembly.largest_bytes(setup),
            rng=random.Random(os.urandom(16)),  # only jitter for dialing, which need not be reproducible from a seed
            transport=transport_by(self.features, setup, self.transport),
            limits=Limits(max_kbit_s=setup.node.network.max_kbit_s),
        )

    def _end_on_failure(self, task: asyncio.Task[None]) -> None:
        """End the node if background work failed, because nothing else would notice."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self.driver is not None:
            self.driver.fail(error)

    async def _upkeep(self) -> None:
        """Do periodic work: snapshots, the distance to neighbors, missing neighbors."""
        driver, algorithm, mixer = self.driver, self.status.core, self.thread.engine.mixer
        assert driver is not None  # noqa: S101 - the node has begun
        closing_trains = self.setup.federation.training.closing == "train"  # each of its rounds is tested as usual
        began = saved_at = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            if now - began >= QUIET_WAIT_S:
                self.lines.say_who_is_missing(self.setup.federation, self.setup.member.index)
            self.lines.look()
            if algorithm.phase is Phase.WAITING:
                self.lines.tell()
            driver.presence.look(now)
            self.attached.look()
            while mixer is not None and mixer.likeness.news:
                driver.alarm(*mixer.likeness.news.popleft())
            if algorithm.phase is Phase.LINGERING or (algorithm.phase is Phase.CLOSING and not closing_trains):
                driver.local.look_while_mixing()  # neighbors that are not through still move the model
            if self.setup.durability == "snapshot" and now - saved_at >= self.setup.node.snapshot_s:
                saved_at = now
                self.thread.jobs.put(Order.CHECKPOINT)

    def _note_test(self) -> None:
        if self.driver is not None and not self.driver.finished.is_set():
            self.lines.measured()

    async def _conclude(self, engine: Engine, driver: Driver) -> NodeResult:
        """Write the last snapshot, test the final model, write the result. The threads have ended by then."""
        running_s = time.process_time() - self.cpu_began
        status, core, state = self.status, self.status.core, engine.state
        status.over = True
        had_ended = state.ended is not None
        if core.facts.done:
            state.ended = assembly.bound_of(core.settings)
        if not await self._is_written(lambda: self.thread.checkpoint(state)):
            kept = None if self.stopping.is_gone else self.thread.kept_rounds
            unkept = "in this run" if kept is None else f"after round {kept}"
            raise StorageError(f"{self.thread.refusal}; given up: what was learned {unkept} is lost")
        status.neighbor_distance = await asyncio.to_thread(neighbor_distance, state, status.heard_neighbors)
        self.stopping.test()
        local = await last_test(
            self.setup.learner,
            state,
            driver,
            self.stopping,
            hasty=self.stopping.hurries,
            compute=None if self.shared is None else self.shared.compute,
        )
        self.lines.tell()
        say_how_it_went(status, never_exchanged=not (core.exchanges or self.stopping.is_requested or had_ended))
        asked_to_end = self.stopping.is_requested or core.resigned or core.retired
        finished = core.phase is Phase.FINISHED and not asked_to_end
        if finished:
            driver.feed.keep("finished", None, f"after round {core.facts.rounds}")
        cpu_s = (None, None) if self.shared else (round(time.process_time(), 3), round(running_s, 3))
        result = result_of(status, finished=finished, local=local, cpu_s=cpu_s)
        write_result(self.setup.node.state_dir, result)
        return result

    def _name_of(self, index: int) -> str:
        return self.setup.federation.members[index].name
