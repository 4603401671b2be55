"""Lines inside TLS: whom a node trusts, what it says of a certificate that it does not, and listening with one."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import ssl
import struct
import subprocess
import sys
import time
from asyncio.sslproto import SSLProtocol
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from message_kit import REQUEST
from msgspec.structs import replace
from nodes import UPGRADE, Relay, binding

from p2pfl.errors import UserError
from p2pfl.features.relay import make_token
from p2pfl.net import (
    IDLE_BYTES,
    Address,
    ConnectionGate,
    ConnectionStage,
    DialError,
    MeteredTls,
    OwnCertificate,
    UnreachedError,
    WebSocketTransport,
    dial_websocket,
    free_ports,
    of_tls,
    open_browserless,
    parse_address,
)

pytestmark = pytest.mark.usefixtures("trusted")


@pytest.fixture
def listening(federation, certificates):
    """Makes node 0, which listens with the named certificate."""

    def new(name):
        certificate = OwnCertificate(certificates.cert(name), certificates.key(name))
        return federation.new(0, transport=partial(WebSocketTransport, certificate=certificate)), certificate

    return new


async def reason_at(address: str) -> UnreachedError:
    async with open_browserless() as http:
        with pytest.raises(UnreachedError) as found:
            await asyncio.wait_for(dial_websocket(http, parse_address(address, "URL")), 10)
    return found.value


async def test_a_session_is_inside_tls_where_the_address_says_so(federation, listening):
    a, _ = listening("good")
    async with a.links, federation.node(1, {0: f"wss://localhost:{a.links.port}/p2pfl"}) as b:
        await b.until(lambda: a.open and b.open)
        assert b.sockets()[0].get_extra_info("ssl_object").version() == "TLSv1.3"


async def test_whoever_opens_tls_finds_neither_key_nor_federation_nor_model_and_cannot_change_a_bit(
    federation, certificates
):
    class Opener(Relay):
        said, bit = b"", 0

        def passed(self, data):
            self.said += data
            return data[:-1] + bytes([data[-1] ^ self.bit])

    stolen, model = OwnCertificate(certificates.cert("good"), certificates.key("good")).context, bytes(range(256))
    request = replace(REQUEST, body=model)
    async with (
        federation.node(0) as a,
        Opener(a.address(), tls=stolen) as opener,
        federation.node(1, {0: f"wss://localhost:{opener.address.rpartition(':')[2]}/p2pfl"}) as b,
    ):
        await b.until(lambda: a.open and b.open)
        a.send(1, request)  # WebSocket masks only what the dialer says
        await b.until(b.messages)
        assert b"GET /p2pfl" in opener.said
        secrets = federation.identities[0].public, binding().federation_id, model
        assert not any(secret in opener.said for secret in secrets)
        opener.bit = 1
        a.send(1, request)
        await b.until(b.reasons)
        assert len(b.messages()) == 1


def test_old_versions_renegotiation_and_tickets_are_refused(certificates):
    own = OwnCertificate(certificates.cert("good"), certificates.key("good")).context
    assert own.minimum_version == ssl.TLSVersion.TLSv1_2
    assert own.options & ssl.OP_NO_RENEGOTIATION
    dialer = ssl._create_unverified_context()
    dialer.maximum_version = ssl.TLSVersion.TLSv1_2
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = dialer.wrap_bio(back, there), own.wrap_bio(there, back, server_side=True)
    for end in 3 * ends:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert not ends[0].session.has_ticket


async def test_a_pinned_certificate_needs_no_authority_no_name_and_no_date(federation, listening, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    a, certificate = listening("expired")
    address = f"wss://127.0.0.1:{a.address().rpartition(':')[2]}/p2pfl#sha256={certificate.pin}"
    async with a.links:
        address = f"wss://127.0.0.1:{a.links.port}/p2pfl#sha256={certificate.pin}"
        async with federation.node(1, {0: address}) as b:
            await b.until(lambda: a.open and b.open)


@pytest.mark.parametrize(
    ("name", "says", "does"),
    [
        ("expired", "has expired by the clock of this machine (20", "set the clock"),
        ("other", "is not for localhost", "pin it"),
    ],
)
async def test_a_wrong_certificate_is_named_with_what_to_do(listening, name, says, does):
    a, _ = listening(name)
    async with a.links:
        reason = await reason_at(f"wss://localhost:{a.links.port}")
    assert reason.kind is DialError.CERTIFICATE
    assert says in reason.text
    assert does in reason.remedy


async def test_an_unknown_authority_is_answered_by_a_pin(listening, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    a, _ = listening("good")
    async with a.links:
        assert "signed by nobody whom this machine trusts: pin it" in str(
            await reason_at(f"wss://localhost:{a.links.port}")
        )


async def test_another_certificate_than_the_pinned_one_is_refused(listening):
    a, certificate = listening("good")
    async with a.links:
        reason = await reason_at(f"wss://localhost:{a.links.port}/p2pfl#sha256={'ab' * 32}")
    assert f"sha256={certificate.pin}, and another one is pinned" in reason.text


async def test_tls_with_a_node_that_speaks_none_is_named(federation):
    async with federation.node(0) as a:
        reason = await reason_at(f"wss://localhost:{a.links.port}")
    assert reason.kind in (DialError.CERTIFICATE, DialError.NOT_A_NODE, DialError.SILENT)
    assert str(reason)


def test_a_certificate_of_the_future_blames_the_clock():
    error = ssl.SSLCertVerificationError()
    error.verify_code = 9
    assert "not valid yet by the clock of this machine (20" in (said := str(of_tls(error, "example.org")))
    assert "timedatectl set-ntp true" in said


async def test_a_node_goes_on_trying_until_a_renewed_certificate_is_right(federation, certificates, tmp_path, caplog):
    def renew(name):
        for kind, file in (("crt", certificates.cert(name)), ("key", certificates.key(name))):
            (tmp_path / f"own.{kind}").write_bytes(file.read_bytes())
            (tmp_path / f"own.{kind}").chmod(0o600)

    renew("expired")
    own = OwnCertificate(tmp_path / "own.crt", tmp_path / "own.key")
    async with (
        federation.node(0, transport=partial(WebSocketTransport, certificate=own)) as a,
        federation.node(1, {0: f"wss://localhost:{a.links.port}"}) as b,
    ):
        for says, then in (("has expired", "other"), ("is not for localhost", "good")):
            await b.until(lambda: says in caplog.text)  # noqa: B023 - awaited here
            assert [one.levelname for one in caplog.records if says in one.message] == ["WARNING"]
            renew(then)
            own._looked_at = float("-inf")
        await b.until(lambda: a.open and b.open)


async def test_a_node_goes_on_trying_until_the_name_is_known(federation, monkeypatch, caplog):
    loop = asyncio.get_running_loop()
    lookup, known = loop.getaddrinfo, []

    async def resolve(host, port, **more):
        if not known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await lookup("127.0.0.1", port, **more)

    async with federation.node(0) as a:
        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        async with federation.node(1, {0: f"site.example.org:{a.links.port}"}) as b:
            says = "the name site.example.org is unknown: correct the address, or the DNS of this machine"
            await b.until(lambda: says in caplog.text)
            known.append(1)
            await b.until(lambda: a.open and b.open)
        assert [one.levelname for one in caplog.records if says in one.message] == ["WARNING"]


async def test_who_says_nothing_has_a_place_in_the_doorway_and_loses_it(listening):
    a, _ = listening("good")
    async with a.links:
        door = a.links._transport.pending
        silent = socket.create_connection(("127.0.0.1", a.links.port))
        await a.until(lambda: door.waiting == 1)
        door.close()
        await a.until(lambda: door.waiting == 0)
        silent.close()
        assert not door._rooms[ConnectionStage.CONNECTED]


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_a_stranger_pays_for_what_it_makes_tls_do(listening, monkeypatch):
    a, _ = listening("good")
    work = SSLProtocol.buffer_updated
    monkeypatch.setattr(SSLProtocol, "buffer_updated", lambda self, count: (burn(0.005), work(self, count)))
    async with a.links:
        pot = a.links._transport.pending.time._strangers
        before = pot.all.left_s
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", a.links.port)) as stranger:
            stranger.sendall(one_byte_records(client_hello()[:50]))
            await a.until(lambda: pot.all.left_s < before - 0.005)
            pot.all.spend(1.0, a.links._transport.pending.time._clock())
            stranger.sendall(one_byte_records(client_hello()[50:]))
            await a.until(lambda: a.links._transport.pending.turned_away)


async def test_a_handshake_of_endless_small_records_is_cut_off(listening):
    """A hello of 50 kB in records of one byte took 50 times the price of a handshake."""
    a, _ = listening("good")
    async with a.links:
        door = a.links._transport.pending
        reader, writer = await asyncio.open_connection("127.0.0.1", a.links.port)
        with suppress(ConnectionError):
            writer.write(b"\x16\x03\x01\x00\x01\x01" + one_byte_records(bytes([0, 200, 0]) + bytes(30_000)))
            assert await asyncio.wait_for(reader.read(), 10) == b""
        assert door.turned_away == 1
        writer.transport.abort()
        await a.until(lambda: door.waiting == 0)


async def test_data_that_come_with_the_end_of_the_handshake_are_kept(listening):
    a, _ = listening("good")
    async with a.links:
        reader, writer = await asyncio.open_connection("127.0.0.1", a.links.port)
        ends = ssl.MemoryBIO(), ssl.MemoryBIO()
        here = ssl.create_default_context().wrap_bio(*ends, server_hostname="localhost")
        while True:
            try:
                here.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(ends[1].read())
                ends[0].write(await reader.read(65536))
        here.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.write(ends[1].read())
        ends[0].write(await asyncio.wait_for(reader.read(65536), 10))
        assert here.read(12) == b"HTTP/1.1 404"
        writer.transport.abort()


async def test_a_member_that_only_renews_its_keys_is_cut_off(listening, monkeypatch):
    """TLS that brings no data is bounded in a session, too."""
    gate = SimpleNamespace(pays=False, came=10, aborted=0, pays_below=lambda *_: False)
    gate.abort = lambda: setattr(gate, "aborted", gate.aborted + 1)
    monkeypatch.setattr(SSLProtocol, "buffer_updated", lambda *_: None)
    meter = MeteredTls(gate, listening("good")[1].current(), asyncio.get_running_loop().create_future())
    meter.buffer_updated(IDLE_BYTES)
    assert not gate.aborted
    meter.buffer_updated(100)
    assert gate.aborted == 1
    meter.connection_lost(None)


def record(data):
    return b"\x16\x03\x01" + len(data).to_bytes(2) + data


def remains():
    """What strangers have made in this process: descriptors, and objects, whether or not they are garbage."""
    kinds = ConnectionGate, SSLProtocol, web.RequestHandler, web.WebSocketResponse
    objects = sum(issubclass(type(each), kinds) for each in gc.get_objects())
    return objects + sum(1 for _ in Path("/proc/self/fd").iterdir())


def reset(stranger):
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()


@pytest.mark.parametrize("ends", ["dropped", "leaves", "resets"])
@pytest.mark.parametrize("says", ["half a hello", "a hello", "no TLS", "half a request", "a bad request", "an upgrade"])
async def test_of_strangers_that_have_gone_nothing_is_left_for_the_garbage_collector(listening, says, ends):
    """It comes late where there are many objects, as in a process that has loaded torch."""
    hello, request = record(client_hello()), UPGRADE
    said = {
        "half a hello": hello[:100],
        "a hello": hello,
        "no TLS": record(bytes(100)),
        "half a request": request[:60],
        "a bad request": b"GET / HTTP/9.9\r\n\r\n",
        "an upgrade": request,
    }[says]
    a, _ = listening("good")
    async with a.links:
        door = a.links._transport.pending

        async def come_and_go(count):
            strangers = [socket.create_connection(("127.0.0.1", a.links.port)) for _ in range(count)]
            for each in strangers:
                each.settimeout(0.0)
                each.sendall(said)
            await a.until(lambda: door.waiting == count or says in ("no TLS", "a bad request"))
            if says.startswith("half"):
                for _ in range(10):
                    await asyncio.sleep(0)
            else:
                await a.until(lambda: len(select.select(strangers, [], [], 0)[0]) == count)
            if ends == "dropped":
                door.close()
            for each in strangers:
                reset(each) if ends == "resets" else each.close()
            await a.until(lambda: door.waiting == 0)

        await come_and_go(2)
        gc.collect()
        gc.disable()
        try:
            before = remains()
            await come_and_go(8)
            await a.until(lambda: remains() <= before)
        finally:
            gc.enable()


@pytest.mark.long
def test_half_hellos_take_little_memory_of_a_relay_and_it_is_given_back(certificates, tmp_path):
    """Each for as long as it may stay; 3,000 took 180 MB for good."""
    make_token(tmp_path / "token")
    port = free_ports(1)[0]
    command = ["relay", "--listen", f"127.0.0.1:{port}", "--token", f"{tmp_path}/token"]
    command += ["--cert", f"{certificates.cert('good')}", "--key", f"{certificates.key('good')}"]
    relay = subprocess.Popen([sys.executable, "-m", "p2pfl.cli.main", *command])

    def memory_mb():
        lines = Path(f"/proc/{relay.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

    hello = record(client_hello())[:100]

    def listens():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def until(condition, within_s):
        ends_at = time.monotonic() + within_s
        while not condition() and time.monotonic() < ends_at:
            time.sleep(0.05)
        return condition()

    try:
        assert until(listens, 30)
        before, most = memory_mb(), 0.0
        for _ in range(15):
            with ExitStack() as strangers:
                for number in range(1, 201):
                    stranger = strangers.enter_context(socket.socket())
                    stranger.bind((f"127.0.1.{number}", 0))
                    stranger.connect(("127.0.0.1", port))
                    stranger.sendall(hello)
                until(lambda: False, 0.5)  # at this rate the budget lets most of them in
                most = max(most, memory_mb())
        assert most < before + 16
        assert until(lambda: memory_mb() < before + 8, 10)
    finally:
        relay.kill()
        relay.wait()


def client_hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()[5:]


def one_byte_records(data):
    return b"".join(b"\x16\x03\x01\x00\x01" + bytes([each]) for each in data)


def shown_by(server):
    """The name in the certificate that a client sees."""
    ends = [ssl.MemoryBIO() for _ in range(4)]
    there = server.wrap_bio(ends[0], ends[1], server_side=True)
    here = ssl.create_default_context().wrap_bio(ends[2], ends[3], server_hostname="localhost")
    for _ in range(3):
        for end, out, into in ((here, ends[3], ends[0]), (there, ends[1], ends[2])):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
            into.write(out.read())
    return here.getpeercert()["subject"][0][0][1]


def test_a_half_renewed_certificate_leaves_the_old_one_in_place_and_is_named_once(certificates, tmp_path, caplog):
    """OpenSSL forgets the old key as soon as it reads a certificate of another one."""
    cert, key = tmp_path / "own.crt", tmp_path / "own.key"
    cert.write_bytes(certificates.cert("good").read_bytes())
    key.write_bytes(certificates.key("good").read_bytes())
    key.chmod(0o600)
    own = OwnCertificate(cert, key)
    cert.write_bytes(certificates.cert("expired").read_bytes())
    for _ in range(2):
        own._looked_at = float("-inf")
        assert shown_by(own.current()) == "good"
    assert caplog.text.count("the renewed certificate is not used, the old one stays") == 1
    cert.write_bytes(certificates.cert("good").read_bytes())
    own._looked_at = float("-inf")
    assert shown_by(own.current()) == "good"
    assert len(caplog.records) == 1


def test_a_certificate_that_tls_cannot_use_is_a_mistake_of_the_user(certificates, tmp_path):
    cert, key = tmp_path / "own.crt", tmp_path / "own.key"
    words = ("openssl", "x509", "-in", certificates.cert("good"), "-trustout", "-out", cert)
    subprocess.run(words, check=True, capture_output=True)
    key.write_bytes(certificates.key("good").read_bytes())
    key.chmod(0o600)
    with pytest.raises(UserError, match="not a certificate with its key"):
        OwnCertificate(cert, key)


def test_a_key_that_is_open_or_of_another_certificate_is_refused(certificates, tmp_path):
    with pytest.raises(UserError, match="not a certificate with its key"):
        OwnCertificate(certificates.cert("good"), certificates.key("other"))
    open_key = tmp_path / "open.key"
    open_key.write_bytes(certificates.key("good").read_bytes())
    open_key.chmod(0o644)
    with pytest.raises(UserError, match="others may read this secret key"):
        OwnCertificate(certificates.cert("good"), open_key)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        OwnCertificate(tmp_path / "none.crt", certificates.key("good"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("pi-1.local:65535", Address("pi-1.local", 65535)),
        ("[::1]:0", Address("::1", 0)),
        ("wss://example.org", Address("example.org", 443, tls=True)),
        ("wss://[::1]:8443/a/b", Address("::1", 8443, tls=True, path="/a/b")),
        ("ws://example.org/x", Address("example.org", 80, path="/x")),
        ("ws://example.org:8470/p2pfl", Address("example.org", 8470)),
        ("wss://h.org#sha256=" + ":".join(["AB"] * 32), Address("h.org", 443, tls=True, pin="ab" * 32)),
    ],
)
def test_an_address_may_be_a_url(text, address):
    assert parse_address(text, "address") == address
    assert parse_address(str(address), "address").place == address.place
