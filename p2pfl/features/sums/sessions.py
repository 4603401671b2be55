"""A node's sums beside its state folder and over sessions: those of a node that learns, or sessions for sums alone.

What a member has signed is kept, so that it remembers the sets of members after a restart. The file grows by one record
for each sum, flushed to disk before the signature leaves the node. A record is the digest of the data (32 bytes), the
number of members (4), a name of each by its key (16), and a checksum (8): rows of a federation may change places, keys
do not. A crash can leave the last record cut off; it was never acted on, and is removed at the next start.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from p2pfl.config.charter import HASH_BYTES, federation_id
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import StorageError
from p2pfl.features.lan.discovery import discovery_of
from p2pfl.features.relay.transport import through_relays
from p2pfl.features.sums.messages import SumSettings
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.setup import FIRST_S
from p2pfl.features.sums.talk import CHANNEL, HELD_UP, SumTalk
from p2pfl.net.extensions import HandledChannel
from p2pfl.net.links import Links
from p2pfl.net.transport import DIFFERS, MakeTransport
from p2pfl.net.websocket import WebSocketTransport, transport_of
from p2pfl.node.current_federation import links_of_phase
from p2pfl.node.feature import NodeView
from p2pfl.storage.disk import create_file, replace_file, storage_errors, truncate_file, write_all

log = logging.getLogger("p2pfl")

FILE_NAME = "sums"
DIGEST_BYTES, COUNT_BYTES, NAME_BYTES, CHECK_BYTES = 32, 4, 16, 8

LIFE_NAME = "sums.life"
MOST_DIGITS = 15
"""A longer number was not written here."""

MOST_BODY_BYTES = 64 * 1024
"""There is no gossip on sessions for sums alone."""
SHARE_S = 0.2
"""Before anything was measured, nodes that may share a machine wait this much longer for each member."""

KeptRecord = tuple[bytes, frozenset[int]]


class KeptSums:
    """`folder` is the node's state folder; None: nothing outlives this object. `keys` are those of all members, by
    index; who is no member any more has an index beyond them. Raises StorageError: the file is damaged, or the disk
    refuses.
    """

    def __init__(self, folder: Path | None = None, keys: Sequence[bytes] = ()) -> None:
        self._path = None if folder is None else folder / FILE_NAME
        self._names = [hashlib.blake2b(key, digest_size=NAME_BYTES, person=b"p2pfl-sums-name").digest() for key in keys]
        self._index_of = {name: index for index, name in enumerate(self._names)}
        self.past: list[KeptRecord] = []
        """All that was kept, in order."""
        self._size = 0
        if self._path is not None:
            self._read(self._path)
        self._known = set(self.past)

    def add(self, data: bytes, members: frozenset[int]) -> None:
        """Keep a record; it is on the disk when this returns. Raises StorageError."""
        if (data, members) in self._known:
            return
        if self._path is not None:
            self._size = append_record(self._path, self._size, self._packed(data, members))
        self.past.append((data, members))
        self._known.add((data, members))

    def _read(self, path: Path) -> None:
        with storage_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            create_file(path, b"")
            return
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
        while self._size < len(raw):
            end = _end(raw, self._size)
            found = None if end is None else self._unpacked(raw[self._size : end])
            if found is None:
                if end is not None and end < len(raw):
                    text = "is damaged: without it this node might sign two sums whose difference is one summand"
                    raise StorageError(f"{path} {text}")
                truncate_file(path, self._size)
                return
            self.past.append(found)
            self._size = end or self._size

    def _packed(self, data: bytes, members: frozenset[int]) -> bytes:
        names = b"".join(self._names[member] for member in sorted(members))
        record = data + len(members).to_bytes(COUNT_BYTES, "little") + names
        return record + _check(record)

    def _unpacked(self, record: bytes) -> KeptRecord | None:
        content, check = record[:-CHECK_BYTES], record[-CHECK_BYTES:]
        if _check(content) != check:
            return None
        names = range(DIGEST_BYTES + COUNT_BYTES, len(content), NAME_BYTES)
        return content[:DIGEST_BYTES], frozenset(self._index(content[at : at + NAME_BYTES]) for at in names)

    def _index(self, name: bytes) -> int:
        if name not in self._index_of:
            self._names.append(name)
            self._index_of[name] = len(self._names) - 1
        return self._index_of[name]


def append_record(path: Path, size_bytes: int, record: bytes) -> int:
    """Add a record to a file of this size; it is on the disk when this returns the new size. Raises StorageError."""
    try:
        with storage_errors(path):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            try:
                write_all(fd, record)
                os.fsync(fd)
            finally:
                os.close(fd)
    except StorageError:
        truncate_file(path, size_bytes)
        raise
    return size_bytes + len(record)


def next_life(folder: Path) -> int:
    """Return the number of this start of a member, greater than all before it, and keep it. From a file that is lost or
    damaged it begins anew, and learns the later number from the others. Raises StorageError.
    """
    path = folder / LIFE_NAME
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        text = ""
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    life = 1 + (int(text) if text.isdecimal() and len(text) < MOST_DIGITS else 0)
    with storage_errors(path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, [str(life).encode()])
    return life


def _end(raw: bytes, start: int) -> int | None:
    """Where the record that begins there ends; None: it is cut off."""
    head = start + DIGEST_BYTES + COUNT_BYTES
    end = head + NAME_BYTES * int.from_bytes(raw[head - COUNT_BYTES : head], "little") + CHECK_BYTES
    return end if head <= len(raw) and end <= len(raw) else None


def _check(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECK_BYTES, person=b"p2pfl-sums-kept").digest()


def settings_of(federation: FederationConfig, index: int, *, life: int = 1, **numbers: int) -> SumSettings:
    """Return the settings of a member's sums; by default they are of its first life."""
    keys = tuple(member.key for member in federation.members)
    return SumSettings(federation=federation_id(federation), members=keys, index=index, life=life, **numbers)


