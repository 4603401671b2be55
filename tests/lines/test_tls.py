"""Lines inside TLS: whom a node trusts, what it says of a certificate that it does not, and listening with one."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl.errors import UserError
from p2pfl.net.address import Address, parse_address
from p2pfl.net.doorway import ConnectionStage
from p2pfl.net.hurdles import Hurdle, UnreachedError, of_tls
from p2pfl.net.tls import OwnCertificate
from p2pfl.net.websocket import WebSocketTransport, dial_url, open_browserless

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
            await asyncio.wait_for(dial_url(http, address), 10)
    return found.value


async def test_a_session_is_inside_tls_where_the_address_says_so(federation, listening):
    a, _ = listening("good")
    async with a.links, federation.node(1, {0: f"wss://localhost:{a.links.port}/p2pfl"}) as b:
        await b.until(lambda: a.open and b.open)
        assert b.sockets()[0].get_extra_info("ssl_object").version() == "TLSv1.3"


async def test_the_same_port_takes_plain_connections(federation, listening):
    a, _ = listening("good")
    async with a.links, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: a.open and b.open)


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
    assert reason.hurdle is Hurdle.CERTIFICATE
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
    assert reason.hurdle in (Hurdle.CERTIFICATE, Hurdle.NOT_A_NODE, Hurdle.SILENT)
    assert str(reason)


def test_a_certificate_of_the_future_blames_the_clock():
    error = ssl.SSLCertVerificationError()
    error.verify_code = 9
    assert "not valid yet by the clock of this machine (20" in (said := str(of_tls(error, "example.org")))
    assert "timedatectl set-ntp true" in said


async def test_a_node_goes_on_trying_until_the_certificate_is_right(federation, listening, certificates, caplog):
    a, certificate = listening("expired")
    async with a.links, federation.node(1, {0: f"wss://localhost:{a.links.port}"}) as b:
        await b.until(lambda: "has expired" in caplog.text)
        assert [one.levelname for one in caplog.records if "has expired" in one.message] == ["WARNING"]
        certificate.context.load_cert_chain(certificates.cert("good"), certificates.key("good"))
        await b.until(lambda: a.open and b.open)


async def test_who_says_nothing_has_a_place_in_the_doorway_and_loses_it(listening):
    a, _ = listening("good")
    async with a.links:
        door = a.links._transport.doorway
        silent = socket.create_connection(("127.0.0.1", a.links.port))
        await a.until(lambda: door.waiting == 1)
        door.close()
        await a.until(lambda: door.waiting == 0)
        silent.close()
        assert not door._rooms[ConnectionStage.CONNECTED]


async def test_a_stranger_pays_for_its_handshake_before_it_is_made(listening):
    a, certificate = listening("good")
    certificate.cost_s = 1.0
    async with a.links:
        door, context = a.links._transport.doorway, ssl.create_default_context()
        _, writer = await asyncio.open_connection("localhost", a.links.port, ssl=context)
        assert not door.time.may_enter("127.0.0.1")
        with suppress(OSError), socket.create_connection(("127.0.0.1", a.links.port)):
            await a.until(lambda: door.turned_away)
        writer.transport.abort()


def test_a_renewed_certificate_is_read(certificates, tmp_path):
    for name in ("expired", "good"):
        for kind, file in (("crt", certificates.cert(name)), ("key", certificates.key(name))):
            (tmp_path / f"own.{kind}").write_bytes(file.read_bytes())
            (tmp_path / f"own.{kind}").chmod(0o600)
        if name == "expired":
            own = OwnCertificate(tmp_path / "own.crt", tmp_path / "own.key")
    own._read_at = float("-inf")
    (tmp_path / "own.key").touch()
    client = ssl.create_default_context()
    ends = [ssl.MemoryBIO() for _ in range(4)]
    there, here = (
        own.current().wrap_bio(ends[0], ends[1], server_side=True),
        client.wrap_bio(ends[2], ends[3], server_hostname="localhost"),
    )
    for _ in range(3):
        for end, out, into in ((here, ends[3], ends[0]), (there, ends[1], ends[2])):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
            into.write(out.read())
    assert here.getpeercert()["subject"] == ((("commonName", "good"),),)


@given(st.text(alphabet="wsp:/[]@.#x1%-=a26h", max_size=40) | st.text(max_size=40))
@settings(max_examples=12, deadline=None)
def test_any_text_is_an_address_or_a_mistake_of_the_user(text):
    with suppress(UserError):
        address = parse_address(text, "address")
        again = parse_address(str(address), "address")
        assert (again.host, again.port, again.tls, again.path) == (
            address.host,
            address.port,
            address.tls,
            address.path,
        )


def test_a_handshake_has_a_price_and_a_certificate_an_end(certificates):
    good = OwnCertificate(certificates.cert("good"), certificates.key("good"))
    assert 0.0 < good.cost_s < 1.0
    assert 29 < good.days_left < 30.1
    assert OwnCertificate(certificates.cert("expired"), certificates.key("expired")).days_left < 0


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
