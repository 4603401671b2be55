"""Pairing: for ten minutes the inviter hands the new machine the files that it lacks, and answers its request at once.

Both ends use the handshake of sessions. The inviter's key was made for this invite, and the line names it: nobody else
can stand for the inviter, and who does not have the line is dropped before any curve arithmetic. In place of a
federation both ends bind the line's token, so a session proves that both have it. The new machine shows the key with
which it wants to be a member. It fetches the files in one visit, and then brings its request again until there is an
answer: nobody is served while the inviter is asked. The inviter counts the ten minutes by its monotonic clock. The pass
for a relay is an ordinary ticket, by the relay's clock. So no clock of a board matters.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from p2pfl.config.charter import realm_of
from p2pfl.config.members import Invite, Meeting, read_request
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity, fingerprint
from p2pfl.crypto.session import FederationBinding, Responder, Session
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.lan.interfaces import all_interfaces, cover
from p2pfl.features.relay.frames import Challenge, Registration
from p2pfl.features.relay.link import LinkParts, RelayLink
from p2pfl.features.relay.tickets import Ticket, register
from p2pfl.features.relay.transport import RelayDialing, dialing_through
from p2pfl.foreign import UNREADABLE, printable, read_file
from p2pfl.limits import MOST_CHARTER_BYTES, Limits
from p2pfl.net.address import Address, own_address
from p2pfl.net.greeting import Notice, Word, hand_over, hear, receive_charter, say
from p2pfl.net.transport import Arrival, ConnectionStage, Counters, GoneError, Line, Refusals
from p2pfl.net.websocket import OneShotClient, UnreachableError, WebSocketTransport

log = logging.getLogger("p2pfl.net")

SERVED_S, VISIT_S, POLL_S = 600.0, 30.0, 2.0
"""How long the inviter waits, the longest time of one visit, and the pause before the next."""
RELAY_S, PATIENCE_S = 5.0, 5.0
"""The longest wait for a relay before the line is printed, and how long a new machine looks for the inviter."""
MOST_FILES, MOST_ADDRESSES, MOST_REQUEST_BYTES = 32, 3, 2000
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""The names of files that are handed over: they lie beside the federation file."""
BY_HAND = "a copy of the files on a stick, and `p2pfl join LINE --from` it"


