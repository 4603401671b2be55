"""One node as a process or an object: build its parts, open the doors, run until the core is through."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.core.core import Core
from p2pfl.core.facts import Phase
from p2pfl.core.messages import VitalsTold
from p2pfl.engine.codecs import codecs_of
from p2pfl.engine.engine import Engine
from p2pfl.engine.state import NodeState
from p2pfl.errors import StorageError, UserError
from p2pfl.learn.interface import Score
from p2pfl.net.http import StatusPage
from p2pfl.net.links import Links
from p2pfl.reporting.liars import bearings
from p2pfl.reporting.sketch import Sketch
from p2pfl.reporting.status import ClosedRound, NodeLine, NodeResult
from p2pfl.runtime import parts, whereabouts, workshop
from p2pfl.runtime.amended import amended, check_amended, in_words, listed, with_federation
from p2pfl.runtime.arrival import arrive
from p2pfl.runtime.charter_talk import CharterTalk
from p2pfl.runtime.charters import FILE_NAME as CHARTER_FILE
from p2pfl.runtime.charters import CharterKeeper
from p2pfl.runtime.display import Display
from p2pfl.runtime.driver import Driver
from p2pfl.runtime.engine_thread import Checkpoint, EngineThread, Look, needs_of
from p2pfl.runtime.lan import discovery_of
from p2pfl.runtime.lonely import ask_when_alone
from p2pfl.runtime.overview import software
from p2pfl.runtime.parts import Setup, read_setup
from p2pfl.runtime.status import Status
from p2pfl.runtime.watch import Lookout
from p2pfl.runtime.workshop import Moment, Waiting, Workshop, start_errand
from p2pfl.storage import Store
from p2pfl.storage.disk import free_bytes, replace_file

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")
"""Logs what is worth a line although nothing is wrong."""

RESULT_FILE = "result.json"
LEAST_LINE_S = 0.1
QUIET_WAIT_S = 3.0
LOOKING_SHARE = 0.01
"""The share of one processor for measuring the distance to neighbors: of a large model not every second."""
OWN_ADDRESSES = ("listen", "status_listen")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneProcess:
    """What the nodes of one process share. A task that fails ends all of them.

    `compute` is the thread in which they learn in turn; `all_ready` is awaited by each before it opens its doors.
    """

    compute: ThreadPoolExecutor
    all_ready: Callable[[], Awaitable[object]]


class Application:
    """`on_line` is called with a line of progress at most ten times a second.

    `sketched` lines have a sketch of the model, and each closing round adds one. `run` returns the node's result,
    which is also in `<state_dir>/result.json`; None where it was stopped before it began.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        on_line: Callable[[NodeLine], None],
        sketched: bool = False,
        shared: OneProcess | None = None,
    ) -> None:
        self.setup = setup
        self.shared = shared
        self.on_line = on_line
        self.sketched = sketched
        self.last_line_at = self.look_again_at = float("-inf")
        self.stopped = False
        self.begun = self.testing = False
        self.asked_again = False
        """Whether somebody has asked the node to stop after its core was through."""
        self.waiting = Waiting(self._waits)
        self.cpu_began = self.cpu_ended = 0.0
        self.driver: Driver | None = None
        self.links: Links
        self.built_for = setup.federation
        """What the core goes by, or was told last."""
        self.store: Store
        self.status: Status
        self.display: Display

    async def run(self) -> NodeResult | None:
        folder = self.setup.node.state_dir
        was_there = folder.exists()
        if not await self._is_written(self._open_store):
            return None
        store = self.store
        try:
            recovered = parts.recover(self.setup, store)
            engine = self._engine_of(recovered)
            self._look_for_room(engine)
            core = parts.make_core(self.setup, engine.state, fresh=recovered is None)
            self.built_for = self.setup.federation
            if recovered is not None:
                notice.info("resuming after round %d", core.facts.rounds)
                if core.facts.done:
                    text = "finished, only answers late neighbors for a while: to continue, raise rounds or remove %s"
                    notice.info(text, folder)
            driver = self._assemble(core, engine, store)
            began = "for the first time" if recovered is None else f"again, after round {core.facts.rounds}"
            driver.feed.keep("started", None, f"this node has started {began}")
            return await self._serve(core, engine, driver)
        except UserError as error:
            if error.file is None and error.key in OWN_ADDRESSES:
                error.file, error.key = str(self.setup.node.path), f"node.{error.key}"
            raise
        finally:
            store.close()
            if not (was_there or self.begun):
                shutil.rmtree(folder)

    def stop(self) -> None:
        """End cleanly, keeping a snapshot. Before the node has begun it is only remembered.

        Once its core is through, do not wait for the last test; asked twice, nor for a disk that refuses.
        """
        if self.driver is not None and self.driver.finished.is_set():
            self._hurry()
            return
        self.stopped = True
        if self.driver is not None and self.begun:
            self.driver.stop()
        else:
            self.waiting.hurried.set()

    def _hurry(self) -> None:
        """Only who has been told that the disk is waited for can give up what it does not have yet."""
        if self.testing or (self.waiting.for_disk and (self.stopped or self.asked_again)):
            self.waiting.hurried.set()
        elif self.waiting.for_disk:
            log.warning("the last rounds are not on disk yet: stop again to discard them")
        self.asked_again = True

    async def _is_written(self, write: Callable[[], None]) -> bool:
        """Whether the disk has taken it in the end, and nobody has given up."""
        return await self.waiting.until_written(write, self.setup.node.state_dir) is None

    def _open_store(self) -> None:
        self.store = Store.open(self.setup.node.state_dir, durability=self.setup.durability)

    def _look_for_room(self, engine: Engine) -> None:
        """Say what the state needs, before anything is written. Raises UserError: the volume is too small for it."""
        needs = needs_of(engine.state, self.setup.durability, engine.codecs, engine.method)
        if shortage := needs.shortage(self.setup.node):
            log.warning("%s", shortage)
        least, usual, room = needs.least_bytes, needs.usual_bytes, self.store.room_bytes
        log.info(
            "the state needs %s bytes, up to %s where there is room; there are %s",
            f"{least:,}",
            f"{usual:,}",
            f"{room:,.0f}",
        )

    def _waits(self, what: str) -> None:
        """Shown in place of the phase."""
        if self.driver is None or not hasattr(self, "status"):
            return
        if what == workshop.WAITING_FOR_DISK != self.status.waits_for:
            self.driver.alarms["storage"] += 1
            self.driver.feed.stand("storage", None, "the disk does not take the state: the node waits for it")
        self.status.waits_for = what
        if not what:
            self.driver.feed.settle("storage-restored", None)
        self.on_line(self._line(self.driver))

    def _engine_of(self, recovered: NodeState | None) -> Engine:
        return parts.make_engine(self.setup, recovered)

    def _assemble(self, core: Core, engine: Engine, store: Store) -> Driver:
        setup, training = self.setup, self.setup.federation.training
        sketch = Sketch(setup.learner.size, setup.federation.seed) if self.sketched else None
        workshop = Workshop(setup.learner, training.evaluate_every, sketch, strict=self.shared is not None)
        header = parts.snapshot_header(setup)
        self.thread = EngineThread(engine, store, durability=setup.durability, extra=header)
        driver = self.driver = Driver(
            core,
            self.thread,
            workshop,
            name_of=self._name_of,
            on_measure=self._measured,
            on_closed=self._closed,
            on_amended=self._took_effect,
            compute=None if self.shared is None else self.shared.compute,
        )
        self.thread.listener = driver
        if setup.federation.admin:
            file = setup.node.state_dir / CHARTER_FILE
            keeper = CharterKeeper(setup.federation, file, on_charter=self._chartered, on_alarm=driver.alarm)
            driver.charters = CharterTalk(keeper, lambda: driver.links)
        return driver

    async def _serve(self, core: Core, engine: Engine, driver: Driver) -> NodeResult | None:
        """Once there is a snapshot doors open, then the core starts; on the way out neighbors hear goodbye before the
        threads end. The status page is there for longer: the disk may have to be waited for.
        """
        setup = self.setup
        links = self.links = self._links(driver)
        bearing = bearings(setup.federation)[setup.member.index]
        self.status = Status(
            name=setup.member.name,
            federation=setup.federation.name,
            rounds=setup.federation.training.rounds,
            core=core,
            workshop=driver.workshop,
            counters=links.counters,
            name_of=self._name_of,
            compressor_of=lambda peer: self.setup.federation.compressor_of(setup.member.index, peer),
            alarms=driver.alarms,
            durability=setup.durability,
            bearing=bearing,
            kept=lambda: self.thread.engine.kept,
            members_version=lambda: None if driver.charters is None else driver.charters.keeper.version,
            refusal=lambda: self.thread.refusal,
        )
        self.display = self._display(driver, engine, links)
        async with AsyncExitStack() as open_page:
            status = None if setup.node.status_listen is None else await self._open_page(setup.node, open_page)
            if not await self._is_written(lambda: self.thread.checkpoint(engine.state)):
                return None
            if self.shared is not None:
                await self.shared.all_ready()
            async with AsyncExitStack() as doors:
                doors.push_async_callback(driver.close)
                driver.links = links
                await doors.enter_async_context(links)
                log.info("listening on port %d", links.port)
                open_page.enter_context(whereabouts.noted(setup.node, setup.federation.name, links.port, status))
                if setup.node.discovery:
                    await doors.enter_async_context(
                        discovery_of(setup.member, setup.node, lambda: self.setup.federation, links)
                    )
                notice.log(logging.INFO if bearing.mixes else logging.WARNING, "%s", bearing)
                self._begin(driver, links)
                tasks = [asyncio.create_task(work) for work in (self._upkeep(), self._show())]
                if driver.charters is not None:
                    work = ask_when_alone(driver.charters.keeper, setup.identity, driver.charters.is_alone)
                    tasks.append(asyncio.create_task(work))
                await driver.finished.wait()
                for task in tasks:
                    task.cancel()
                self.display.farewell()
            if driver.failure is not None:
                raise driver.failure
            return await self._conclude(engine, driver)

    async def _open_page(self, node: NodeConfig, until_over: AsyncExitStack) -> str:
        """Its address. The link for others than this machine has a token, which the log tells."""
        listen, token = node.status_listen or "", whereabouts.page_token(node.state_dir)
        page = StatusPage(listen, self._page, site=self.display.overview, names=node.status_names, token=token)
        await until_over.enter_async_context(page)
        address = whereabouts.address_at(listen, page.port)
        log.info("page: http://%s/", address)
        log.info("status: http://%s/status", address)
        for host in page.others_hosts():
            notice.info("page for others: http://%s:%d/#%s", host, page.port, token)
        return address

    def _display(self, driver: Driver, engine: Engine, links: Links) -> Display:
        setup = self.setup
        needs = needs_of(engine.state, setup.durability, engine.codecs, engine.method)
        watch = Lookout(
            core=driver.core,
            feed=driver.feed,
            raise_alarm=driver.alarm,
            room_bytes=partial(free_bytes, setup.node.state_dir),
            snapshot_bytes=needs.snapshot_bytes,
            software=software(),
            began_at=time.monotonic(),
            measures=lambda: driver.workshop.measures,
        )
        return Display(
            federation=lambda: self.setup.federation,
            own=setup.member.index,
            identity=setup.identity,
            status=self.status,
            line=lambda: self._line(driver),
            watch=watch,
            send=links.whisper,
        )

    def _page(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self.status.full())
        return found | {"software": software(), "standing_alarms": self.display.feed.kinds}

    def _begin(self, driver: Driver, links: Links) -> None:
        """From here on the node has a state, and keeps it when it ends."""
        self.thread.start()
        self.begun = True
        self.waiting.hurried.clear()
        self.cpu_began = time.process_time()
        if driver.charters is not None:
            driver.charters.keeper.save()
        driver.start(links)
        self._hand_over()
        if self.stopped:
            driver.stop()

    def _links(self, driver: Driver) -> Links:
        setup = self.setup
        members = setup.federation.members

        def opened(peer: int, session: int) -> None:
            driver.session_opened(peer, session)
            self.display.opened(peer)

        def closed(peer: int, session: int, reason: str) -> None:
            self.display.closed(peer)
            driver.session_closed(peer, session, reason)

        def heard(peer: int, told: VitalsTold) -> None:
            self.display.hear(peer, told)

        return Links(
            identity=setup.identity,
            members=listed(setup.federation),
            own_index=setup.member.index,
            dial={peer: members[peer].address for peer in setup.peers},
            neighbors=frozenset(setup.peers),
            binding=parts.binding(setup),
            listen=setup.node.listen,
            max_body_bytes=parts.largest_bytes(setup),
            on_open=opened,
            on_message=driver.message_received,
            on_close=closed,
            on_vitals=heard,
            rng=random.Random(os.urandom(16)),  # jitter of dials: nothing that a seed should repeat
            log=logging.getLogger("p2pfl.net"),
            name_of=self._name_of,
            on_alarm=driver.alarm,
            charters=None if driver.charters is None else driver.charters.keeper,
        )

    # -- a federation that changes ------------------------------------------------------------------------------------

    def amend(self, federation: FederationConfig) -> None:
        """Go by a changed federation from the end of the round under way on. On the event loop, at any time; of several
        the newest counts, and the same once more changes nothing.

        Members keep their rows: rows may be added, or become retired, and names and addresses may change. Besides, the
        edges, the schedule, the topology and the rounds to do may be others. Nothing is exchanged any more with whoever
        was removed, from now on; a node that was removed itself ends. What is written is the caller's business: the
        state on disk fits the federation of before and the new one.

        Raises UserError: something else has changed. Then nothing has happened.
        """
        check_amended(self.setup.federation, federation)
        if federation != self.setup.federation:
            self.setup = with_federation(self.setup, federation)
            self._hand_over()

    def _hand_over(self) -> None:
        """To core and network, once they run; they end with the federation that they have."""
        driver, federation = self.driver, self.setup.federation
        if driver is None or not self.begun or driver.finished.is_set() or federation is self.built_for:
            return
        notice.info("%s", in_words(self.built_for, federation, self.setup.member.index))
        self.built_for = federation
        self.status.name = self.setup.member.name
        driver.amend(amended(self.setup))
        self._amend_links()

    @property
    def in_force(self) -> bool:
        """Whether the node goes by the federation that it has heard of last."""
        return self.begun and self.status.core.amending.asked is None

    def _took_effect(self) -> None:
        """The core goes by the new one from here on."""
        self.thread.extra = parts.snapshot_header(self.setup)
        self._recode()
        self.status.rounds = self.status.core.settings.rounds
        self.status.bearing = bearing = bearings(self.setup.federation)[self.setup.member.index]
        if not bearing.mixes:
            log.warning("%s", bearing)
        self._amend_links()

    def _recode(self) -> None:
        """The edge to a newcomer may have a compressor of its own; what is logged from here on is read with it."""
        codecs = codecs_of(self.setup.federation, self.setup.member.index)
        if codecs.specs != self.thread.engine.codecs.specs:
            self.thread.jobs.put(Look(lambda engine: setattr(engine, "codecs", codecs)))
            self.thread.jobs.put(Checkpoint())

    def _amend_links(self) -> None:
        """Sessions are there for those who are neighbors, for those who will be, and for those who are about to go."""
        setup = self.setup
        members = setup.federation.members
        neighbors = frozenset(self.status.core.edges).union(setup.peers) - setup.federation.retired
        self.links.amend(
            members=listed(setup.federation),
            dial={peer: members[peer].address for peer in neighbors},
            neighbors=neighbors,
            binding=parts.binding(setup),
        )

    def _chartered(self, federation: FederationConfig) -> None:
        """A newer charter was taken, and is on disk; the neighbors have been told."""
        try:
            self.amend(federation)
        except UserError as error:
            log.warning("%s; the newer charter takes effect when this node is started again", error)

    async def _upkeep(self) -> None:
        """Snapshots by the clock, and the distance to the neighbors for whoever asks."""
        began = saved_at = time.monotonic()
        told = False
        while True:
            await asyncio.sleep(1.0)
            if not told and time.monotonic() - began >= QUIET_WAIT_S:
                told = True
                self._say_who_is_missing()
            self._look()
            if self.driver is not None and self.status.core.rounds.phase is Phase.WAITING:
                self.on_line(self._line(self.driver))
            if self.driver is not None:
                self.driver.presence.look(time.monotonic())
            if self.driver is not None and self.driver.charters is not None:
                self.driver.charters.look(time.monotonic())
            if self.driver is not None and self.status.core.rounds.phase in (Phase.CLOSING, Phase.LINGERING):
                self.driver.measure()  # neighbors that are not through still move the model
            if self.setup.durability == "snapshot" and time.monotonic() - saved_at >= self.setup.node.snapshot_s:
                saved_at = time.monotonic()
                self.thread.jobs.put(Checkpoint())

    async def _show(self) -> None:
        """Apart from the upkeep: what is for eyes only must not be in its way."""
        while True:
            await asyncio.sleep(1.0)
            self.display.tick()

    def _say_who_is_missing(self) -> None:
        core = self.status.core
        missing = [self._name_of(peer) for peer, edge in core.edges.items() if not edge.is_open]
        if not missing or core.rounds.phase is not Phase.WAITING:
            return
        if len(missing) == len(core.edges):
            log.warning("no neighbor is there yet (%s): nothing is trained until one is", ", ".join(missing))
        else:
            wait_s = self.setup.federation.gossip.start_wait_s
            log.warning("no session yet with %s; starts without them after at most %g s", ", ".join(missing), wait_s)

    def _look(self) -> None:
        """A float is written in one step: no lock is needed between the threads."""
        if time.monotonic() >= self.look_again_at:
            self.thread.jobs.put(Look(self._see))

    def _see(self, engine: Engine) -> None:
        began = time.thread_time()
        self.status.neighbor_distance = engine.neighbor_distance()
        self.look_again_at = time.monotonic() + (time.thread_time() - began) / LOOKING_SHARE

    def _measured(self) -> None:
        now, driver = time.monotonic(), self.driver
        if driver is None or driver.finished.is_set():
            return
        if now - self.last_line_at >= LEAST_LINE_S:
            self.last_line_at = now
            self._look()
            self.on_line(self._line(driver))

    def _closed(self, seen: ClosedRound) -> None:
        """Closing rounds are few and show a launcher how fast the nodes come together: each has a line of its own."""
        if self.sketched and self.driver is not None:
            # It may come when the node has gone on, but never after its last line.
            line = self._line(self.driver)
            line.phase, line.sketch, line.closed = Phase.CLOSING.value, seen.sketch, seen
            self.on_line(line)

    def _line(self, driver: Driver) -> NodeLine:
        line = self.status.line()
        if self.stopped and line.phase == Phase.FINISHED.value:
            line.phase = "stopped"
        if self.sketched:
            line.sketch = driver.workshop.sketched
        return line

    async def _conclude(self, engine: Engine, driver: Driver) -> NodeResult:
        """The threads have ended: write the last snapshot, test what was learned, leave a result."""
        self.cpu_ended = time.process_time()
        self.status.over = True
        had_ended = engine.state.ended is not None
        if self.status.core.facts.done:
            engine.state.ended = parts.bound_of(self.status.core.settings)
        if not await self._is_written(lambda: self.thread.checkpoint(engine.state)):
            raise StorageError(f"{self.thread.refusal}; given up: what was learned {self.thread.unkept} is lost")
        self.status.neighbor_distance = await asyncio.to_thread(engine.neighbor_distance)
        workshop = driver.workshop
        self.testing = True
        local = await self._last_test(engine.state, driver)
        self.on_line(self._line(driver))
        if not (self.status.exchanges or self.stopped or had_ended):
            log.warning("no exchange with any neighbor: check addresses, listen and the firewall")
        core = self.status.core
        if alone := core.facts.alone:
            notice.info("%d of %d rounds were trained without a neighbor", alone, core.facts.rounds)
        if core.ending.ended_by is not None:
            notice.info("training ended after round %d: %s", core.facts.rounds, core.ending.ended_by)
        finished = core.rounds.phase is Phase.FINISHED and not self.stopped and not (core.resigned or core.retired)
        if finished:
            driver.feed.keep("finished", None, f"after round {core.facts.rounds}")
        result = NodeResult(
            **msgspec.structs.asdict(self.status.full()),
            finished=finished,
            resigned=core.resigned,
            removed=core.retired,
            pid=os.getpid(),
            local_accuracy=None if local is None else local.accuracy,
            local_loss=None if local is None else local.loss,
            local_metrics={} if local is None else dict(local.metrics),
            steps=workshop.steps,
            wall_time_s=round(time.monotonic() - self.status.started_at, 3),
            cpu_time_s=None if self.shared else round(time.process_time(), 3),
            cpu_time_running_s=None if self.shared else round(self.cpu_ended - self.cpu_began, 3),
            cpu_time_training_s=round(workshop.cpu_s, 3),
        )
        path = self.setup.node.state_dir / RESULT_FILE
        try:
            replace_file(path, [msgspec.json.format(result.to_json(), indent=2)])
        except StorageError as error:
            log.warning("%s", error)
        return result

    async def _last_test(self, state: NodeState, driver: Driver) -> Score | None:
        """Test the last model, however long that takes unless somebody wants the node to end; the score on own data."""
        waiting, shop, learner = self.waiting, driver.workshop, self.setup.learner
        hasty = self.stopped or self.asked_again
        local: list[Score | None] = []

        def test() -> None:
            shop.measure(state.model, Moment(state.rounds, state.version, final=True))
            local.append(learner.evaluate(state.model, "local"))

        under_way = driver.under_way
        if await waiting.until(driver.learner_is_free, limit_s=workshop.LAST_ROUND_S if hasty else None):
            learner.load_local_state(state.local)  # a round that ended too late does not count
            errand = start_errand(test, None if self.shared is None else self.shared.compute)
            under_way = "test"
            if await waiting.until(errand.done, limit_s=workshop.LAST_TEST_S if hasty else None):
                errand.result()
                return local[0]
        if shop.tested is None or not shop.tested.of.final:
            log.warning("%s", workshop.why_untested(under_way, shop.tested))
        return None

    def _name_of(self, index: int) -> str:
        return self.setup.federation.members[index].name


