"""A node written from docs/reference/protocol.md alone: it imports nothing of p2pfl.

It has one neighbor, version 10, compressor `none`, method `plain` and rule `mean`, and keeps nothing on disk. It either
dials or listens, so that a newer line always replaces the older. Whatever cannot be read or opened ends the session;
beyond that it believes its neighbor. It ends before a session has to get new keys or to be renewed.
"""

import asyncio
import contextlib
import hashlib
import secrets
import struct
import time
import zlib
from enum import IntEnum
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
import msgpack
import numpy as np
import xxhash
from aiohttp import web
from aiohttp.test_utils import TestServer
from nacl import bindings as sodium
from nacl.exceptions import CryptoError

V, VERSION, FIRST_VERSION = b"p2pfl/1", 10, 9
Type = IntEnum("Type", "HELLO REQUEST REPLY READY RESYNC ASK BUSY DONE LIVES RESIGN OFFER SIDE PART_HELD RECEIPT")
PREFIX, NOTICE = struct.Struct("<2sBBHIQ"), struct.Struct("<B16sQ")
GREETING, OPEN = 1, 2  # notices
FINAL = 3  # tag of the last chunk
REST = 2  # flag of a Request with its digest in place of its body
OWN_CHUNK, MOST_MESSAGE = 2**14, 262_201
NOTICE_S, HEARTBEAT_S = 10, 4
BROKEN = (CryptoError, TypeError, ValueError, TimeoutError, OSError, struct.error, aiohttp.ClientError)


