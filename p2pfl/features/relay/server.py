"""The relay itself: it registers the members of the federations that it lists, and moves frames between connections and
switchboard.

Of a federation file it reads three keys (name, seed, admin) and nothing else. Until a member has registered, its
connection is a stranger's, and costs at most what a stranger may cost a node (`net.acceptor`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from p2pfl.config.charter import realm_named
from p2pfl.config.load import HEAD_DEFAULTS, federation_file
from p2pfl.config.members import FILE_NAME, members_in
from p2pfl.config.model import FEDERATION
from p2pfl.config.tables import Mistakes, read_document, read_table
from p2pfl.console import seconds_now
from p2pfl.console.output import log_to_stderr
from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.relay.frames import (
    VERSION,
    WINDOW_BYTES,
    Challenge,
    FrameKind,
    Refusal,
    Registration,
    pack_number,
    pack_struct,
    struct_in,
    unpack,
)
from p2pfl.features.relay.switchboard import QUANTUM_BYTES, TURN_BYTES, Seat, Switchboard
from p2pfl.features.relay.tickets import (
    CredentialsHead,
    Ticket,
    TicketError,
    holds_key,
    holds_token,
    read_token,
    token_id,
)
from p2pfl.limits import COMES_BURST, COMES_PER_S, MOST_COMERS, MOST_REMOVED, RELAY_DRAIN_S, RELAY_SILENCE_S, Limits
from p2pfl.net.address import Address, parse_address
from p2pfl.net.dial_paths import OwnCertificate
from p2pfl.net.limits import latest
from p2pfl.net.transport import Arrival, ConnectionStage, Counters, GoneError, Line, Refusals
from p2pfl.net.websocket import WebSocketTransport

log = logging.getLogger("p2pfl.relay")

FOREVER = 2**62
MOST_KNOWN = 16 * MOST_REMOVED
"""The most removed members of one federation that a relay remembers; the latest that it has learned stay."""
CLOSE_S = 1.0
SWEEP_S = 10.0
STOPPED = 130
EXPECTED = 64
"""The members that may come at once without being held up as strangers."""


class RefusedError(Exception):
    """The relay does not register a member; `reason` is told to it."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.name)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFederation:
    """One federation that a relay serves, by its admin keys or by a token."""

    name: str
    """The name in logs."""
    realm: bytes = b""
    admin: tuple[bytes, ...] = ()
    token: bytes = field(default=b"", repr=False)
    removed: Mapping[bytes, None] = field(default_factory=dict)
    """The keys of removed members in the members.toml beside its file."""


def read_listed(federations: Sequence[Path], tokens: Sequence[Path]) -> list[ListedFederation]:
    """Read what `p2pfl relay` is given. Raises UserError: a file is wrong, or two are for the same federation."""
    listed = [_from_file(federation_file(path)) for path in federations]
    listed += [ListedFederation(name=path.stem, token=read_token(path)) for path in tokens]
    for index, entry in enumerate(listed):
        if any(entry.name == other.name or (entry.realm and entry.realm == other.realm) for other in listed[:index]):
            text, allowed = "two of these are the same federation", "each once; token files with different names"
            raise UserError(text, key="--federation, --token", value=entry.name, allowed=allowed)
    return listed


def _from_file(path: Path) -> ListedFederation:
    document, mistakes = read_document(path), Mistakes(path)
    head = HEAD_DEFAULTS | read_table(document.get("federation", {}), "federation.", FEDERATION, mistakes)
    if not head["name"]:
        mistakes.add("is missing", "federation.name", None, FEDERATION["name"].allowed)
    if not head.get("admin"):
        allowed = "admin = [...], whose keys sign tickets; or a token for the relay: `p2pfl relay --make-token FILE`"
        mistakes.add("names no admin key, so nobody can sign tickets", "federation.admin", None, allowed)
    for mistake in mistakes.errors:
        raise mistake
    return ListedFederation(
        name=str(head["name"]),
        realm=realm_named(str(head["name"]), head["seed"]),
        admin=head["admin"],
        removed=_removed(path.with_name(FILE_NAME)),
    )


def _removed(path: Path) -> Mapping[bytes, None]:
    mistakes = Mistakes(path)
    members = members_in(read_document(path).get("member"), mistakes) if path.exists() else ()
    for mistake in mistakes.errors:
        raise mistake
    return {member.key: None for member in members if member.retired}