class _Leash(asyncio.Protocol):
    def __init__(self, let_go: Callable[[], None]) -> None:
        self.let_go = let_go

    def eof_received(self) -> None:
        self.let_go()


async def run_node(
    setup: Setup,
    *,
    on_line: Callable[[NodeLine], None],
    launched: bool = False,
    make: Callable[..., Application] = Application,
) -> NodeResult | None:
    """Run one node to its end, or until SIGINT or SIGTERM; returns its result, None where it was stopped at its start.

    `launched`: lines carry a sketch of the model, and the node stops when its stdin ends, as it does when the launcher
    dies. `make` takes what `Application` takes.
    """
    application = make(setup, on_line=on_line, sketched=launched)
    loop = asyncio.get_running_loop()
    if launched:
        await loop.connect_read_pipe(lambda: _Leash(application.stop), sys.stdin)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, application.stop)
    try:
        return await application.run()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class Node:
    """One node of a federation, as `p2pfl run` starts it; signals are the caller's business.

    `federation` is the file or its folder; `on_progress` gets its figures at most ten times a second.

    Raises UserError: something in the files is wrong.
    """

    def __init__(
        self, federation: Path | str, name: str, *, on_progress: Callable[[NodeLine], None] = lambda _: None
    ) -> None:
        described = arrive(load_config(federation), name)
        config = load_node(node_file(described, name), described, name)
        self._application = Application(read_setup(described, config), on_line=on_progress)

    async def run(self) -> NodeResult | None:
        """Run until the rounds are done or `stop` is called; the result also stands in `<state_dir>/result.json`.

        None where it was stopped before it could begin, because its disk was full.
        """
        return await self._application.run()

    def stop(self) -> None:
        """End cleanly, keeping a snapshot. From the event loop that runs the node."""
        self._application.stop()