@asynccontextmanager
async def open_sums(
    federation: FederationConfig,
    settings: SumSettings,
    identity: Identity,
    *,
    listen: str,
    folder: Path | None = None,
    first_wait_s: float = FIRST_S,
    transport: MakeTransport | None = None,
    finder: NodeConfig | None = None,
    on_other: Callable[[int], object] = lambda _: None,
) -> AsyncIterator[SumTalk]:
    """This node's part in sums, while its sessions are open. With a folder, what it signs is kept there.

    `first_wait_s` is how long to wait before anything was measured. With `discovery` of `finder`, the node finds the
    others on its LAN; its proxy and certificate are used, and with its `relays` they meet there. `on_other` is called
    with a neighbor that does something else than sums with these settings.

    Raises UserError: an address is not valid or cannot be bound; StorageError: the folder cannot be used.
    """
    name_of = [member.name for member in federation.members]

    def alarm(kind: str, peer: int | None, text: str) -> None:
        if kind == DIFFERS and peer is not None:
            on_other(peer)
        about = f" ({text})" if peer is None else f": {name_of[peer]}: {text}" if kind == HELD_UP else f": {text}"
        log.warning("%s: %s%s", name_of[settings.index], kind, about)

    usual = transport or (WebSocketTransport if finder is None else transport_of(finder))
    links = links_of_phase(
        federation,
        settings.index,
        identity,
        hashlib.blake2b(b"summing" + settings.domain(), digest_size=HASH_BYTES, person=b"p2pfl-sums").digest(),
        listen=listen,
        max_body_bytes=MOST_BODY_BYTES,
        on_alarm=alarm,
        transport=usual if finder is None else through_relays(federation, finder, identity, usual),
    )
    talk = sums_over(links, settings, identity, folder=folder, first_wait_s=first_wait_s, alarm=alarm)
    try:
        async with links, AsyncExitStack() as doors:
            if finder is not None and finder.discovery:
                member = federation.members[settings.index]
                await doors.enter_async_context(discovery_of(member, finder, lambda: federation, links))
            yield talk
    finally:
        talk.close()


def sums_over(
    links: Links,
    settings: SumSettings,
    identity: Identity,
    *,
    folder: Path | None,
    first_wait_s: float = FIRST_S,
    alarm: Callable[[str, int | None, str], object] = lambda *_: None,
) -> SumTalk:
    """This node's part in sums over links that are not open yet. Raises StorageError: the folder cannot be used."""
    kept = KeptSums(folder, settings.members)
    sums = Sums(settings, identity, draw=os.urandom, past=kept.past, first_wait_s=first_wait_s)
    talk = SumTalk(sums, links.sides.say, keep=kept.add, alarm=alarm)
    links.sides.add(HandledChannel(channel=CHANNEL, handler=talk))
    return talk


class NodeSums:
    """The sums of a node that learns, over its own sessions: `talk` is the handler of the channel `sums/1`.

    `was_signed` is set when a list of members with the vector of the present sum was certified here.
    """

    def __init__(self, node: NodeView, **numbers: int) -> None:
        """`numbers` as of `SumSettings`. Raises StorageError: what was kept there is damaged, or the disk refuses."""
        setup = node.setup()
        folder, self.members = setup.node.state_dir, len(setup.federation.members)
        self.was_signed, self.life = False, next_life(folder)
        settings = settings_of(setup.federation, setup.member.index, life=self.life, **numbers)
        self._kept = KeptSums(folder, settings.members)
        wait_s = FIRST_S + SHARE_S * self.members
        sums = Sums(settings, setup.identity, draw=os.urandom, past=self._kept.past, first_wait_s=wait_s)
        self.talk = SumTalk(sums, node.say, keep=self._keep, alarm=node.alarm)

    def _keep(self, data: bytes, members: frozenset[int]) -> None:
        self._kept.add(data, members)
        self.was_signed = True
