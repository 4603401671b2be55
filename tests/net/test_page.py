"""Who may see the page, and what it sends: one computation for all open pages, and nothing that grows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import HTTPUnauthorized

from p2pfl.features.status import FILES, WEB, Guard, StatusPage
from p2pfl.limits import PAGE_CONNECTIONS
from p2pfl.net import Address

TOKEN = "a-token-of-a-test"


class Site:
    """Counts how often it is asked."""

    def __init__(self):
        self.wholes = 0

    def whole(self):
        self.wholes += 1
        return json.dumps({"number": self.wholes}).encode()

    def history(self):
        return b"{}"


@pytest.fixture
def site():
    return Site()


def page_of(site, listen="127.0.0.1:0", **options):
    return StatusPage(listen, lambda: {"node": "pi-1", "rounds": 3}, site=site, token=TOKEN, **options)


async def ask(page, path, *, method="GET", **options):
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
        http.request(
            method, f"http://127.0.0.1:{page.port}{path}", timeout=aiohttp.ClientTimeout(20), **options
        ) as response,
    ):
        return response.status, await response.text(), response


async def test_the_page_and_its_files_come_from_the_package(site):
    async with page_of(site) as page:
        for path, (name, kind) in FILES.items():
            code, text, response = await ask(page, path)
            assert (code, response.headers["Content-Type"]) == (200, kind)
            assert text == (WEB / name).read_text(encoding="utf-8")


async def test_everything_has_a_policy_that_lets_no_script_but_ours_run(site):
    async with page_of(site) as page:
        for path in ("/", "/federation", "/metrics", "/nothing"):
            _, _, response = await ask(page, path)
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert "*" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert "aiohttp" not in str(response.headers)


def test_the_page_has_nothing_inline_and_names_no_other_place():
    html = (WEB / "index.html").read_text(encoding="utf-8")
    assert "style=" not in html
    assert "<style" not in html
    assert "onclick" not in html
    assert "<script>" not in html
    ours = [WEB / name for name, _ in FILES.values() if not name.startswith("uplot/")]
    for path in ours:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "").replace("http://…/#…", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text, "what others have said is text"


@pytest.mark.parametrize("path", ["/", "/federation", "/history", "/status", "/metrics", "/page.js"])
async def test_forged_host_and_origin_are_refused(site, path):
    async with page_of(site) as page:
        own = f"127.0.0.1:{page.port}"
        for headers in (
            {"Host": "evil.example"},
            {"Host": "pi1.local"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://localhost:{page.port}"},
            {"Origin": f"http://{own}.evil.example"},
        ):
            code, text, _ = await ask(page, path, headers=headers)
            assert code == 403, headers
            assert "pi-1" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(site, method):
    async with page_of(site) as page:
        origin = {"Origin": f"http://127.0.0.1:{page.port}"}
        for path in ("/", "/federation", "/history", "/status", "/metrics"):
            code, _, _ = await ask(page, path, method=method, headers=origin)
            assert code == 405


FOR_EYES = ["/federation", "/history", "/status", "/metrics"]


@pytest.mark.parametrize("path", FOR_EYES)
async def test_under_a_name_nothing_is_told_without_the_token(site, path):
    """As a proxy on this machine asks for others elsewhere."""
    async with page_of(site, names=["pi1.local"]) as page:
        host = {"Host": "PI1.local:8480"}
        assert (await ask(page, path, headers=host))[0] == 401
        for wrong in ("Bearer ", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            assert (await ask(page, path, headers=host | {"Authorization": wrong}))[0] == 401
        assert (await ask(page, path, headers=host | {"Authorization": f"Bearer {TOKEN}"}))[0] == 200


@pytest.mark.parametrize(("peer", "may"), [("192.0.2.7", False), ("2001:db8::7", False), ("127.0.0.1", True)])
async def test_whoever_asks_from_another_machine_needs_the_token_whatever_host_it_names(peer, may):
    line = SimpleNamespace(get_extra_info={"peername": (peer, 5000)}.get, get_protocol=lambda: None)
    request = make_mocked_request("GET", "/status", headers={"Host": "127.0.0.1"}, transport=line)
    asked = []

    async def show(request):
        asked.append(request)

    with contextlib.nullcontext() if may else pytest.raises(HTTPUnauthorized):
        await Guard(listen=Address("0.0.0.0", 80)).check(request, show)
    assert len(asked) == may


async def test_the_page_itself_needs_no_token_to_ask_for_one(site):
    async with page_of(site, names=["pi1.local"]) as page:
        for path in FILES:
            assert (await ask(page, path, headers={"Host": "pi1.local"}))[0] == 200


async def test_the_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(site):
    async with page_of(site, names=["pi1.local"]) as page:
        own = {"Host": "pi1.local", "Origin": "http://pi1.local"}
        code, _, response = await ask(page, "/enter", method="POST", data=TOKEN, headers=own)
        cookie = response.headers["Set-Cookie"]
        assert code == 204
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert TOKEN not in cookie
        name_and_value = cookie.partition(";")[0]
        assert (await ask(page, "/federation", headers={"Host": "pi1.local", "Cookie": name_and_value}))[0] == 200
        other = name_and_value[:-1] + ("0" if name_and_value[-1] != "0" else "1")
        assert (await ask(page, "/federation", headers={"Host": "pi1.local", "Cookie": other}))[0] == 401


@pytest.mark.parametrize(
    ("said", "origin"),
    [("x", "http://pi1.local"), ("", "http://pi1.local"), (TOKEN, "http://evil.example"), (TOKEN, None)],
)
async def test_no_cookie_for_a_wrong_token_or_another_page(site, said, origin):
    async with page_of(site, names=["pi1.local"]) as page:
        headers = {"Host": "pi1.local"} | ({"Origin": origin} if origin else {})
        code, _, response = await ask(page, "/enter", method="POST", data=said, headers=headers)
    assert code == 403
    assert "Set-Cookie" not in response.headers


async def test_a_body_without_end_is_not_read(site):
    async with page_of(site) as page:
        own = {"Origin": f"http://127.0.0.1:{page.port}"}
        code, _, _ = await ask(page, "/enter", method="POST", data=b"x" * 100_000, headers=own)
    assert code in (403, 413)


async def test_each_start_without_a_token_makes_one_that_nobody_knows(site):
    async with StatusPage("127.0.0.1:0", dict, site=site, names=["a"]) as page:
        headers = {"Host": "a", "Authorization": "Bearer None"}
        assert (await ask(page, "/federation", headers=headers))[0] == 401


async def test_the_whole_view_is_made_once_for_all_who_ask_at_a_time_and_again_later(site, monkeypatch):
    async with page_of(site) as page:
        assert {(await ask(page, "/federation"))[1] for _ in range(5)} == {'{"number": 1}'}
        monkeypatch.setattr("p2pfl.features.status.page.VIEW_S", 0.0)
        assert (await ask(page, "/federation"))[1] == '{"number": 2}'
    assert site.wholes == 2


async def test_the_node_waits_with_its_end_for_open_pages_alone(site, monkeypatch):
    monkeypatch.setattr("p2pfl.features.status.page.LINGERS_S", 0.3)
    clock = asyncio.get_running_loop().time
    async with page_of(site) as page:
        began = clock()
        await page.conclude()
        assert clock() - began < 0.3
        await ask(page, "/federation")
        began = clock()
        await page.conclude()
        assert clock() - began >= 0.29


async def test_local_connections_push_out_nobody_who_has_the_token(site):
    async with page_of(site) as page:
        head = f"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        async with asyncio.timeout(20):
            writer.write(head)
            await reader.readuntil(b"}")
            others = [await asyncio.open_connection("127.0.0.1", page.port) for _ in range(3 * PAGE_CONNECTIONS)]
            await others[0][0].read()  # it was pushed out
            writer.write(head)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        for _, each in [*others, (reader, writer)]:
            each.transport.abort()


BROKEN = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /%s HTTP/1.1\r\n\r\n" % (b"a" * 9000),
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /enter HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n1\r\nx\r\n0\r\n\r\n",
]


async def test_broken_requests_are_one_line_and_a_count(site, caplog):
    async with page_of(site) as page:
        for said in 3 * BROKEN:
            reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
            writer.write(said)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 20)
            writer.close()
        assert [record.exc_info for record in caplog.records] == [None]
        page._refusals.begin_hour()
        assert "strangers" in caplog.records[-1].getMessage()


async def test_a_fault_of_ours_is_told_with_its_traceback(caplog):
    def status():
        raise ZeroDivisionError

    async with StatusPage("127.0.0.1:0", status) as page:
        assert (await ask(page, "/status"))[0] == 500
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


@pytest.mark.parametrize(
    "name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via"]
)
async def test_who_comes_through_a_proxy_of_this_machine_needs_the_token(site, name):
    """Some proxies pass on the name of this machine in place of the one that was asked for."""
    async with aiohttp.ClientSession() as http, page_of(site) as page:
        url = f"http://127.0.0.1:{page.port}/status"
        assert (await http.get(url)).status == 200
        assert (await http.get(url, headers={name: "192.0.2.7"})).status in (401, 403)


def nginx(document, said):
    """The headers that nginx sends on by the example: it leaves out what is not set, but for its own Host."""
    values = {"$http_host": said["Host"], "$remote_addr": "192.0.2.7"}
    text = document.read_text(encoding="utf-8")
    return said | {name: values[value] for name, value in re.findall(r"proxy_set_header (\S+) (\S+);", text)}


@pytest.mark.parametrize("host", ["pi1.local", "pi1.local:8443", "localhost", "127.0.0.1:8480"])
async def test_behind_the_proxy_of_the_docs_all_need_the_token_and_get_a_cookie_for_it(site, host):
    """Also who asks the proxy for this machine: it passes on whatever name was asked for."""
    document = Path(__file__).parents[2] / "docs" / "how-to" / "monitoring.md"
    async with page_of(site, names=["pi1.local"]) as page:
        for path in FOR_EYES:
            assert (await ask(page, path, headers=nginx(document, {"Host": host})))[0] == 401
        enter = nginx(document, {"Host": host}) | {"Origin": f"https://{host}"}
        code, _, response = await ask(page, "/enter", method="POST", data=TOKEN, headers=enter)
        assert code == 204
        cookie = {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}
        assert (await ask(page, "/federation", headers=nginx(document, {"Host": host}) | cookie))[0] == 200


async def test_bytes_that_are_no_text_are_no_token(site):
    async with page_of(site) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        head = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nVia: x\r\nConnection: close\r\n"
        writer.write(head + b"Authorization: Bearer \xff\r\nCookie: p2pfl-%d=\xff\r\n\r\n" % page.port)
        async with asyncio.timeout(20):
            said = await reader.read()
        assert said.split(b" ")[1] in (b"400", b"401", b"403")
        writer.close()
