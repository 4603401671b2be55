"""Proxies: which addresses go through one, and what is said of one that lets nothing through."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import ssl
from contextlib import asynccontextmanager
from functools import partial

import pytest
from line_kit import PASSWORD as SECRET
from line_kit import USER, Sites, squid, tinyproxy
from message_kit import REQUEST
from msgspec import structs
from ports import free_ports

from p2pfl.errors import UserError
from p2pfl.net import (
    DialError,
    Outlet,
    OwnCertificate,
    Proxies,
    UnreachedError,
    WebSocketTransport,
    dial_websocket,
    open_browserless,
    parse_address,
    parse_proxy,
    proxies_of,
)

PASSWORD = base64.b64encode(b"ann:secret").decode()
FAR = "node.example.org"
"""A name that only the proxy of the tests can resolve."""


async def reason_by(outlet: Outlet, address: str) -> UnreachedError:
    async with open_browserless(outlet) as http:
        with pytest.raises(UnreachedError) as found:
            await asyncio.wait_for(dial_websocket(http, parse_address(address, "address")), 10)
    return found.value


@pytest.mark.usefixtures("trusted")
async def test_the_way_to_the_proxy_may_itself_be_inside_tls(federation, proxy, certificates):
    certificate = OwnCertificate(certificates.cert("good"), certificates.key("good"))
    door = partial(WebSocketTransport, certificate=certificate)
    async with proxy(tls=certificate.context) as own, federation.node(0, transport=door) as a:
        transport = partial(WebSocketTransport, outlet=Outlet(Proxies(named=parse_proxy(own.url))))
        address = f"wss://{FAR}:{a.links.port}/p2pfl#sha256={certificate.pin}"
        async with federation.node(1, {0: address}, transport=transport) as b:
            await b.until(lambda: a.open and b.open)
        assert own.asked


async def test_a_proxy_with_a_wrong_certificate_is_named(proxy, certificates):
    certificate = OwnCertificate(certificates.cert("good"), certificates.key("good"))
    async with proxy(tls=certificate.context) as own:
        reason = await reason_by(Outlet(Proxies(named=parse_proxy(own.url))), f"wss://{FAR}")
    assert reason.kind is DialError.PROXY
    assert f"the proxy {own.url}: its certificate is signed by nobody whom this machine trusts" in reason.text


@pytest.mark.parametrize(
    ("status", "credentials", "says"),
    [
        (200, PASSWORD, "wants a user and a password (407): write user:password into the file that"),
        (403, "", "forbids node.example.org:443 (403): its administrator must allow CONNECT to node.example.org:443"),
        (502, "", "does not reach node.example.org:443 (502)"),
    ],
)
async def test_a_proxy_that_lets_nothing_through_is_named_with_what_to_do(proxy, status, credentials, says):
    async with proxy(status, credentials) as own:
        reason = await reason_by(Outlet(Proxies(named=parse_proxy(own.url))), f"wss://{FAR}")
        assert reason.kind is DialError.PROXY
        assert f"the proxy {own.url} {says}" in str(reason)


@asynccontextmanager
async def answering(answer: bytes, *, after: bytes = b"\r\n\r\n", tls: ssl.SSLContext | None = None):
    """A server that reads up to `after`, says `answer` and hangs up; it says nothing and stays if that is empty."""
    open_ends = []

    async def accept(reader, writer):
        open_ends.append(writer)
        if after:
            await reader.readuntil(after)
        writer.write(answer)
        if answer:
            await writer.drain()
            writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in open_ends:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 200 yes\r\n\r\nEVIL", "closed in place of an answer"),
        (b"HTTP/1.1 200 EVIL\r\n" + b"A: b\r\n" * 9000, "is no HTTP proxy: correct its address"),
        (b"\x05\xffEVIL\r\n\r\n", "is no HTTP proxy: correct its address"),
        (b"HTTP/1.1 407 EVIL\r\n\r\n", "wants a user and a password (407)"),
        (b"HTTP/1.1 407 x\r\nProxy-Authenticate: NTLM\r\nProxy-authenticate: Negotiate\r\n\r\n", "the way named Basic"),
        (b"HTTP/1.1 302 EVIL\r\nLocation: http://evil/\r\n\r\n", "does not reach node.example.org:8470 (302)"),
        (b"HTTP/1.1 2", "is no HTTP proxy"),
        (b"HTTP/1.1 200 yes\r\nEVIL", "closed the connection in place of an answer"),
        (b"", "does not answer: correct its address, or ask who runs it"),
    ],
)
async def test_a_proxy_that_lies_is_named_and_not_quoted(answer, says, monkeypatch):
    monkeypatch.setattr("p2pfl.net.dial_paths.PROXY_SILENCE_S", 1.0 if answer else 0.05)
    async with answering(answer) as place:
        reason = await reason_by(Outlet(Proxies(named=parse_proxy(f"http://{place}"))), f"{FAR}:8470")
    assert says in str(reason)
    assert "EVIL" not in str(reason)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"SSH-2.0-EVIL\r\n", "does not speak HTTP: wss:// if TLS is spoken there"),
        (b"HTTP/1.1 101 x\r\nEVIL\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 301 EVIL\r\nLocation: http://evil/\r\n\r\n", "redirects: use the address to which it"),
        (b"HTTP/1.1 400 EVIL\r\nContent-Length: 0\r\n\r\n", "answers 400 in place of a WebSocket: wss:// if TLS"),
        (b"HTTP/1.1 502 EVIL\r\nContent-Length: 0\r\n\r\n", "does not reach the node behind it (502)"),
        (b"HTTP/1.1 100 EVIL\r\n\r\n" * 3000, "closed in place of an answer"),
    ],
)
async def test_a_stranger_at_an_address_is_named_and_not_quoted(answer, says, inside, certificates, proxy):
    """Inside TLS, and through a proxy, it speaks before it is asked."""
    own = OwnCertificate(certificates.cert("good"), certificates.key("good"))
    async with proxy() as way, answering(answer, **({"tls": own.context, "after": b""} if inside else {})) as place:
        if inside:
            address = f"wss://{FAR}:{place.rpartition(':')[2]}#sha256={own.pin}"
            reason = await reason_by(Outlet(Proxies(named=parse_proxy(way.url))), address)
        else:
            reason = await reason_by(Outlet(Proxies()), place)
    assert reason.kind is DialError.NOT_A_NODE
    assert says in str(reason)
    assert "EVIL" not in str(reason)


async def test_a_password_that_was_renewed_is_used_without_a_restart(federation, proxy, tmp_path):
    file = tmp_path / "proxy.password"
    file.write_text("ann:old\n")
    file.chmod(0o600)
    async with proxy(credentials=PASSWORD) as own, federation.node(0) as a:
        outlet = Outlet(proxies_of(own.url, file))
        dial = {0: f"{FAR}:{a.links.port}"}
        async with federation.node(1, dial, transport=partial(WebSocketTransport, outlet=outlet)) as b:
            await b.until(lambda: len(own.asked) > 1)
            assert not b.open
            file.unlink()
            assert "the password file cannot be read" in str(await reason_by(outlet, f"wss://{FAR}"))
            file.write_text("ann:secret\n")
            file.chmod(0o600)
            await b.until(lambda: a.open and b.open)


@pytest.mark.parametrize("first", ["deaf", "impossible"])
async def test_the_first_address_of_a_host_may_be_slow_or_impossible(federation, monkeypatch, first):
    """A satellite's round trip takes longer than the wait for the next address; a kernel may lack IPv6."""
    monkeypatch.setattr("p2pfl.net.dial_paths.NEXT_ADDRESS_S", 0.01)
    loop = asyncio.get_running_loop()
    reach = loop.sock_connect

    async def slow(one, place):
        await asyncio.sleep(0.1 if place[0] == "127.0.0.1" else 3600)
        await reach(one, place)

    async def both(host, port, **_):
        odd = (97, socket.SOCK_STREAM, 6, "", (host, port)) if first == "impossible" else None
        here = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        return [odd, here] if odd else [here, (*here[:4], ("127.0.0.9", port))]

    async with federation.node(0) as a:
        monkeypatch.setattr(loop, "getaddrinfo", both)
        monkeypatch.setattr(loop, "sock_connect", slow)
        async with federation.node(1, {0: f"{FAR}:{a.links.port}"}) as b:
            await b.until(lambda: a.open and b.open)