class Admissions:
    """The list of federations, and who belongs to them.

    A relay cannot know whether a member has dialed it or another relay that passes on what the member signs: so members
    that dialed different names do not meet.
    """

    def __init__(self, listed: Sequence[ListedFederation]) -> None:
        self._by_realm = {entry.realm: entry for entry in listed if entry.admin}
        self._by_token = {token_id(entry.token): entry for entry in listed if entry.token}
        self._removed = {entry.name: entry.removed for entry in listed}
        """The keys of removed members of each federation; those that members have shown come last."""

    def admit(self, registration: Registration, nonce: bytes, now_s: float) -> tuple[ListedFederation, int]:
        """Return the federation that the member belongs to, and when its right expires, in seconds since 1970.

        Raises RefusedError. Cheap checks come first.
        """
        if registration.version != VERSION:
            raise RefusedError(Refusal.VERSION)
        if registration.token_id:
            federation, until = self._by_token.get(registration.token_id), FOREVER
            if federation is None:
                raise RefusedError(Refusal.UNLISTED)
            is_genuine = holds_token(registration, nonce, federation.token)
        else:
            federation, ticket = self._by_ticket(registration, now_s)
            is_genuine, until = ticket.is_genuine(), ticket.until
        if not is_genuine or not holds_key(registration, nonce):
            raise RefusedError(Refusal.FORGED)
        return federation, until

    def _by_ticket(self, registration: Registration, now_s: float) -> tuple[ListedFederation, Ticket]:
        if not registration.ticket:
            raise RefusedError(Refusal.NO_TICKET)
        try:
            ticket = Ticket.unpack(registration.ticket)
        except TicketError:
            raise RefusedError(Refusal.FORGED) from None
        federation = self._by_realm.get(ticket.realm)
        if federation is None or ticket.signer not in federation.admin:
            raise RefusedError(Refusal.UNLISTED)
        if ticket.key != registration.key:
            raise RefusedError(Refusal.FORGED)
        if self.is_removed(federation, ticket.key):
            raise RefusedError(Refusal.REMOVED)
        if now_s > ticket.until:
            raise RefusedError(Refusal.EXPIRED)
        return federation, ticket

    def learn(self, federation: ListedFederation, raw: bytes) -> frozenset[bytes]:
        """Take the head of credentials from a member; return the keys of removed members that are news.

        A removal is for good, so it does not matter which of two heads is newer: the later one may be of another admin
        who did not know of it. A signer that the relay's file does not list is no fault: that file may be older than
        the nodes'. Raises PeerFault: it is forged.
        """
        known = self._removed[federation.name]
        try:
            head = CredentialsHead.unpack(raw)
            news = dict.fromkeys(key for key in head.removed if key not in known)
            if head.signer not in federation.admin or not news:
                return frozenset()
            head.require(realm=federation.realm, admin=federation.admin)
        except TicketError as error:
            raise PeerFault(f"removed members that no admin names: {error}") from None
        self._removed[federation.name] = dict.fromkeys([*known, *news][-MOST_KNOWN:])
        return frozenset(news)

    def is_removed(self, federation: ListedFederation, key: bytes) -> bool:
        """Return True if an admin has removed this member, as far as the relay's files and members have shown."""
        return key in self._removed[federation.name]


@dataclass(eq=False, slots=True)
class _Guest:
    """The connection of one registered member."""

    line: Line
    federation: ListedFederation
    heard_at: float
    """The time of the last frame, on the loop's clock."""
    until: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    why: Refusal | None = None
    writer: asyncio.Task[None] | None = None


