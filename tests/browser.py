"""A headless Chromium, driven over its debugging protocol: a page is opened, looked at, and everything it said is kept.

Debian's package `chromium` is enough; where there is none, `found` is None.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PATIENCE_S = 60.0
found = shutil.which("chromium") or shutil.which("chromium-browser")


class CallError(Exception):
    """The browser could not do it, as when the page became another one meanwhile."""


class Page:
    """One tab. `requests` are the addresses of all that it asked for, `complaints` what stands in its console."""

    def __init__(self, socket):
        self.socket = socket
        self.requests = []
        self.complaints = []
        self.statuses = {}
        self._numbers = itertools.count(1)
        self._answers = {}
        self._reader = asyncio.create_task(self._read())

    async def _read(self):
        async for message in self.socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said["params"])

    def _note(self, method, params):
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Network.responseReceived":
                self.statuses[params["response"]["url"]] = params["response"]["status"]
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(str([argument.get("value") for argument in params["args"]]))

    async def call(self, method, **params):
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": params})
        said = await asyncio.wait_for(self._answers[number], PATIENCE_S)
        if "error" in said:
            raise CallError(said["error"]["message"])
        return said["result"]

    async def evaluate(self, expression):
        """The value of JavaScript in the page, a promise's once it is kept."""
        said = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def open(self, url, *, width=1280, height=900, dark=False, phone=False):
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])
        await self.call("Page.navigate", url=url)

    async def until(self, expression):
        """The page may be another one in between: what cannot be asked is not so yet."""
        asked = f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(CallError):
                    if await self.evaluate(asked):
                        return
                await asyncio.sleep(0.05)

    async def picture(self, path, *, whole=True):
        said = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(said["data"]))  # noqa: ASYNC240 - a picture for a person


@asynccontextmanager
async def browser(folder):
    """A browser with a profile of its own in `folder`; gives a function that opens a new page."""
    process = await asyncio.create_subprocess_exec(
        found,
        *OPTIONS,
        f"--user-data-dir={folder}",
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as http:
            port = await asyncio.wait_for(_port(process), PATIENCE_S)
            yield lambda: _page(http, port)
    finally:
        process.kill()
        await process.communicate()


async def _port(process):
    while line := await process.stderr.readline():
        if match := re.search(rb"DevTools listening on ws://[^:]*:(\d+)/", line):
            return int(match[1])
    raise AssertionError("the browser ended")


async def _page(http, port):
    async with http.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
        target = await answer.json()
    socket = await http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
    page = Page(socket)
    for domain in ("Page", "Network", "Log", "Runtime"):
        await page.call(f"{domain}.enable")
    return page
