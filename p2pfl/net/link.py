"""One open session: messages in, messages out, until either end closes it or the connection is lost.

Nothing here blocks the loop: large chunks are sealed and opened in a worker thread, several at a time, because handing
work to the thread costs the loop as much as a quarter of such a chunk. A session ends once, through `end`, whichever
part noticed first; from then on it delivers nothing. `Shared` is what all sessions of a node have in common.

Outgoing messages wait in the `Outbox`: on a slow line it keeps fewer and newer ones, rather than a longer queue. An
edge has one transaction at a time, so the older of two bodies is void, and at most one waits behind the one being sent.
The core repeats unanswered requests. A live session loses nothing, so a repeat is sent only if the body was sent long
ago. Of messages that only say where a node stands, only the latest counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from logging import Logger
from time import monotonic
from typing import Protocol, TypeVar

from p2pfl.core.limits import TokenBucket
from p2pfl.core.messages import CHUNK_BYTES, LEAST_VERSION, PROTOCOL_VERSION, Busy, Message, Ready, Reply, Request
from p2pfl.crypto.session import SESSION_MAX_S
from p2pfl.errors import PeerFault
from p2pfl.net.greeting import Connection
from p2pfl.net.limits import ByteBudget, Limits, MessagePace
from p2pfl.net.line import Counters, GoneError, OnAlarm
from p2pfl.net.notices import Notice
from p2pfl.net.rate import SendingRates
from p2pfl.net.refusals import REASON_BYTES, clip
from p2pfl.net.side import SideChannel, Sides
from p2pfl.wire import Assembler, Offer, OtherVersionError, SessionMessage, Side, Unknown, split

LOUD_FAULTS = 20
"""How many faults of one neighbor are logged as warnings; further ones are only counted."""
INLINE_BYTES = 64 * 1024
BATCH_BYTES = 4 * CHUNK_BYTES
"""The bytes of a message that are sealed before the socket accepts them."""
BATCH_CHUNKS = 4
"""How many chunks are read ahead while at most as many are being opened."""
LISTENER_PATIENCE_S = 60.0
SILENCE_LOOKS = 9
"""The number of checks within the longest silence allowed.