class RelayServer:
    """Serves the members that `admissions` admits.

    `wall_clock` returns seconds since 1970: tickets depend on it, nothing else.
    """

    def __init__(
        self,
        admissions: Admissions,
        switchboard: Switchboard,
        refusals: Refusals,
        *,
        wall_clock: Callable[[], float] = seconds_now,
    ) -> None:
        self.switchboard = switchboard
        self._admissions, self._refusals, self._clock = admissions, refusals, wall_clock
        self._guests: dict[Seat, _Guest] = {}
        self._comes: dict[bytes, TokenBucket] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """A member that holds the lock of its federation is read next: members of one federation take turns."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._queued, self._room = asyncio.Event(), asyncio.Event()

    def meet(self, line: Line, arrival: Arrival) -> asyncio.Task[None] | None:
        """Serve a connection; a transport's `open` is given this."""
        return self._spawn(arrival.work(lambda: self._serve(line, arrival)))

    async def run(self) -> None:
        """Deliver frames, and end what is silent or has expired, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._deliver())
                tasks.create_task(self._sweep())
        finally:
            for task in self._tasks:
                task.cancel()

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, line: Line, arrival: Arrival) -> None:
        try:
            async with asyncio.timeout_at(arrival.ends_at):
                seat = await self._register(line, arrival)
            if seat is not None:
                arrival.admit()
                await self._host(seat)
        except TimeoutError:
            self._refusals.mention(None, "%s did not register in time", arrival.address)
        except GoneError as gone:
            self._refusals.mention(None, "%s left: %s", arrival.address, gone)
        except PeerFault as fault:
            self._refusals.mention(None, "%s: %s", arrival.address, fault, level=logging.INFO)
        finally:
            await line.close(CLOSE_S)

    async def _register(self, line: Line, arrival: Arrival) -> Seat | None:
        """Return the member's seat; None if it is refused, and told why."""
        now_s, nonce = self._clock(), os.urandom(32)
        challenge = Challenge(version=VERSION, nonce=nonce, clock_s=int(now_s), takes_removals=True)
        await line.send(pack_struct(FrameKind.CHALLENGE, challenge))
        registration = struct_in(unpack(await line.receive()), FrameKind.REGISTER, Registration)
        arrival.advance(ConnectionStage.ADDRESSED)
        try:
            seat = self._seat(registration, nonce, now_s, line)
        except RefusedError as refused:
            self._refusals.mention(None, "refused %s: %s", arrival.address, refused.reason.name, level=logging.INFO)
            await line.send(pack_number(FrameKind.REFUSED, 0, refused.reason))
            return None
        try:
            arrival.advance(ConnectionStage.PROVEN)
            await line.send(pack_number(FrameKind.WELCOME, 0, WINDOW_BYTES))
        except BaseException:
            self._leave(seat)
            raise
        return seat

    def _seat(self, registration: Registration, nonce: bytes, now_s: float, line: Line) -> Seat:
        federation, until = self._admissions.admit(registration, nonce, now_s)
        now, dialed, key = asyncio.get_running_loop().time(), registration.relay, registration.key
        bucket = latest(
            self._comes, key, lambda: TokenBucket(COMES_PER_S, tokens=COMES_BURST, burst=COMES_BURST), MOST_COMERS
        )
        if bucket.take(now) > 0.0:
            raise RefusedError(Refusal.TOO_OFTEN)
        guest = _Guest(line, federation, now, until)

        def end(why: Refusal | None) -> None:
            guest.why = guest.why or why
            guest.ended.set()

        tenant = self.switchboard.tenant(federation.name)
        seat = self.switchboard.seat(tenant, key, self._wake, end, dialed=dialed)
        if seat is None:
            raise RefusedError(Refusal.FULL)
        self._guests[seat] = guest
        return seat

    async def _host(self, seat: Seat) -> None:
        """Read a member's frames until its connection ends."""
        guest = self._guests[seat]
        reader = self._spawn(self._read(seat, guest))
        ended = asyncio.get_running_loop().create_task(guest.ended.wait())
        try:
            await asyncio.wait((reader, ended), return_when=asyncio.FIRST_COMPLETED)
            if guest.why is not None:
                with suppress(GoneError, TimeoutError):
                    async with asyncio.timeout(CLOSE_S):
                        await guest.line.send(pack_number(FrameKind.REFUSED, 0, guest.why))
        finally:
            self._leave(seat)
            for task in (reader, ended, guest.writer):
                if task is not None:
                    task.cancel()
        if reader.done() and not reader.cancelled():
            reader.result()

    async def _read(self, seat: Seat, guest: _Guest) -> None:
        loop, taken = asyncio.get_running_loop(), 0
        while True:
            frame = unpack(await guest.line.receive())
            guest.heard_at = loop.time()
            if frame.kind is FrameKind.REMOVED:
                self._remove(seat, self._admissions.learn(guest.federation, frame.payload))
            else:
                self.switchboard.receive(seat, frame, guest.heard_at)
            if self.switchboard.is_waiting:
                self._queued.set()
            while self.switchboard.is_full(seat):
                self._room.clear()
                await self._room.wait()
            taken += len(frame.payload) + TURN_BYTES
            if taken >= QUANTUM_BYTES:
                taken = 0
                async with self._turns[seat.tenant.name]:
                    await asyncio.sleep(0)

    def _remove(self, teller: Seat, keys: frozenset[bytes]) -> None:
        """End the seats of removed members."""
        for seat in [seat for seat in teller.tenant.seats.values() if seat.key in keys]:
            self.switchboard.leave(seat, Refusal.REMOVED)

    def _wake(self, seat: Seat) -> None:
        guest = self._guests.get(seat)
        if guest is not None and guest.writer is None:
            guest.writer = self._spawn(self._write(seat, guest))

    async def _write(self, seat: Seat, guest: _Guest) -> None:
        """Send what waits for a member; there is no such task while nothing does."""
        sent = 0
        try:
            while (frame := seat.take()) is not None:
                self._room.set()
                async with asyncio.timeout(RELAY_DRAIN_S):
                    await guest.line.send(frame)
                sent += len(frame) + TURN_BYTES
                if sent >= QUANTUM_BYTES:
                    sent = 0
                    await asyncio.sleep(0)
        except (GoneError, TimeoutError):
            guest.ended.set()
        finally:
            guest.writer = None

    def _leave(self, seat: Seat) -> None:
        if self._guests.pop(seat, None) is not None:
            self.switchboard.leave(seat)
            self._queued.set()
            self._room.set()

    async def _deliver(self) -> None:
        """Move frames to their receivers in fair turns."""
        served = 0
        while True:
            await self._queued.wait()
            while size := self.switchboard.deliver():
                served += size + TURN_BYTES
                self._room.set()
                if served >= QUANTUM_BYTES:
                    served = 0
                    await asyncio.sleep(0)
            self._queued.clear()

    async def _sweep(self) -> None:
        while True:
            self.end_expired()
            self.switchboard.relieve()
            await asyncio.sleep(SWEEP_S)

    def end_expired(self) -> None:
        """End members that are silent or whose tickets have expired."""
        now, now_s = asyncio.get_running_loop().time(), self._clock()
        for guest in self._guests.values():
            if now - guest.heard_at > RELAY_SILENCE_S:
                guest.ended.set()
            elif now_s > guest.until:
                guest.why = Refusal.EXPIRED
                guest.ended.set()


