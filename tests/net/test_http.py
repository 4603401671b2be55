"""The status page: what it shows and to whom."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import aiohttp
import pytest

from p2pfl.errors import UserError
from p2pfl.features.status import StatusPage
from p2pfl.limits import PAGE_CONNECTIONS

STATUS = {
    "name": "pi-1",
    "version": 12,
    "accuracy": 0.875,
    "loss": float("nan"),
    "bytes_sent_total": 3_000_000_000,
    "done": False,
    "strange-name": 1,
    "peers": [{"index": 1, "staleness": float("inf")}],
}


async def fetch(page, path, **options):
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{page.port}{path}", timeout=aiohttp.ClientTimeout(20), **options) as response,
    ):
        return response.status, await response.text(), response.headers


async def test_status_is_json_without_nan():
    async with StatusPage("127.0.0.1:0", lambda: STATUS) as page:
        code, text, headers = await fetch(page, "/status")
    assert code == 200
    assert headers["Content-Type"].startswith("application/json")
    assert json.loads(text) == {**STATUS, "loss": None, "peers": [{"index": 1, "staleness": None}]}


async def test_metrics_are_those_of_prometheus():
    async with StatusPage("127.0.0.1:0", lambda: STATUS) as page:
        code, text, headers = await fetch(page, "/metrics")
    assert code == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE p2pfl_accuracy_ratio gauge" in text


@pytest.mark.parametrize("path", ["/", "/index.html", "/status/", "/metrics.json"])
async def test_everything_else_is_not_found(path):
    async with StatusPage("127.0.0.1:0", lambda: STATUS) as page:
        code, text, _ = await fetch(page, path)
    assert code == 404
    assert "pi-1" not in text


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9000", 200),
        ("192.168.1.7:80", 401),
        ("[::1]:9000", 200),
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1].evil.example", 403),
        ("", 403),
    ],
)
async def test_a_foreign_host_name_is_refused(host, code):
    async with StatusPage("127.0.0.1:0", lambda: STATUS) as page:
        for path in ("/status", "/metrics", "/"):
            got, text, _ = await fetch(page, path, headers={"Host": host})
            assert got == (404 if code == 200 and path == "/" else code)
            assert code == 200 or "pi-1" not in text


async def test_a_port_in_use_is_the_users_mistake():
    async with StatusPage("127.0.0.1:0", lambda: STATUS) as page:
        with pytest.raises(UserError, match=rf"status_listen: cannot listen on 127\.0\.0\.1:{page.port}"):
            async with StatusPage(f"127.0.0.1:{page.port}", lambda: STATUS):
                pass


def test_a_bad_address_is_the_users_mistake():
    with pytest.raises(UserError, match="status_listen: not an address"):
        StatusPage("9000", lambda: STATUS)


async def test_idle_connections_do_not_keep_the_status_from_being_asked():
    """The oldest of too many goes: a node's descriptors are not for strangers to use up."""
    async with StatusPage("127.0.0.1:0", lambda: {"rounds": 7}) as page:
        idle = [await asyncio.open_connection("127.0.0.1", page.port) for _ in range(3 * PAGE_CONNECTIONS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        writer.write(b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        _, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        assert json.loads(body) == {"rounds": 7}
        with suppress(ConnectionError):
            assert await asyncio.wait_for(idle[0][0].read(), 10) == b""
        for _, each in [*idle, (reader, writer)]:
            each.transport.abort()