def framed(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def H(use: str, *parts: bytes, key: bytes = b"", size: int = 32) -> bytes:  # noqa: N802 - the page's name
    return hashlib.blake2b(framed(*parts), digest_size=size, key=key, person=use.encode()).digest()


class Members(NamedTuple):
    id: bytes  # of the federation
    settings: tuple[tuple[str, bytes], ...]  # names and values
    keys: tuple[bytes, ...]  # of all members, by index

    def blinded(self, transcript: bytes) -> bytes:
        rows = (H("section", transcript, name.encode(), value) for name, value in self.settings)
        return H("federation", transcript, self.id) + b"".join(rows)


class Handshake:
    """The dialer, which names `remote`, sends `m1` and `third`; the other end `second`, and hears `last`."""

    def __init__(self, members: Members, seed: bytes, remote: bytes = b"", secret: bytes = b"") -> None:
        self.members, self.secret = members, secret or secrets.token_bytes(32)
        self.public, self.signing = sodium.crypto_sign_seed_keypair(seed)
        self.point = sodium.crypto_scalarmult_base(self.secret)
        self.remote, self.m1 = remote, self.tagged(self.point, remote)

    def second(self, m1: bytes) -> bytes:
        if m1 != self.tagged(m1[:32], self.public):
            raise ValueError("length or tag")
        self.share(m1, self.point, m1[:32])
        return self.point + self.introduce("responder", "th2")

    def third(self, m2: bytes) -> bytes:
        """m3, to be sent even if the other end has other settings."""
        self.share(self.m1, m2[:32], m2[:32])
        if self.meet("responder", "th2", m2[32:]) != self.remote:
            raise ValueError("another identity")
        m3 = self.introduce("initiator", "th3")
        self.send_key, self.receive_key = self.key("stream i2r", self.th), self.key("stream r2i", self.th)
        return m3

    def last(self, m3: bytes) -> None:
        self.remote = self.meet("initiator", "th3", m3)
        self.send_key, self.receive_key = self.key("stream r2i", self.th), self.key("stream i2r", self.th)

    def tagged(self, point: bytes, remote: bytes) -> bytes:
        return point + H("mac1", point, key=H("mac1 key", V, remote), size=16)

    def share(self, m1: bytes, e_r: bytes, other: bytes) -> None:
        self.th = self.th1 = H("th1", H("th0", V), m1, e_r)
        prk = H("prk", self.th1, key=sodium.crypto_scalarmult(self.secret, other))  # raises for zero
        self.key = partial(H, key=prk)

    def introduce(self, role: str, after: str) -> bytes:
        identity, key = self.public + self.members.blinded(self.th), self.key(f"seal {role}", self.th1)
        statement, mac = self.statement(role, identity)
        plain = identity + sodium.crypto_sign(statement, self.signing)[:64] + mac
        sealed = sodium.crypto_aead_chacha20poly1305_ietf_encrypt(plain, self.th, bytes(12), key)
        self.th = H(after, self.th, sealed)
        return sealed

    def meet(self, role: str, after: str, sealed: bytes) -> bytes:
        """The other end's identity; `agrees` says whether it has the same federation and settings."""
        key = self.key(f"seal {role}", self.th1)
        plain = sodium.crypto_aead_chacha20poly1305_ietf_decrypt(sealed, self.th, bytes(12), key)
        identity, signature, mac = plain[:-96], plain[-96:-32], plain[-32:]
        statement, right = self.statement(role, identity)
        if len(identity) not in range(64, 64 + 64 * 32, 32) or mac != right:
            raise ValueError("length or MAC")
        sodium.crypto_sign_open(signature + statement, identity[:32])
        self.agrees = identity[32:] == self.members.blinded(self.th)
        self.th = H(after, self.th, sealed)
        return identity[:32]

    def statement(self, role: str, identity: bytes) -> tuple[bytes, bytes]:
        """What is signed, and its MAC."""
        statement = framed(V, role.encode(), self.th, identity[:32], identity[32:])
        return statement, H("introduction", statement, key=self.key(f"mac {role}", self.th1))


class Frame(NamedTuple):
    kind: int
    fields: list[Any]
    body: bytes = b""
    flags: int = 0
    version: int = VERSION

    def head(self) -> bytes:
        header = msgpack.packb(self.fields)
        return PREFIX.pack(b"p2", self.version, self.kind, self.flags, len(header), len(self.body)) + header

    def digest(self) -> bytes:
        echo, audit = -1 if self.fields[3] is None else self.fields[3], self.fields[8]
        head = struct.pack("<QQQqdddBB", *self.fields[:3], echo, *self.fields[4:7], 0, len(audit))
        return xxhash.xxh3_128_digest(head + audit + self.body, seed=1)


class Line:
    """Sealed chunks and frames over a WebSocket."""

    def __init__(self, ws: Any, handshake: Handshake) -> None:
        self.ws, self.receive_key = ws, handshake.receive_key
        self.push, self.pull = (sodium.crypto_secretstream_xchacha20poly1305_state() for _ in range(2))
        self.header = sodium.crypto_secretstream_xchacha20poly1305_init_push(self.push, handshake.send_key)
        self.received, self.sent_at, self.receipt_at = 0, time.monotonic(), 0.0

    def open(self, message: bytes) -> bytes:
        if self.receive_key:
            sodium.crypto_secretstream_xchacha20poly1305_init_pull(self.pull, message[:24], self.receive_key)
            message, self.receive_key = message[24:], b""
        chunk, tag = sodium.crypto_secretstream_xchacha20poly1305_pull(self.pull, message, None)
        if tag == FINAL:
            raise ValueError("the end")
        return chunk

    async def put(self, chunk: bytes, tag: int = 0) -> None:
        self.sent_at = time.monotonic()
        header, self.header = self.header, b""
        sealed = sodium.crypto_secretstream_xchacha20poly1305_push(self.push, chunk, None, tag)
        await self.ws.send_bytes(header + sealed)

    async def get(self, timeout_s: float = NOTICE_S) -> bytes:
        return self.open(await self.ws.receive_bytes(timeout=timeout_s))

    async def send(self, frame: Frame) -> None:
        body = frame.digest() if frame.flags & REST else frame.body
        head = frame._replace(body=body).head()
        if len(head) + len(body) <= OWN_CHUNK:
            head, body = head + body, b""
        for chunk in (head, *(body[start : start + OWN_CHUNK] for start in range(0, len(body), OWN_CHUNK))):
            await self.put(chunk)

    async def frame(self, chunk: bytes) -> Frame:
        """The frame that begins with this chunk."""
        _, version, kind, flags, header_length, length = PREFIX.unpack_from(chunk)
        fields, body = msgpack.unpackb(chunk[PREFIX.size :][:header_length]), chunk[PREFIX.size + header_length :]
        while len(body) < length:
            part = await self.get()
            body, self.received = body + part, self.received + len(part)
            if time.monotonic() > self.receipt_at + 0.5:
                self.receipt_at = time.monotonic()
                await self.send(Frame(Type.RECEIPT, [self.received]))
        return Frame(kind, fields, body, flags, version)


class Edge:
    """A node's model and its exchanges, whichever session carries them."""

    def __init__(self, x: np.ndarray, samples: int, *, initiates: bool, degree: int = 1, gamma: float = 1.0) -> None:
        self.x, self.samples, self.gamma, self.weight = x, samples, gamma, samples / (degree + 1)
        self.initiates, self.exchanges, self.pace_s, self.audited = initiates, 0, 0.0, False  # audited in this session
        self.reset(0)

    def reset(self, incarnation: int) -> Frame:
        self.incarnation, self.has_replicas = incarnation, True
        self.seq, self.k = 0, 1.0  # of the last transaction
        self.own, self.other = np.zeros_like(self.x), np.zeros_like(self.x)  # the replicas
        self.chain = self.chain_before = bytes(16)
        self.digest = b""  # of the pending Request, or else of the last one
        self.request = self.reply = None  # pending; to the last Request
        self.shown = self.echo = None  # own version and the neighbor's in the last transaction
        return Frame(Type.RESYNC, [incarnation])

    def audit(self) -> bytes:
        first, second = (self.own, self.other) if self.initiates else (self.other, self.own)
        return hashlib.blake2b(bytes(first) + bytes(second), digest_size=16, person=b"p2pfl-replica").digest()

    def s(self, version: int, known: int | None) -> float:
        """What it counts that the neighbor knows that version."""
        tau = 99 if known is None else version - known
        s = 1.0 if tau <= 4 else (tau - 3) ** -0.5 if tau <= 64 else 0.0
        return max(s, 61**-0.5) if self.k == 0 and known is not None else s

    def freeze(self, version: int) -> None:
        audit = b"" if self.audited and (self.seq + 1) % 64 else self.audit()
        fields = [self.incarnation, self.seq + 1, version, self.echo, self.weight, self.s(version, self.shown)]
        self.request = Frame(Type.REQUEST, [*fields, self.pace_s, [], audit], bytes(self.x - self.own))
        self.digest, self.audited = self.request.digest(), True

    def hear_request(self, request: Frame, version: int) -> Frame | None:
        incarnation, seq, theirs, echo, weight, staleness, _, _, audit = request.fields
        if incarnation < self.incarnation:
            return Frame(Type.RESYNC, [self.incarnation])
        if incarnation > self.incarnation:
            self.reset(incarnation)
        digest = request.body if request.flags & REST else request.digest()
        if seq < self.seq:
            return None
        if seq == self.seq and digest == self.digest:
            return self.reply
        if seq != self.seq + 1 or audit not in {b"", self.audit()}:
            return Frame(Type.ASK, [incarnation, seq, digest])
        k = self.gamma * min(weight, self.weight) * min(staleness, self.s(version, echo))
        fields = [incarnation, seq, digest, version, k, self.pace_s, [], self.weight]
        self.digest, self.reply = digest, Frame(Type.REPLY, fields, bytes(self.x - self.own))
        self.apply(self.reply.body, request.body, self.reply, version, theirs)
        return self.reply

    def hear_reply(self, reply: Frame) -> None:
        if self.request and reply.fields[:3] == [*self.request.fields[:2], self.digest]:
            self.apply(self.request.body, reply.body, reply, self.request.fields[2], reply.fields[3])
            self.request = None

    def apply(self, own: bytes, other: bytes, reply: Frame, version: int, theirs: int) -> None:
        self.own, self.other = self.own + np.frombuffer(own, "<f4"), self.other + np.frombuffer(other, "<f4")
        self.k = reply.fields[4]
        if self.k:
            self.x = self.x + (self.other - self.own) * np.float32(self.k) / np.float32(self.samples)
        chain = xxhash.xxh3_128_digest(self.chain + self.digest + reply.body, seed=2)
        self.chain_before, self.chain, self.seq = self.chain, chain, self.seq + 1
        self.shown, self.echo, self.exchanges = version, theirs, self.exchanges + 1

    def hello(self) -> list[Any]:
        pending = self.request and self.request.fields[1]
        return [self.incarnation, self.seq, pending, self.digest, self.has_replicas, self.chain, self.chain_before]

    def meet(self, mine: list[Any], theirs: list[Any]) -> None:
        """Continue or begin anew, by the first Hello of each end."""
        initiator, responder = (mine, theirs) if self.initiates else (theirs, mine)
        inc_i, seq_i, pending, digest_i, has_i, chain_i, _ = initiator[:7]
        inc_r, seq_r, _, digest_r, has_r, chain_r, before_r = responder[:7]
        level = pending in {None, seq_r + 1} and (seq_i, chain_i) == (seq_r, chain_r)
        ahead = pending == seq_r and (digest_i, chain_i) == (digest_r, before_r)  # only its Reply was lost
        if inc_i != inc_r or not (has_i and has_r and (level or ahead)):
            self.reset(max(inc_i, inc_r) + 1)
        elif ahead and self.request:
            self.request = self.request._replace(flags=REST)


class Peer:
    """Has `reach` edges to the farthest member. It does `rounds` rounds, then closes in step with its neighbor."""

    def __init__(self, members, seed, neighbor, x, samples, *, reach, rounds, closing_rounds=10) -> None:
        self.members, self.seed, self.remote = members, seed, members.keys[neighbor]
        self.index = members.keys.index(sodium.crypto_sign_seed_keypair(seed)[0])
        self.edge = Edge(x, samples, initiates=self.index < neighbor)
        self.reach, self.rounds, self.closing_rounds = reach, rounds, closing_rounds
        self.own, self.neighbor = (SimpleNamespace(version=0, closing=None, level=0, done=False) for _ in range(2))
        self.trained = self.begun = self.through = 0  # the last two are sets of members, as bits
        self.boot, self.number, self.line, self.ended = secrets.token_bytes(16), 0, None, asyncio.Event()
        self.life, self.process = secrets.randbits(52) + 1, secrets.randbits(52) + 1

    def sets(self) -> list[bytes]:
        return [bits.to_bytes((bits.bit_length() + 7) // 8, "little") for bits in (self.begun, self.through)]

    def hello(self, *, have_yours: bool = False) -> Frame:
        who = [have_yours, 0, self.life, self.process, self.trained, self.rounds, *self.sets()]
        return Frame(Type.HELLO, [*self.edge.hello(), *vars(self.own).values(), *who])

    def advance(self) -> None:
        """Begin; once the last version is exchanged, train (nothing is learned here), close, and be done."""
        own, neighbor, me, exchanged = self.own, self.neighbor, 1 << self.index, self.edge.shown == self.own.version
        if own.level is not None and own.level < self.reach:
            own.level = self.reach if neighbor.level is None else 1 + neighbor.level
        elif own.level is not None or (exchanged and own.closing is None and self.trained < self.rounds):
            own.level, own.version, self.trained, self.begun = None, own.version + 1, self.trained + 1, self.begun | me
        elif exchanged and own.closing is None:
            self.through |= me
            own.closing = 0 if self.begun == self.through or neighbor.closing is not None else None
        elif exchanged and own.closing == self.closing_rounds:
            own.done = True
        elif exchanged and (neighbor.done or (neighbor.closing is not None and neighbor.closing >= own.closing)):
            own.closing, own.version = own.closing + 1, own.version + 1

    def hear(self, frame: Frame) -> Frame | None:  # noqa: C901, PLR0912 - a table
        """The answer, if there is one."""
        edge, neighbor, kind, fields = self.edge, self.neighbor, frame.kind, frame.fields
        if kind in range(Type.REQUEST, Type.LIVES) and not self.met:
            return None
        if kind in {Type.HELLO, Type.READY}:
            begun, through = (int.from_bytes(bits, "little") for bits in fields[-2:])
            self.begun, self.through = self.begun | begun, self.through | through & ~(1 << self.index)
        match kind:
            case Type.OFFER:
                if not fields[0] <= VERSION <= fields[1]:
                    raise ValueError("no version in common")
                return self.first
            case Type.HELLO:
                neighbor.version, neighbor.closing, neighbor.level, neighbor.done, have_mine = fields[7:12]
                if not self.met:
                    edge.meet(self.first.fields, fields)
                self.met = True
                return None if have_mine else self.hello(have_yours=True)
            case Type.REQUEST:
                return edge.hear_request(frame, self.own.version)
            case Type.REPLY:
                neighbor.version = fields[3]
                return edge.hear_reply(frame)
            case Type.READY:
                neighbor.version, neighbor.closing, neighbor.level = fields[:3]
            case Type.RESYNC if fields[0] > edge.incarnation:
                edge.reset(fields[0])
            case Type.ASK if edge.request and fields == [*edge.request.fields[:2], edge.digest]:
                return edge.reset(edge.incarnation + 1)
            case Type.BUSY:
                self.busy_until, self.told = time.monotonic() + fields[2], []
            case Type.DONE:
                neighbor.version, neighbor.done = fields[0], True
        return None

    def news(self) -> list[Frame]:
        """What is to be said without being asked, and was not said before."""
        edge, own, before = self.edge, self.own, None
        while before != (before := (*vars(own).values(), self.through)):
            self.advance()
        where = [own.version, own.closing, own.level, self.trained, self.rounds, zlib.crc32(b"|".join(self.sets()))]
        frames = [Frame(Type.READY, [*where, *self.sets()])] + [Frame(Type.DONE, [own.version])] * own.done
        if edge.initiates and not edge.request and (edge.shown, edge.echo) != (own.version, self.neighbor.version):
            edge.freeze(own.version)
        if edge.request and time.monotonic() >= self.busy_until:
            frames.append(edge.request)
        self.told, frames = frames, [frame for frame in frames if frame not in self.told]
        return frames

    async def session(self, line: Line, *, dialed: bool) -> None:
        """Greetings, OPEN by the end with the lower index, then frames until both ends are done or the line breaks."""
        self.number += 1
        for word, own in ((GREETING, dialed), (GREETING, not dialed), (OPEN, self.edge.initiates)):
            if own:
                await line.put(NOTICE.pack(word, self.boot, self.number if word == OPEN else 0))
            elif NOTICE.unpack(await line.get())[0] != word:
                raise ValueError("notice")
        self.line, self.first, self.told, self.busy_until = line, self.hello(), [], 0.0
        self.edge.audited = self.met = False
        await line.send(Frame(Type.OFFER, [VERSION, VERSION, []], version=FIRST_VERSION))
        while not (self.own.done and self.neighbor.done):
            chunk = b""  # a heartbeat
            with contextlib.suppress(TimeoutError):
                chunk = await line.get(0.25)
            answers = [self.hear(await line.frame(chunk)) if chunk else None, *(self.news() if self.met else [])]
            for answer in filter(None, answers):
                await line.send(answer)
            if time.monotonic() > line.sent_at + HEARTBEAT_S:
                await line.put(b"")
            if self.line is not line:
                break
        else:
            self.ended.set()
        await line.put(b"", FINAL)


async def dial(peer: Peer, url: str) -> None:
    """Sessions over lines that this end dials, until both ends are done."""
    while not peer.ended.is_set():
        with contextlib.suppress(*BROKEN):
            async with aiohttp.ClientSession() as http, http.ws_connect(url, max_msg_size=MOST_MESSAGE) as ws:
                handshake = Handshake(peer.members, peer.seed, peer.remote)
                await ws.send_bytes(handshake.m1)
                await ws.send_bytes(handshake.third(await ws.receive_bytes(timeout=NOTICE_S)))
                if handshake.agrees:
                    await peer.session(Line(ws, handshake), dialed=True)
        await asyncio.sleep(0.2)


async def listen(peer: Peer, port: int) -> None:
    """Sessions over lines that the neighbor dials, until both ends are done."""

    async def accept(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(max_msg_size=MOST_MESSAGE)
        await ws.prepare(request)
        with contextlib.suppress(*BROKEN):
            handshake = Handshake(peer.members, peer.seed)
            await ws.send_bytes(handshake.second(await ws.receive_bytes(timeout=NOTICE_S)))
            handshake.last(await ws.receive_bytes(timeout=NOTICE_S))
            if handshake.agrees and handshake.remote == peer.remote:
                await peer.session(Line(ws, handshake), dialed=False)
        return ws

    app = web.Application()
    app.router.add_get("/p2pfl", accept)
    async with TestServer(app, port=port):
        await peer.ended.wait()