Checks are counted, not seconds: a process that was stopped for an hour must first read what arrived in the meantime.
"""
BEATS_PER_S = 1.0
"""Empty chunks allowed per second, beyond a burst of `BURST`: an honest end sends fewer."""
SILENT = "silent-session"
"""The kind of alarm about a connection that no longer delivers sealed chunks."""

MALFORMED = "protocol fault sealed by the peer: "
"""The beginning of the reason if the peer itself, not somebody on the way, sealed the fault that ended the session."""

T = TypeVar("T")

REPEAT_MULTIPLE = 4.0
"""A body is repeated after this many times its sending time: the answer may take as long."""
LEAST_REPEAT_S = 30.0
"""The earliest repeat: on a fast line the answer waits for the peer's processor or disk, which a repeat would
burden.
"""
MOST_WAITING: dict[type[SessionMessage], int] = {Request: 1, Reply: 1, Ready: 4}
"""The maximum number of queued messages per kind. In a schedule an earlier Ready may ask for an exchange where the
latest does not.
"""

Name = tuple[object, ...]


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
    sides: Sides
    rates: SendingRates = field(default_factory=SendingRates)
    """The bounds on what this node sends."""
    strange_versions: set[int] = field(default_factory=set)
    """Neighbors whose different protocol version has been logged."""

    async def work(self, size: int, act: Callable[[], T]) -> T:
        """Run `act()`, in a worker thread if `size` bytes would hold up the loop."""
        if size < INLINE_BYTES:
            return act()
        return await asyncio.get_running_loop().run_in_executor(self.executor, act)

    def tell_of_version(self, peer: int, fault: OtherVersionError) -> None:
        """Log once that a neighbor has another version: dials go on, and this lasts until a person upgrades one of
        them.
        """
        if peer not in self.strange_versions:
            self.strange_versions.add(peer)
            self.log.warning("%s: %s: both need versions of p2pfl that share one", self.name_of(peer), fault)


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
        self._assembler = Assembler(shared.max_body_bytes)
        self._pace = MessagePace(shared.limits.min_rate, shared.limits.rate_window_s)
        self._held = 0
        self._closed = False
        self._arrived: asyncio.Queue[bytes | Exception] = asyncio.Queue(BATCH_CHUNKS)
        self._receiving: asyncio.Timeout | None = None
        self._beats = TokenBucket(BEATS_PER_S)
        self._heard = False

    def hears(self) -> bool:
        """Return True if a sealed chunk has arrived since the last call."""
        heard, self._heard = self._heard, False
        return heard

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
        batch = [await self._arrived.get()]
        while not self._arrived.empty():
            batch.append(self._arrived.get_nowait())
        size = sum(len(data) for data in batch if isinstance(data, bytes))
        # The last chunk of a long message may be short, but it still pays for the digest of the whole message.
        messages, reason = await self._shared.work(
            max(size, self._assembler.pending_bytes), partial(self._unseal, batch)
        )
        self._note_progress(size)
        return messages, reason

    def close(self) -> None:
        """Drop the current message and release its memory."""
        self._closed = True
        self._held = self._shared.budget.change(self._held, 0)

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
        self._held = self._shared.budget.change(self._held, under_way)
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

        limits = shared.limits
        self._beat_s = min(limits.beat_s, limits.silence_s / 3)

    @property
    def age_s(self) -> float:
        return monotonic() - self._opened_s

    def send(self, message: Message) -> None:
        now, hearing = asyncio.get_running_loop().time(), self._inbox.pending_bytes > 0
        if not self._outbox.put(message, now, hearing=hearing):
            self.end(f"the peer does not read: {len(self._outbox)} messages wait for it")

    def say(self, message: Side, channel: SideChannel, *, if_free: bool = False) -> bool:
        """Send a message once no gossip is waiting; return False if its queue is full.

        With `if_free`, send it only if nothing at all is waiting.
        """
        if self._ended.is_set() or (if_free and not self._outbox.idle.is_set()):
            return False
        return self._outbox.put_aside(message, channel.most_waiting)

    async def drain(self) -> None:
        """Wait until the queue is empty or the session has ended."""
        await self._outbox.idle.wait()

    def end(self, reason: str) -> None:
        """End the session; the first reason counts. Drop queued messages; say goodbye if the connection allows."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._inbox.close()
        self._outbox.close()
        self._shared.sides.ended(self)
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

    async def _next_message(self) -> Message | Side | None:
        """Return the next message to send; while there is none, send an empty chunk from time to time."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                async with asyncio.timeout(self._beat_s):
                    return await self._outbox.take(clock())
            except TimeoutError:
                await self._say(b"")

    async def _write(self) -> None:
        try:
            if self._opening is not None:
                await self._say(self._opening.pack())
            await self._say(*split(self._offer, LEAST_VERSION))
            clock = asyncio.get_running_loop().time
            while (message := await self._next_message()) is not None:
                self._outbox.begin(message, clock())
                await self._send(message)
                del message
            await self._say(b"", final=True)
        except GoneError as gone:
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
        return Offer(least=LEAST_VERSION, most=PROTOCOL_VERSION, channels=self._shared.sides.names)

    async def _send(self, message: Message | Side) -> None:
        chunks = split(message, self._version or LEAST_VERSION)
        if self._shared.rates.bound(self.peer):
            await self._shared.rates.carry(self.peer, chunks, self._say, self._beat_s, is_over=self._ended.is_set)
        else:
            for batch in batches(chunks):
                if self._ended.is_set():
                    return
                await self._say(*batch)
        self._traffic.messages_sent += 1

    async def _say(self, *chunks: bytes | memoryview, final: bool = False) -> None:
        """Seal and send chunks. Every sealed chunk must be sent, or the session is dead."""
        size = sum(len(chunk) for chunk in chunks)
        for sealed in await self._shared.work(size, partial(self._seal, chunks, final=final)):
            async with asyncio.timeout(self._shared.limits.drain_s):
                await self.connection.line.send(sealed)
            self._shared.rates.book(self.peer, len(sealed), asyncio.get_running_loop().time())
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

    def _deliver(self, message: SessionMessage | Unknown) -> None:
        """Deliver a message. Raises PeerFault if it is out of turn, or if its channel refuses it."""
        if self._ended.is_set():
            return
        if isinstance(message, Offer):
            self._agree(message)
            return
        if self._version is None:
            raise MalformedError("a message before the versions and channels were offered")
        self._traffic.messages_received += 1
        if isinstance(message, Side | Unknown):
            try:
                self._shared.sides.handle_message(self, message)
            except PeerFault as fault:
                raise MalformedError(str(fault)) from fault
            return
        if isinstance(message, Busy):
            self._outbox.allow_repeat()
        self._owner.deliver(self, message)

    def _agree(self, offer: Offer) -> None:
        if self._version is not None:
            raise MalformedError("versions and channels offered twice")
        version = min(offer.most, PROTOCOL_VERSION)
        if version < max(offer.least, LEAST_VERSION):
            raise OtherVersionError(f"the peer speaks protocol versions {offer.least} to {offer.most}")
        self._version = version
        self._shared.sides.handle_offer(self, offer)

    def _blame(self, fault: PeerFault) -> None:
        if self._ended.is_set():
            return
        line = self.connection.line
        if line.relay is not None and not isinstance(fault, MalformedError | OtherVersionError):
            line.doubt(str(fault))
            self.end(f"connection lost: {fault}, on the way through {line.relay}")
            return
        self._traffic.faults += 1
        if isinstance(fault, OtherVersionError):
            self._shared.tell_of_version(self.peer, fault)
        elif self._traffic.faults <= LOUD_FAULTS:
            name, reason = self._shared.name_of(self.peer), clip(str(fault), REASON_BYTES)
            self._shared.log.warning("session %d with %s: %s", self.number, name, reason)
        self.end(f"{MALFORMED if isinstance(fault, MalformedError) else 'protocol fault: '}{fault}")


def batches(chunks: Iterable[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    """Yield batches of chunks, of at most BATCH_BYTES each."""
    batch: list[bytes | memoryview] = []
    for chunk in chunks:
        if sum(map(len, batch)) + len(chunk) > BATCH_BYTES:
            yield batch
            batch = []
        batch.append(chunk)
    yield batch


class Outbox:
    """The queue of outgoing messages, at most `limit` of them. Times are the loop's, in seconds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Message] = deque()
        self._aside: deque[Side] = deque()
        """Side-channel messages, sent when no gossip is waiting."""
        self._filled = asyncio.Event()
        self._closed = False
        self._latest: Name | None = None
        """The name of the body that was most recently begun."""
        self._begun_s = 0.0
        self._repeat_at = float("inf")
        self.idle = asyncio.Event()
        """Set while nothing is waiting or being sent, and from `close` on."""
        self.idle.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message, now: float, *, hearing: bool) -> bool:
        """Queue a message; return False if there is no room.

        `hearing` says that a body is arriving from the peer, which may be the answer.
        """
        if self._closed or self._is_needless(message, now, hearing=hearing):
            return True
        self._make_room(message)
        if len(self._waiting) >= self._limit:
            return False
        self._waiting.append(message)
        self._filled.set()
        self.idle.clear()
        return True

    def put_aside(self, message: Side, most: int) -> bool:
        """Queue a side-channel message; return False if `most` messages of its channel are already waiting."""
        if self._closed or sum(other.channel == message.channel for other in self._aside) >= most:
            return False
        self._aside.append(message)
        self._filled.set()
        self.idle.clear()
        return True

    async def take(self, now: float) -> Message | Side | None:
        """Wait for the next message; None once closed. `now` is when the previous message had been sent."""
        if self._repeat_at == float("inf"):
            self._repeat_at = now + max(LEAST_REPEAT_S, REPEAT_MULTIPLE * (now - self._begun_s))
        if not (self._waiting or self._aside or self._closed):
            self.idle.set()
            self._filled.clear()
            await self._filled.wait()
        if self._waiting:
            return self._waiting.popleft()
        return self._aside.popleft() if self._aside else None

    def begin(self, message: Message | Side, now: float) -> None:
        """Record that the message is being sent."""
        name = name_of(message)
        if name is not None:
            self._latest, self._begun_s, self._repeat_at = name, now, float("inf")

    def allow_repeat(self) -> None:
        """Allow the body to be sent again, because the peer has asked for it."""
        self._latest = None

    def close(self) -> None:
        """Drop the queued messages."""
        self._closed = True
        self._waiting.clear()
        self._aside.clear()
        self._filled.set()
        self.idle.set()

    def _is_needless(self, message: Message, now: float, *, hearing: bool) -> bool:
        name = name_of(message)
        if name is None:
            return message in self._waiting
        if any(name == name_of(other) for other in self._waiting):
            return True
        return name == self._latest and (hearing or now < self._repeat_at)

    def _make_room(self, message: Message) -> None:
        """Drop the oldest message of a kind that already fills its share of the queue."""
        most = MOST_WAITING.get(type(message))
        alike = [place for place, other in enumerate(self._waiting) if type(other) is type(message)]
        if most is not None and len(alike) >= most:
            del self._waiting[alike[0]]


def name_of(message: SessionMessage) -> Name | None:
    """Return a name unique to a message with a body on its edge; it does not keep the body alive."""
    match message:
        case Request(incarnation=incarnation, seq=seq, digest=digest):
            return Request, incarnation, seq, digest
        case Reply(incarnation=incarnation, seq=seq, request_digest=digest):
            return Reply, incarnation, seq, digest
    return None
