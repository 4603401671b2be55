"""One open session: messages in, messages out, until either end closes it or the connection is lost.

Nothing here blocks the loop: large chunks are sealed and opened in a worker thread, several at a time, because handing
work to the thread costs the loop as much as a quarter of such a chunk. A session ends once, through `end`, whichever
part noticed first; from then on it delivers nothing. `Shared` is what all sessions of a node have in common.
Incomplete messages are limited twice: by the memory that they use together, and by the rate that each must keep up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from logging import Logger
from time import monotonic
from typing import Protocol, TypeVar

from p2pfl.core.limits import TokenBucket
from p2pfl.core.messages import LEAST_VERSION, PROTOCOL_VERSION, Busy, Hello, Message, Reply, Request
from p2pfl.errors import PeerFault
from p2pfl.limits import (
    BEATS_PER_S,
    CHUNK_BYTES,
    LISTENER_PATIENCE_S,
    LOUD_FAULTS,
    REASON_BYTES,
    SESSION_MAX_S,
    SILENCE_LOOKS,
    Limits,
)
from p2pfl.net.extensions import ExtensionChannel, ExtensionChannels
from p2pfl.net.greeting import Connection, Notice
from p2pfl.net.outbox import BodySender, KeptParts, Outbox, ReceiptClock, SendingRate
from p2pfl.net.transport import Counters, GoneError, OnAlarm, clip
from p2pfl.wire import (
    FREE_SPLIT_VERSION,
    Assembler,
    Offer,
    OtherVersionError,
    PartHeld,
    PartialBody,
    Receipt,
    SessionMessage,
    Side,
    Unknown,
    split,
)

INLINE_BYTES = 64 * 1024
BATCH_BYTES = 4 * CHUNK_BYTES
"""The bytes of a message that are sealed before the socket accepts them."""
BATCH_CHUNKS = 4
"""How many chunks are sealed ahead, and how many are read ahead while at most as many are being opened."""
CALM_TURNS = 3
"""After so many turns of the loop without anything to read, all that had come to this machine has been read."""
STALLED_S, FOLLOWS_S = 45.0, 10.0
"""An exchange that is not over after so long counts as one that took so long; and `_end_exchange`."""
SILENT = "silent-session"
"""The kind of alarm about a connection that no longer delivers sealed chunks."""

MALFORMED = "protocol fault sealed by the peer: "
"""The beginning of the reason if the peer itself, not somebody on the way, sealed the fault that ended the session."""

T = TypeVar("T")


class ByteBudget:
    """The memory for partly received messages, in bytes, shared by all sessions."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0

    def change(self, held: int, needed: int) -> int:
        """Change a session's memory from `held` bytes to `needed` and return the latter. Raises PeerFault if there is
        no room.
        """
        if needed > held and self.used - held + needed > self.limit_bytes:
            raise PeerFault(f"{needed} bytes of unfinished messages do not fit into what is left of {self.limit_bytes}")
        self.used += needed - held
        return needed