class Answer(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The answer to a request: why the machine was not added, or nothing, and newer files."""

    why: Annotated[str, Meta(max_length=500)]
    files: Annotated[dict[str, bytes], Meta(max_length=2)] = {}


def pack_files(files: Sequence[Path], beside: Path) -> bytes:
    """Pack the files for a new machine. Raises UserError: one is not in `beside`, or a key; they are too large."""
    for file in files:
        if file.parent != beside or not PLAIN.fullmatch(file.name) or file.suffix == ".key":
            allowed = f"files in {beside}, with names of letters, digits, '_', '.' and '-'; or {BY_HAND}"
            raise UserError("this file cannot be handed over", file=file, allowed=allowed)
    packed = msgspec.msgpack.encode({file.name: read_file(file, MOST_CHARTER_BYTES) for file in files})
    _require_small(len(packed))
    return packed


def _require_small(size: int) -> None:
    if size > MOST_CHARTER_BYTES:
        text = "federation file, task and the files that they name are too many bytes to hand over"
        raise UserError(text, key="task", value=f"{size:,}", allowed=f"at most {MOST_CHARTER_BYTES:,}; or {BY_HAND}")


def _hashed(invite: Invite, person: bytes) -> bytes:
    content = msgspec.msgpack.encode((invite.token, invite.federation, invite.code, invite.name))
    return hashlib.blake2b(content, digest_size=32, person=person).digest()


def _binding(invite: Invite) -> FederationBinding:
    return FederationBinding(federation_id=_hashed(invite, b"p2pfl-pairing"), sections=())


def _guest(invite: Invite) -> Identity:
    """Return the key, known to whoever has the line, with which the new machine passes a relay."""
    return Identity(_hashed(invite, b"p2pfl-pair-relay"))


@dataclass(kw_only=True, eq=False)
class Inviter:
    """Waits for the new machine: first for its request, then, with an `answer`, until that is fetched.

    `packed` has the files; the `admin` key signs passes for relays.
    """

    federation: FederationConfig
    invite: Invite
    packed: bytes
    admin: Identity
    answer: Answer | None = None
    _own: Identity = field(default_factory=Identity.generate)
    _port: int = 0
    _first: bytes = b""
    """The key of the first machine that asked: no other one counts."""
    _clocks: dict[str, int] = field(default_factory=dict)
    """What each relay's clock said, by its name."""
    _visits: set[asyncio.Task[None]] = field(default_factory=set)

    async def wait(self, within_s: float, show: Callable[[Meeting], object] | None = None) -> str | None:
        """Return the first request, once it has come or been answered; None if that takes too long.

        `show` is called with the place, once this can be reached there.
        """
        loop, dialing, limits = asyncio.get_running_loop(), RelayDialing(), Limits(handshake_s=VISIT_S)
        self._done: asyncio.Future[str] = loop.create_future()
        transport = WebSocketTransport(limits, Refusals(Counters.of(()), log, lambda *_: None), log)
        parts = LinkParts(dial=dialing.dial, answer=self._register, limits=limits, log=log)
        links = {RelayLink(url, parts): url for url in self.federation.relays}
        keeping = [loop.create_task(link.keep(self._meet)) for link in links]
        try:
            await transport.open(Address("0.0.0.0", self._port), self._meet)  # noqa: S104 - for machines elsewhere
            self._port = transport.port
            if show is not None:
                show(await self._meeting(links))
            async with asyncio.timeout(within_s):
                return await self._done
        except TimeoutError:
            return None
        finally:
            for task in (*keeping, *self._visits):
                task.cancel()
            await asyncio.gather(*keeping, *self._visits, return_exceptions=True)
            await transport.close()
            await dialing.close()

    async def _meeting(self, links: Mapping[RelayLink, str]) -> Meeting:
        """Return the addresses of this machine, and the first relay that lets it in."""
        addresses, end = tuple(f"{host}:{self._port}" for host in _own_hosts()), monotonic() + RELAY_S
        while links and not any(link.is_registered for link in links) and monotonic() < end:  # noqa: ASYNC110 - once, for seconds
            await asyncio.sleep(0.05)
        for link in filter(lambda link: link.is_registered, links):
            ticket = self._ticket(_guest(self.invite), self._clocks[link.name])
            return Meeting(self._own.public, addresses, links[link], ticket)
        return Meeting(self._own.public, addresses)

    def _ticket(self, identity: Identity, clock_s: int) -> bytes:
        realm, until = realm_of(self.federation), clock_s + int(SERVED_S)
        return Ticket.sign(self.admin, realm=realm, key=identity.public, until=until).packed()

    def _register(self, relay: str, challenge: Challenge) -> Registration:
        self._clocks[relay] = challenge.clock_s
        return register(self._own, challenge, relay=relay, ticket=self._ticket(self._own, challenge.clock_s))

    def _meet(self, line: Line, arrival: Arrival) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(arrival.work(lambda: self._serve(line, arrival)))
        self._visits.add(task)
        task.add_done_callback(self._visits.discard)
        return task

    async def _serve(self, line: Line, arrival: Arrival) -> None:
        try:
            async with asyncio.timeout_at(arrival.ends_at):
                responder = Responder(self._own, lambda key: True, _binding(self.invite))  # noqa: ARG005 - the token counts
                responder.check_opening(first := await line.receive())
                arrival.advance(ConnectionStage.ADDRESSED)
                await line.send(responder.first(first))
                session = Session(responder.third(await line.receive()))
                arrival.advance(ConnectionStage.PROVEN)
                await self._respond(line, session, await hear(line, session))
        except (TimeoutError, GoneError, PeerFault, UserError) as error:
            log.debug("%s: %s", arrival.address, error)
        finally:
            await line.close(1.0)

    async def _respond(self, line: Line, session: Session, notice: Notice) -> None:
        key, answer, text = session.peer_public, self.answer, ""
        if notice.word is Word.CHARTER and notice.number <= MOST_REQUEST_BYTES:
            text = self._checked(await receive_charter(line, session, notice), key)
            self._first = self._first or key
            if key != self._first:
                answer = Answer(f"a machine with the key {fingerprint(self._first)} has used this line")
            elif answer is None:
                await say(line, session, Word.HELD, 0)
        elif notice.word is not Word.ASK:
            raise PeerFault("neither a wish for files nor a request")
        if not text or answer is not None:
            await hand_over(line, session, msgspec.msgpack.encode(answer) if text and answer else self.packed)
            await hear(line, session)
        if text and key == self._first and not self._done.done():
            self._done.set_result(text)

    def _checked(self, raw: bytes, key: bytes) -> str:
        request = read_request(text := raw.decode("ascii", errors="replace"))
        is_ours = compare_digest(request.token, self.invite.token) and request.name == self.invite.name
        if request.key != key or not is_ours:
            raise PeerFault("a request of another machine, or for another invite")
        return text


def _own_hosts() -> list[str]:
    """Return the IPv4 addresses at which machines on this network reach this one; loopback if there are no others."""
    if find_spec("ifaddr") is None:
        return [own_address()]
    fit = [nic for nic in cover(all_interfaces(), "0.0.0.0") if nic.skipped is None]  # noqa: S104 - as it listens
    hosts = [str(address.ip) for nic in fit for address in nic.announced if address.version == 4]
    return hosts[:MOST_ADDRESSES] or ["127.0.0.1"]


async def fetch(invite: Invite, meeting: Meeting, identity: Identity) -> Mapping[str, bytes]:
    """Fetch the files, by name. Raises UserError: the inviter is not there, or they may not be written."""
    try:
        packed = await _visit(invite, meeting, identity, b"", PATIENCE_S)
    except UnreachableError as error:
        text = f"the inviter cannot be reached, or takes this line no more: {error}"
        allowed = f"a new line from `p2pfl invite`, which waits ten minutes for a machine on its network; or {BY_HAND}"
        raise UserError(text, key="LINE", value=invite.name, allowed=allowed) from None
    try:
        files = msgspec.msgpack.decode(packed, type=Annotated[dict[str, bytes], Meta(max_length=MOST_FILES)])
    except UNREADABLE:
        files = {"": b""}
    for name in files:
        if not PLAIN.fullmatch(name) or name == invite.name:
            text, allowed = "the inviter sends what is no list of files", "a line from somebody whom you trust"
            raise UserError(text, key="LINE", value=printable(name[:64]), allowed=allowed)
    return files


async def ask_to_join(invite: Invite, meeting: Meeting, identity: Identity, request: str) -> Answer:
    """Bring the request until there is an answer. Raises UnreachableError: there is none."""
    raw = await _visit(invite, meeting, identity, request.encode("ascii"), SERVED_S)
    try:
        return msgspec.msgpack.decode(raw, type=Answer)
    except UNREADABLE:
        raise UnreachableError("an answer that cannot be read") from None


async def _visit(invite: Invite, meeting: Meeting, identity: Identity, request: bytes, patience_s: float) -> bytes:
    """Visit the inviter at all its places until it answers the request; without one it hands over the files."""

    async def act(line: Line, session: Session) -> bytes:
        await (hand_over(line, session, request) if request else say(line, session, Word.ASK, 0))
        notice = await hear(line, session)
        if notice.word is Word.HELD:
            return b""
        _require_small(notice.number)
        raw = await receive_charter(line, session, notice)
        await say(line, session, Word.HELD, 0)
        return raw

    def answer(relay: str, challenge: Challenge) -> Registration:
        return register(_guest(invite), challenge, relay=relay, ticket=meeting.ticket)

    binding, limits, end = _binding(invite), Limits(connect_s=3.0, handshake_s=VISIT_S), monotonic() + patience_s
    at = frozenset({meeting.relay})
    async with dialing_through(answer) as through:
        client = OneShotClient(identity=identity, binding=binding, limits=limits, through=through, relays=at)
        while True:
            reasons = []
            for place in (*meeting.addresses, *filter(None, at)):
                try:
                    if raw := await client.visit(place, meeting.key, act):
                        return raw
                except UnreachableError as error:
                    reasons.append(f"{place.partition('#')[0]}: {error}")
            if monotonic() > end:
                raise UnreachableError("; ".join(reasons) or "there is no answer yet")
            await asyncio.sleep(POLL_S)
