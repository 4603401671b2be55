"""A node behind a web server that has TLS and the path: the configurations in the docs, if the server is installed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from line_kit import Sites, caddy, nginx, running
from message_kit import REQUEST
from msgspec import structs
from ports import free_ports

from p2pfl.net import Limits, UnreachedError, dial_websocket, open_browserless, parse_address

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