async def test_a_proxy_that_is_not_there_is_named():
    reason = await reason_by(Outlet(Proxies(named=parse_proxy("http://127.0.0.1:1"))), f"wss://{FAR}")
    assert "the proxy http://127.0.0.1:1 does not answer: Connection refused" in reason.text


@pytest.fixture
def environment(monkeypatch):
    """Set exactly these variables about proxies."""

    def environment(**values):
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return environment


USUAL = {"https_proxy": "http://tls:3128", "NO_PROXY": "direct.org, .inner.org,ported.org:444"}


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("wss://example.org", "tls"),
        ("wss://[2a00::1]", "tls"),
        ("wss://direct.org", None),
        ("wss://a.inner.org", None),
        ("wss://notdirect.org", "tls"),
        ("wss://ported.org:444", None),
        ("wss://ported.org", "tls"),
        ("example.org:8470", None),
        ("wss://198.18.0.1", None),
        ("wss://127.0.0.1", None),
        ("wss://[fe80::1]", None),
        ("wss://pi1", None),
        ("wss://pi1.local", None),
        ("wss://100.64.1.9", None),
        ("wss://[::ffff:10.0.0.1]", None),
    ],
)
def test_the_environment_says_which_addresses_go_through_a_proxy(address, host, environment):
    environment(**USUAL)
    found = proxies_of(None, None).of(parse_address(address, "address"))
    assert (None if found is None else found.host) == host