class MessagePace:
    """Requires an incomplete message to bring `min_rate * window_s` bytes in every window."""

    def __init__(self, min_rate: float, window_s: float) -> None:
        self._least = min_rate * window_s
        self._window_s = window_s
        self._brought = 0
        self.deadline: float | None = None
        """When the window ends; None while no message is incomplete."""

    def note(self, now: float, size: int, *, under_way: bool) -> None:
        if not under_way:
            self.deadline = None
        elif self.deadline is None:
            self._open(now)
        else:
            self._brought += size
            if self._brought >= self._least:
                self._open(now)

    def _open(self, now: float) -> None:
        self.deadline = now + self._window_s
        self._brought = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Parts shared by all sessions. `executor` seals and opens large chunks; `name_of` returns a member's name."""

    limits: Limits
    budget: ByteBudget
    executor: Executor
    counters: Counters
    log: Logger
    max_body_bytes: int
    name_of: Callable[[int], str]
    on_alarm: OnAlarm
    extensions: ExtensionChannels
    rate: SendingRate = field(default_factory=SendingRate)
    """The bounds on what this node sends."""
    parts: KeptParts = field(init=False)
    """The parts of bodies that ended sessions have left."""
    strange_versions: set[int] = field(default_factory=set)
    """Neighbors whose different protocol version has been logged."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", KeptParts(lambda: self.budget.limit_bytes))

    @property
    def beat_s(self) -> float:
        return min(self.limits.beat_s, self.limits.silence_s / 3)

    async def work(self, size: int, act: Callable[[], T]) -> T:
        """Run `act()`, in a worker thread if `size` bytes would hold up the loop."""
        if size < INLINE_BYTES:
            return act()
        return await asyncio.get_running_loop().run_in_executor(self.executor, act)


class Owner(Protocol):
    def deliver(self, link: PeerLink, message: Message) -> None: ...
    def ended(self, link: PeerLink, reason: str) -> None: ...


class FarewellError(Exception):
    """The peer has closed the session with a goodbye."""


class MalformedError(PeerFault):
    """The peer has sealed bytes that are not a message."""


class Inbox:
    """The receiving side of a session: it reads ahead, opens chunks, assembles messages, and demands a minimum pace."""

    def __init__(self, connection: Connection, shared: Shared) -> None:
        self._connection, self._shared = connection, shared
        self.part = shared.parts.take(connection.peer)
        """The part of a body that the session before has left, until the other end is told."""
        self._held = 0
        if self.part is not None:
            try:
                self._held = shared.budget.change(0, self.part.body_bytes)
            except PeerFault:
                self.part = None
        self._assembler = Assembler(shared.max_body_bytes, self.part)
        self._pace = MessagePace(shared.limits.min_rate, shared.limits.rate_window_s)
        self._receipts = ReceiptClock()
        self._closed = False
        self._arrived: asyncio.Queue[bytes | Exception] = asyncio.Queue(BATCH_CHUNKS)
        self._receiving: asyncio.Timeout | None = None
        self._beats = TokenBucket(BEATS_PER_S)
        self._heard = False
        self._is_opening = False

    def hears(self) -> bool:
        """Return True if a sealed chunk has arrived since the last call."""
        heard, self._heard = self._heard, False
        return heard

    @property
    def is_idle(self) -> bool:
        """True if nothing is being opened, and nothing waits for that."""
        return self._receiving is not None and self._arrived.empty() and not self._is_opening

    @property
    def pending_bytes(self) -> int:
        """Bytes of the current message received so far."""
        return self._assembler.pending_bytes

    async def receive(self) -> None:
        """Read ahead while chunks are opened; the last entry of the queue is the reason why there are no more."""
        try:
            while True:
                await self._arrived.put(await self._next())
        except TimeoutError:
            await self._arrived.put(PeerFault("a message arrives too slowly"))
        except (GoneError, PeerFault) as reason:
            await self._arrived.put(reason)

    async def take(self) -> tuple[list[SessionMessage | Unknown], Exception | None]:
        """Return the messages completed since the last call, and the reason if they are the last ones."""
        self._is_opening = False
        batch = [await self._arrived.get()]
        self._is_opening = True
        while not self._arrived.empty():
            batch.append(self._arrived.get_nowait())
        size = sum(len(data) for data in batch if isinstance(data, bytes))
        # A chunk of a body may be the last one, which pays for the digest of the whole.
        messages, reason = await self._shared.work(max(size, self._assembler.kept_bytes), partial(self._unseal, batch))
        self._note_progress(size)
        return messages, reason

    def receipt(self) -> Receipt | None:
        """Return what the other end should be told of the current body now."""
        now = asyncio.get_running_loop().time()
        return self._receipts.due(self._assembler.came, now, under_way=self.pending_bytes > 0)

    def close(self) -> PartialBody | None:
        """End; return what has arrived of the current message."""
        self._closed = True
        self._held = self._shared.budget.change(self._held, 0)
        self.part = None
        return self._assembler.detach()

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._pace.deadline) as self._receiving:
                return await self._connection.line.receive()
        finally:
            self._receiving = None

    def _unseal(self, batch: Iterable[bytes | Exception]) -> tuple[list[SessionMessage | Unknown], Exception | None]:
        """Return the messages that the batch completes, and the reason if it is the last."""
        messages: list[SessionMessage | Unknown] = []
        try:
            for data in batch:
                if isinstance(data, Exception):
                    return messages, data
                chunk, final = self._connection.session.open(data)
                self._heard = True
                if final:
                    return messages, FarewellError()
                messages += self._assemble(chunk) if chunk else self._beat()
        except PeerFault as fault:
            return messages, fault
        return messages, None

    def _beat(self) -> list[SessionMessage | Unknown]:
        if self._beats.take(monotonic()) > 0.0:
            raise MalformedError("more empty chunks than an honest end sends")
        return []

    def _assemble(self, chunk: bytes) -> list[SessionMessage | Unknown]:
        try:
            return self._assembler.feed(chunk)
        except OtherVersionError:
            raise
        except PeerFault as fault:
            raise MalformedError(str(fault)) from fault

    def _note_progress(self, size: int) -> None:
        if self._closed:
            return
        under_way = self._assembler.pending_bytes
        self._held = self._shared.budget.change(self._held, self._assembler.kept_bytes)
        self._pace.note(asyncio.get_running_loop().time(), size, under_way=under_way > 0)
        if self._receiving is not None and not self._receiving.expired():
            # The wait began before the deadline was known.
            self._receiving.reschedule(self._pace.deadline)


class PeerLink:
    """An open session.

    `number` is ours; `remote_number` belongs to the end that decides (it is the same if we decide). `opening` is sent
    first.
    """

    def __init__(
        self,
        connection: Connection,
        shared: Shared,
        owner: Owner,
        *,
        number: int,
        remote_number: int,
        opening: Notice | None,
    ) -> None:
        self.connection, self.peer = connection, connection.peer
        self.number, self.remote_number = number, remote_number
        self.finished = asyncio.Event()
        self._shared, self._owner, self._opening = shared, owner, opening
        self._traffic = shared.counters.peers[self.peer]
        self._inbox = Inbox(connection, shared)
        self._outbox = Outbox(shared.limits.queue_messages)
        self._ended = asyncio.Event()
        self._opened_s = monotonic()
        self._version: int | None = None
        """The protocol version used by both ends; None until the other end has offered its versions."""
        self._bodies = BodySender(shared.rate.bytes_per_s)
        self._asked: bytes | None = None
        """The digest of the request that has no reply yet, which was first sent at `_asked_at`."""
        self._asked_at = self._followed_at = self._exchange_s = 0.0

    @property
    def age_s(self) -> float:
        return monotonic() - self._opened_s

    @property
    def exchange_s(self) -> float:
        """The time that an exchange takes which this end has asked for, in seconds; 0 while it is not known."""
        stalls = self._asked is not None and asyncio.get_running_loop().time() - self._asked_at > STALLED_S
        return max(self._exchange_s, STALLED_S if stalls else 0.0)

    def _end_exchange(self, now: float) -> None:
        """Follow what exchanges take, by a factor of e in `FOLLOWS_S` at most: what holds most of the time counts."""
        took_s, most = now - self._asked_at, 1 + (now - self._followed_at) / FOLLOWS_S
        self._exchange_s = min(max(took_s, self._exchange_s / most), (self._exchange_s or took_s) * most)
        self._asked, self._followed_at = None, now

    def send(self, message: Message) -> None:
        now, hearing = asyncio.get_running_loop().time(), self._inbox.pending_bytes > 0
        if not self._outbox.put(message, now, hearing=hearing):
            self.end(f"the peer does not read: {len(self._outbox)} messages wait for it")

    def say(self, message: Side, channel: ExtensionChannel, *, if_free: bool = False) -> bool:
        """Send a message once no gossip is waiting; return False if its queue is full.

        With `if_free`, send it only if nothing at all is waiting.
        """
        if self._ended.is_set() or (if_free and not self._outbox.idle.is_set()):
            return False
        return self._outbox.put_extension(message, channel.most_waiting)

    async def drain(self) -> None:
        """Wait until the queue is empty or the session has ended."""
        await self._outbox.idle.wait()

    async def hear_out(self) -> None:
        """Wait until what has come is handled or the session has ended, so that no fault is lost with it."""
        calm = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(self._shared.limits.contest_s):
                while calm < CALM_TURNS and not self._ended.is_set():
                    calm = calm + 1 if self._inbox.is_idle else 0
                    await asyncio.sleep(0)

    def end(self, reason: str) -> None:
        """End the session; the first reason counts. Drop queued messages; say goodbye if the connection allows."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._shared.parts.keep(self.peer, self._inbox.close())
        self._outbox.close()
        self._shared.extensions.ended(self)
        self._owner.ended(self, reason)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(self._inbox.receive()), tasks.create_task(self._read())]
                readers.append(tasks.create_task(self._watch()))
                writer = tasks.create_task(self._write())
                await self._wait_for_end()
                for reader in readers:
                    reader.cancel()
                await asyncio.wait({writer}, timeout=self._shared.limits.close_s)
                writer.cancel()
        finally:
            self.end("the node stopped")
            await self.connection.line.close(self._shared.limits.close_s)
            self.finished.set()

    async def _wait_for_end(self) -> None:
        """Wait for the end, at most until the session is too old. The dialer ends it, because it can dial again."""
        age_s = self._shared.limits.session_s or SESSION_MAX_S
        patience_s = LISTENER_PATIENCE_S if self.connection.dialer == self.peer else 0.0
        try:
            async with asyncio.timeout(age_s + patience_s):
                await self._ended.wait()
        except TimeoutError:
            self.end(f"renewed after {age_s:.0f} s")

    async def _watch(self) -> None:
        """End a session that no longer delivers sealed chunks. A ping proves nothing: anybody on the way can answer
        it.
        """
        longest_s, looks = self._shared.limits.silence_s, 0
        while looks < SILENCE_LOOKS - 1:
            await asyncio.sleep(longest_s / SILENCE_LOOKS)
            looks = 0 if self._inbox.hears() else looks + 1
        if not self._ended.is_set():
            silent_s = longest_s * (SILENCE_LOOKS - 1) / SILENCE_LOOKS
            text = (
                f"no sealed chunk has come for {silent_s:.0f} s or more: it is gone, or somebody on the way blocks it"
            )
            self.connection.line.doubt(text)
            if self.connection.line.relay is None:
                self._shared.on_alarm(SILENT, self.peer, text)
            self.end(text)

    async def _next_message(self) -> Message | Side | Receipt | None:
        """Return the next message to send; while there is none, send an empty chunk from time to time."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                async with asyncio.timeout(self._shared.beat_s):
                    return await self._outbox.take(clock())
            except TimeoutError:
                await self._say(b"")

    async def _write(self) -> None:
        try:
            if self._opening is not None:
                await self._say(self._opening.pack())
            await self._say(*split(self._offer, LEAST_VERSION))
            if (part := self._inbox.part) is not None:
                # A node of the version before drops it.
                await self._say(*split(await self._shared.work(part.size, part.announce), LEAST_VERSION))
                self._inbox.part = None
            clock = asyncio.get_running_loop().time
            while (message := await self._next_message()) is not None:
                self._outbox.begin(message, clock())
                await self._send(message)
                del message
            await self._say(b"", final=True)
        except GoneError as gone:
            await self.hear_out()
            self.end(f"connection lost: {gone}")
        except TimeoutError:
            text = f"nothing more was taken for {self._shared.limits.drain_s:.0f} s"
            self.connection.line.doubt(text)
            self.end("the peer does not read")
        except PeerFault:
            # The reader has found the fault and reports it; a dead session cannot even say goodbye.
            return

    @property
    def _offer(self) -> Offer:
        return Offer(least=LEAST_VERSION, most=PROTOCOL_VERSION, channels=self._shared.extensions.names)

    async def _send(self, message: Message | Side | Receipt) -> None:
        if isinstance(message, Request) and message.digest != self._asked:
            self._asked, self._asked_at = message.digest, asyncio.get_running_loop().time()
        chunks = await self._bodies.cut(message, self._version or LEAST_VERSION, self._shared.work)
        if self._shared.rate.bytes_per_s is not None:
            beat_s = self._shared.beat_s
            await self._shared.rate.carry(chunks, self._say, beat_s, is_over=self._ended.is_set)
        else:
            for batch in batches(chunks):
                if self._ended.is_set():
                    return
                await self._say(*batch)
        self._traffic.messages_sent += not isinstance(message, Receipt)

    async def _say(self, *chunks: bytes | memoryview, final: bool = False) -> None:
        """Seal and send chunks. Every sealed chunk must be sent, or the session is dead."""
        size = sum(len(chunk) for chunk in chunks)
        for sealed in await self._shared.work(size, partial(self._seal, chunks, final=final)):
            try:
                async with asyncio.timeout(self._shared.limits.drain_s) as self._bodies.draining:
                    await self.connection.line.send(sealed)
            finally:
                self._bodies.draining = None
            self._shared.rate.book(len(sealed), asyncio.get_running_loop().time())
            # A socket that accepts everything does not yield: four large chunks would hold up the loop for
            # milliseconds.
            await asyncio.sleep(0)

    def _seal(self, chunks: Iterable[bytes | memoryview], *, final: bool) -> list[bytes]:
        return [self.connection.session.seal(chunk, final=final) for chunk in chunks]

    async def _read(self) -> None:
        try:
            while not self._ended.is_set():
                await self._read_batch()
        except FarewellError:
            self.end("closed by the peer")
        except GoneError as gone:
            self.end(f"connection lost: {gone}")
        except PeerFault as fault:
            self._blame(fault)

    async def _read_batch(self) -> None:
        """Deliver a batch. No message may be kept here after this call, because the assembler reuses a long body's
        memory.
        """
        messages, reason = await self._inbox.take()
        for message in messages:
            self._deliver(message)
        if reason is not None:
            raise reason
        receipt = self._inbox.receipt()
        if receipt is not None and (self._version or 0) >= FREE_SPLIT_VERSION:
            self._outbox.put_receipt(receipt)

    def _deliver(self, message: SessionMessage | Unknown) -> None:
        """Deliver a message. Raises PeerFault if it is out of turn, or if its channel refuses it."""
        if self._ended.is_set():
            return
        if isinstance(message, Offer):
            self._agree(message)
            return
        if self._version is None:
            raise MalformedError("a message before the versions and channels were offered")
        self._traffic.messages_received += not isinstance(message, PartHeld | Receipt)
        if isinstance(message, Side | Unknown | PartHeld | Receipt):
            try:
                if isinstance(message, Side | Unknown):
                    self._shared.extensions.handle_message(self, message)
                else:
                    self._bodies.hear(message, asyncio.get_running_loop().time(), self._shared.limits.drain_s)
            except PeerFault as fault:
                raise MalformedError(str(fault)) from fault
            return
        if isinstance(message, Hello):
            self._bodies.applied = message.request_digest
        if isinstance(message, Busy):
            self._outbox.allow_repeat(message)
        if isinstance(message, Reply) and message.request_digest == self._asked:
            self._end_exchange(asyncio.get_running_loop().time())
        self._owner.deliver(self, message)

    def _agree(self, offer: Offer) -> None:
        if self._version is not None:
            raise MalformedError("versions and channels offered twice")
        version = min(offer.most, PROTOCOL_VERSION)
        if version < max(offer.least, LEAST_VERSION):
            raise OtherVersionError(f"the peer speaks protocol versions {offer.least} to {offer.most}")
        self._version = version
        self._shared.extensions.handle_offer(self, offer)

    def _blame(self, fault: PeerFault) -> None:
        if self._ended.is_set():
            return
        line = self.connection.line
        if line.relay is not None and not isinstance(fault, MalformedError | OtherVersionError):
            line.doubt(str(fault))
            self.end(f"connection lost: {fault}, on the way through {line.relay}")
            return
        self._traffic.faults += 1
        name, strange = self._shared.name_of(self.peer), self._shared.strange_versions
        if isinstance(fault, OtherVersionError):
            if self.peer not in strange:  # dials go on, and this lasts until a person upgrades one of them
                strange.add(self.peer)
                self._shared.log.warning("%s: %s: both need versions of p2pfl that share one", name, fault)
        elif self._traffic.faults <= LOUD_FAULTS:
            reason = clip(str(fault), REASON_BYTES)
            self._shared.log.warning("session %d with %s: %s", self.number, name, reason)
        self.end(f"{MALFORMED if isinstance(fault, MalformedError) else 'protocol fault: '}{fault}")


def batches(chunks: Iterable[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    """Yield batches of chunks, at most BATCH_CHUNKS and BATCH_BYTES each."""
    batch: list[bytes | memoryview] = []
    for chunk in chunks:
        if len(batch) == BATCH_CHUNKS or sum(map(len, batch)) + len(chunk) > BATCH_BYTES:
            yield batch
            batch = []
        batch.append(chunk)
    yield batch
