"""A node behind a web server that has TLS and the path: the configurations in the docs, if the server is installed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import sys
from pathlib import Path

import pytest
from msgspec import structs

from p2pfl.net import DialError, Limits, UnreachedError, dial_websocket, open_browserless, parse_address

sys.path.insert(0, str(Path(__file__).parents[1]))
from line_kit import Sites, caddy, nginx, running
from message_kit import REQUEST
from ports import free_ports

pytestmark = pytest.mark.usefixtures("trusted")
PAGE = (Path(__file__).parents[2] / "docs/how-to/proxies-and-tls.md").read_text(encoding="utf-8")


def configuration(language: str, changes: dict[str, str]) -> str:
    """Return the block of the docs, with the names and ports of a test."""
    text = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return text


async def meets_behind(federation, a, port: int) -> None:
    async with federation.node(1, {0: f"wss://localhost:{port}/p2pfl"}) as b:
        await b.until(lambda: a.open and b.open)
    reason = await reason_at(f"wss://localhost:{port}/other")
    assert re.match(
        r"a web server answers (404|200) in place of a WebSocket: is the path in the address right?", reason
    )


async def reason_at(address: str) -> str:
    async with open_browserless() as http:
        with pytest.raises(UnreachedError) as found:
            await dial_websocket(http, parse_address(address, "address"))
    return str(found.value)


def nginx_block(certificates, port: int, place: str) -> str:
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "site.example.org;\n    ssl": "localhost;\n    ssl",
        "/etc/letsencrypt/live/site.example.org/fullchain.pem": str(certificates.cert("good")),
        "/etc/letsencrypt/live/site.example.org/privkey.pem": str(certificates.key("good")),
        "127.0.0.1:8470": place,
    }
    return configuration("nginx", changes)


def caddy_block(certificates, port: int, place: str) -> str:
    tls = f"tls {certificates.cert('good')} {certificates.key('good')}"
    changes = {"site.example.org {": f"https://localhost:{port} {{\n    {tls}", "127.0.0.1:8470": place}
    return configuration("caddy", changes)


SERVERS = pytest.mark.parametrize(
    ("server", "block"), [(nginx, nginx_block), (caddy, caddy_block)], ids=["nginx", "caddy"]
)


@SERVERS
async def test_the_web_server_of_the_docs_passes_sessions_on(server, block, federation, certificates):
    (port,) = free_ports(1)
    async with federation.node(0) as a:
        with server(block(certificates, port, a.address()), port):
            await meets_behind(federation, a, port)
    (silent,) = free_ports(1)
    with server(block(certificates, port, f"127.0.0.1:{silent}"), port):
        assert "does not reach the node behind it (502): start the node" in await reason_at(f"wss://localhost:{port}")


@SERVERS
async def test_a_web_server_passes_large_bodies_on_as_they_come(server, block, federation, certificates):
    (port,) = free_ports(1)
    body = os.urandom(6_000_000)
    async with federation.node(0) as a:
        with server(block(certificates, port, a.address()), port):
            async with federation.node(1, {0: f"wss://localhost:{port}/p2pfl"}) as b:
                await b.until(lambda: a.open and b.open)
                for one, other in ((a, b), (b, a)):
                    one.send(other.index, structs.replace(REQUEST, body=body))
                    await other.until(other.messages)
                    assert bytes(other.messages()[0].body) == body


async def test_a_session_outlives_a_reload_of_nginx(federation, certificates):
    (port,) = free_ports(1)
    async with federation.node(0) as a:
        with nginx(nginx_block(certificates, port, a.address()), port) as folder:
            async with federation.node(1, {0: f"wss://localhost:{port}/p2pfl"}) as b:
                await b.until(lambda: a.open and b.open)
                before = (folder / "pid").read_text()
                os.kill(int(before), signal.SIGHUP)
                async with federation.node(2, {0: f"wss://localhost:{port}/p2pfl"}) as c:
                    await c.until(lambda: c.open)
                b.send(0, REQUEST)
                await a.until(a.messages)
                assert b.kinds() == ["open"]


async def test_sessions_come_back_after_a_reload_of_caddy(federation, certificates):
    """It ends them; its default for this (stream_close_delay) is 0."""
    (port,) = free_ports(1)
    block = caddy_block(certificates, port, "PLACE")
    async with federation.node(0) as a:
        block = block.replace("PLACE", a.address())
        with caddy(block, port) as folder:
            async with federation.node(1, {0: f"wss://localhost:{port}/p2pfl"}) as b:
                await b.until(lambda: a.open and b.open)
                file = folder / "Caddyfile"
                file.write_text(file.read_text() + "# changed\n:0 {\n}\n")
                words = ("--config", str(file), "--adapter", "caddyfile", "--address", f"unix/{folder}/admin")
                await (await asyncio.create_subprocess_exec("caddy", "reload", *words)).wait()
                await b.until(lambda: b.kinds() == ["open", "close", "open"])


async def test_nginx_names_what_a_plain_dial_to_its_port_needs(certificates):
    (port,) = free_ports(1)
    with nginx(nginx_block(certificates, port, "127.0.0.1:1"), port):
        assert "answers 400 in place of a WebSocket: wss:// if TLS is spoken there" in await reason_at(
            f"localhost:{port}"
        )


def test_the_nginx_of_the_docs_waits_longer_than_a_session_may_be_silent():
    for each in ("proxy_read_timeout", "proxy_send_timeout"):
        assert int(re.search(rf"{each} (\d+)s;", PAGE)[1]) > 2 * Limits().silence_s


@pytest.mark.long
@pytest.mark.timeout(600)
@SERVERS
def test_real_nodes_learn_through_the_web_server_of_the_docs(server, block, certificates, tmp_path):
    port, node = free_ports(2)
    sites = Sites(tmp_path)
    sites.listen(0, node)
    sites.address(0, f"wss://localhost:{port}/p2pfl")
    sites.address(1, None)
    assert "no mistakes" in sites.say("check", sites.path)
    with server(block(certificates, port, f"127.0.0.1:{node}"), port):
        sites.learn({"SSL_CERT_FILE": str(certificates.cert("authority"))})


@pytest.mark.long
@pytest.mark.timeout(600)
@SERVERS
def test_real_nodes_learn_at_a_relay_behind_the_web_server_of_the_docs(server, block, certificates, tmp_path):
    port, place = free_ports(2)
    url = f"wss://localhost:{port}/p2pfl"
    sites = Sites(tmp_path, "--relay", url)
    relay = (sys.executable, "-m", "p2pfl.cli.main", "relay", "--listen", f"127.0.0.1:{place}")
    token = ("--token", sites.path / "relay.token")
    with (
        running(*relay, *token, port=place),
        server(block(certificates, port, f"127.0.0.1:{place}"), port),
    ):
        sites.learn({"SSL_CERT_FILE": str(certificates.cert("authority"))})


async def test_a_server_that_ends_tls_needs_nothing_of_the_node(federation, certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert("good"), certificates.key("good"))
    async with federation.node(0) as a:
        pumps = set()

        async def pump(source, sink):
            while data := await source.read(65536):
                sink.write(data)
            sink.close()

        async def accept(reader, writer):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", a.links.port)
            pumps.add(asyncio.create_task(pump(reader, far_writer)))
            pumps.add(asyncio.create_task(pump(far_reader, writer)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
        await meets_behind(federation, a, server.sockets[0].getsockname()[1])
        server.close()
        await asyncio.gather(*pumps, return_exceptions=True)


async def test_a_web_server_without_its_node_is_named(certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert("good"), certificates.key("good"))

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, ssl=context)
    address = parse_address(f"wss://localhost:{server.sockets[0].getsockname()[1]}", "address")
    async with open_browserless() as http:
        with pytest.raises(UnreachedError, match="does not reach the node behind it") as found:
            await dial_websocket(http, address)
    assert found.value.hurdle is DialError.NOT_A_NODE
    server.close()