def test_what_was_found_on_the_lan_goes_through_no_proxy(federation):
    a = federation.new(0)
    a.links.hint(1, ["[2a00::1]:8470"])
    (hint,) = a.links._dialer.route(1).hints
    assert hint == parse_address("[2a00::1]:8470", "address")
    assert proxies_of("http://proxy:3128", None).of(hint) is None


def test_none_turns_the_environment_off(environment):
    environment(**USUAL)
    assert proxies_of("none", None).of(parse_address("wss://example.org", "address")) is None


def test_a_proxy_of_the_environment_that_is_none_is_ignored_with_a_warning(environment, caplog):
    environment(ALL_PROXY="socks5://proxy:1080")
    assert proxies_of(None, None) == Proxies()
    assert "it is ignored" in caplog.text


def test_a_password_is_never_shown_and_its_file_is_private(tmp_path):
    file = tmp_path / "proxy.password"
    file.write_text("ann:secret\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="others may read this secret password"):
        proxies_of("http://proxy:3128", file)
    file.chmod(0o600)
    found = proxies_of("http://proxy:3128", file)
    assert base64.b64encode(b"ann:secret") in found.named.request(parse_address(FAR + ":1", "address"))
    assert "secret" not in f"{found} {found.named!r}"
    file.write_text("secret\n")
    with pytest.raises(UserError, match="one line, user:password") as refused:
        proxies_of("http://proxy:3128", file)
    assert "secret" not in str(refused.value)


REAL = pytest.mark.parametrize("program", [squid, tinyproxy])
"""Proxies as they are installed: CONNECT to one port, for a user with a password."""


@REAL
async def test_a_real_proxy_lets_members_with_the_password_through(
    program, federation, certificates, monkeypatch, tmp_path
):
    """Large bodies, too; and it says 407 and 403 where it does not let a node through, until that is mended."""
    monkeypatch.setattr("p2pfl.net.dial_paths.is_near", lambda _: False)
    certificate = OwnCertificate(certificates.cert("good"), certificates.key("good"))
    door = partial(WebSocketTransport, certificate=certificate)
    file = tmp_path / "password"
    file.write_text("ann:wrong")
    file.chmod(0o600)
    (port,) = free_ports(1)
    body = os.urandom(3_000_000)
    async with federation.node(0, transport=door) as a:
        with program(port, allowed=a.links.port) as url:
            outlet = Outlet(proxies_of(url, file))
            address = f"wss://localhost:{a.links.port}/p2pfl#sha256={certificate.pin}"
            transport = partial(WebSocketTransport, outlet=outlet)
            assert f"{url} refuses the user or the password (40" in str(await reason_by(outlet, address))
            nobody = Outlet(Proxies(named=parse_proxy(url)))
            assert f"{url} wants a user and a password (407)" in str(await reason_by(nobody, address))
            async with federation.node(1, {0: address}, transport=transport) as b:
                await b.until(lambda: b.links._dialer._hindered)
                file.write_text(f"{USER}:{SECRET}")
                await b.until(lambda: a.open and b.open)
                for one, other in ((a, b), (b, a)):
                    one.send(other.index, structs.replace(REQUEST, body=body))
                    await other.until(other.messages)
                    assert bytes(other.messages()[0].body) == body
            reason = await reason_by(outlet, "wss://localhost:1")
            assert f"{url} forbids localhost:1 (403): its administrator must allow CONNECT to localhost:1" in str(
                reason
            )
            reason = await reason_by(outlet, f"wss://nowhere.invalid:{a.links.port}")
            assert re.search(rf"{url} does not reach nowhere.invalid:{a.links.port} \(50\d\)", str(reason))
        reason = await reason_by(outlet, address)
        assert f"{url} does not answer: Connection refused" in str(reason)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_real_nodes_learn_through_squid(certificates, tmp_path):
    """As at a site whose names only the proxy knows. `check` and `doctor` say what a wrong password does."""
    node, port = free_ports(2)
    sites = Sites(tmp_path)
    cert, key = certificates.cert("good"), certificates.key("good")
    sites.listen(0, node)
    sites.own(0, f'[network]\ncert = "{cert}"\nkey = "{key}"\n')
    sites.address(0, f"wss://{FAR}:{node}/p2pfl#sha256={OwnCertificate(cert, key).pin}")
    sites.address(1, None)
    password = sites.path / "node1/proxy.password"
    password.write_text("ann:wrong\n")
    password.chmod(0o600)
    sites.own(1, f'[network]\nproxy = "http://127.0.0.1:{port}"\nproxy_password_file = "proxy.password"\n')
    wrong, said = f"the proxy http://127.0.0.1:{port} refuses the user or the password (407): write user:password", []
    forbidden = f"the proxy http://127.0.0.1:{port} forbids {FAR}:{node} (403): its administrator must allow CONNECT"
    with sites.running(0), sites.running(1):
        with squid(port, allowed=1, hosts=f"127.0.0.1 {FAR}\n"):
            sites.until(lambda: forbidden in sites.log(1))
            said.append(sites.doctor(1))
            assert forbidden.partition(":")[0] in said[0]
            assert "its administrator must allow CONNECT" in said[0]
        with squid(port, allowed=node, hosts=f"127.0.0.1 {FAR}\n"):
            sites.until(lambda: wrong in sites.log(1))
            said.append(sites.doctor(1))
            assert wrong.partition("): ")[0] in said[1]
            assert "write user:password into the file" in said[1]
            password.write_text(f"{USER}:{SECRET}\n")
            sites.until(lambda: "session with node1 is open" in sites.log(0))
    assert [sites.log(1).count(each) for each in (forbidden, wrong)] == [1, 1]
    said += [sites.log(0), sites.log(1)]
    sites.forget()
    with squid(port, allowed=node, hosts=f"127.0.0.1 {FAR}\n"):
        sites.learn()
    for text in (*said, sites.log(0), sites.log(1)):
        assert SECRET not in text