# -- as a process -----------------------------------------------------------------------------------------------------


def serve(listen: str, listed: Sequence[ListedFederation], *, cert: Path | None, key: Path | None) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code. Raises UserError: a file or an address is wrong."""
    log_to_stderr("%(asctime)s %(levelname)s %(name)s: %(message)s", logging.INFO)
    refusals = Refusals(Counters.of(()), log, lambda kind, peer, text: None)  # noqa: ARG005 - it has no members
    server = RelayServer(Admissions(listed), Switchboard(), refusals)
    transport = WebSocketTransport(Limits(), refusals, log, certificate=own_certificate(cert, key))
    known = ", ".join(entry.name for entry in listed)
    return asyncio.run(_serve(server, transport, refusals, parse_address(listen, "--listen"), known))


async def _serve(
    server: RelayServer, transport: WebSocketTransport, refusals: Refusals, address: Address, known: str
) -> int:
    transport.expect(EXPECTED)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        await transport.open(address, server.meet)
        log.info("listening on port %d for %s", transport.port, known)
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(server.run()), tasks.create_task(refusals.begin_hours())]
            await stopped.wait()
            for task in work:
                task.cancel()
    finally:
        await transport.close()
    return STOPPED


def own_certificate(cert: Path | None, key: Path | None) -> OwnCertificate | None:
    """Return the certificate with which the relay listens; None if it has none. Raises UserError: it cannot be used."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UserError("one is of no use without the other", key="--cert, --key", allowed="both or none")
    certificate = OwnCertificate(cert, key)
    log.info("its certificate has sha256=%s", certificate.pin)
    return certificate
