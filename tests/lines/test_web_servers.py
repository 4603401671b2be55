"""A node behind a web server that has TLS and the path: the configurations in the docs, if the server is installed."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from p2pfl.net.address import parse_address
from p2pfl.net.hurdles import Hurdle, UnreachedError
from p2pfl.net.websocket import dial_websocket, open_browserless

sys.path.insert(0, str(Path(__file__).parents[1]))
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


@asynccontextmanager
async def running(*command: str):
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def meets_behind(federation, a, port: int) -> None:
    async with federation.node(1, {0: f"wss://localhost:{port}/p2pfl"}) as b:
        await b.until(lambda: a.open and b.open)
    async with open_browserless() as http:
        with pytest.raises(UnreachedError, match="a web server answers 404 in place of a WebSocket"):
            await dial_websocket(http, parse_address(f"wss://localhost:{port}/other", "address"))


async def test_the_nginx_of_the_docs_passes_sessions_on(federation, certificates, tmp_path):
    if shutil.which("nginx") is None:
        pytest.skip("needs the program nginx, which is not installed")
    (port,) = free_ports(1)
    async with federation.node(0) as a:
        changes = {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "site.example.org;\n    ssl": "localhost;\n    ssl",
            "/etc/letsencrypt/live/site.example.org/fullchain.pem": str(certificates.cert("good")),
            "/etc/letsencrypt/live/site.example.org/privkey.pem": str(certificates.key("good")),
            "127.0.0.1:8470": a.address(),
        }
        file = tmp_path / "nginx.conf"
        head = f"daemon off; pid {tmp_path}/pid; error_log stderr; events {{}}\nhttp {{ access_log off;\n"
        file.write_text(head + configuration("nginx", changes) + "}\n")
        async with running("nginx", "-p", str(tmp_path), "-c", str(file)):
            await meets_behind(federation, a, port)


async def test_the_caddy_of_the_docs_passes_sessions_on(federation, certificates, tmp_path):
    if shutil.which("caddy") is None:
        pytest.skip("needs the program caddy, which is not installed")
    (port,) = free_ports(1)
    async with federation.node(0) as a:
        tls = f"tls {certificates.cert('good')} {certificates.key('good')}"
        changes = {"site.example.org {": f"localhost:{port} {{\n    {tls}", "127.0.0.1:8470": a.address()}
        file = tmp_path / "Caddyfile"
        file.write_text("{\n    admin off\n    auto_https off\n}\n" + configuration("caddy", changes))
        async with running("caddy", "run", "--config", str(file), "--adapter", "caddyfile"):
            await meets_behind(federation, a, port)


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
    assert found.value.hurdle is Hurdle.NOT_A_NODE
    server.close()
