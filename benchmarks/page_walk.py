"""Pictures of the page of one board while another is killed, a third loses its cable, and the others end.

    python benchmarks/page_walk.py walk-out [--nodes 5]

Five boards (or more) are network namespaces of this machine (root, iproute2) with real nodes; the page is pi1's, in
Chromium. Each event has pictures at its second, 5 and 15 s later, on a desk and on a phone, light and dark; beside them
`walk.txt`: the text of the page at each moment, and the output of `p2pfl status` after the end.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import browser
from lan_in_a_box import Host, Lan, why_not

P2PFL = (sys.executable, "-m", "p2pfl")
PORT, PAGE = 8470, "127.0.0.1:8480"
DESK = {"width": 1180, "height": 900, "phone": False}
PHONE = {"width": 390, "height": 844, "phone": True}
AFTER_S = (0.0, 5.0, 15.0)
SAYS = """[document.title, document.getElementById('connection').textContent,
    document.querySelector('.tile .more').textContent,
    [...document.querySelectorAll('.edge')].map(one => one.getAttribute('class').split(' ')[1]).join(' ')
    ].join(' | ')"""


class Eyes:
    """A browser on one board, with four tabs; runs in that board's namespace as a process of its own."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._process = host.start(
            sys.executable,
            __file__,
            "--shoot",
            f"http://{PAGE}/",
            folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.answer()

    def answer(self) -> str:
        out: IO[bytes] | None = self._process.stdout
        if out is None:
            raise AssertionError("no pipe")
        return out.readline().decode().strip()

    def shoot(self, name: str) -> str:
        """Take four pictures; return the text of the page."""
        if self._process.stdin is None:
            raise AssertionError("no pipe")
        self._process.stdin.write(f"{name}\n".encode())
        self._process.stdin.flush()
        return self.answer()


async def shoot(url: str, folder: Path) -> None:
    """Take, in the board's namespace, a picture of each tab for each line of standard input."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with browser.browser(profile) as new:
            tabs = {}
            for dark in (False, True):
                for form in (DESK, PHONE):
                    tab = tabs[f"{'phone' if form['phone'] else 'desk'}-{'dark' if dark else 'light'}"] = await new()
                    await tab.open(url, dark=dark, **form)
                    await tab.until("document.querySelectorAll('.node').length > 0")
            print("ready", flush=True)
            while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
                said = await tabs["desk-light"].evaluate(SAYS)
                for kind, tab in tabs.items():
                    await tab.call("Page.bringToFront")  # nothing is drawn behind another tab
                    await tab.picture(folder / f"{name}-{kind}.png")
                print(said, flush=True)


def walk(folder: Path, count: int) -> None:
    ward, lines = folder / "ward", list[str]()
    with Lan() as lan:
        hosts = {name: lan.host(name) for name in (f"pi{number}" for number in range(1, count + 1))}
        _make(ward, hosts)
        nodes = {name: _start(hosts[name], ward, name, folder) for name in hosts}
        time.sleep(2.4 * count)
        eyes = Eyes(hosts["pi1"], folder)
        began = time.monotonic()

        def look(name: str) -> None:
            asked = time.monotonic()
            lines.append(f"{asked - began:6.1f} s  {name}: {eyes.shoot(name)}")
            print(lines[-1], flush=True)

        def follow(event: str) -> None:
            at = time.monotonic()
            for after in AFTER_S:
                time.sleep(max(0.0, at + after - time.monotonic()))
                look(f"{event}-{after:02.0f}s")

        look("before")
        nodes["pi4"].kill()
        nodes["pi4"].wait()
        follow("killed")
        hosts["pi3"].pull()
        follow("pulled")
        hosts["pi3"].plug()
        time.sleep(20.0)
        look("plugged")
        nodes["pi1"].wait(timeout=400)
        time.sleep(2.0)
        look("ended")
        codes = {name: nodes[name].wait(timeout=120) for name in nodes}
        for command in ("status", "watch"):
            done = hosts["pi1"].run(*P2PFL, command, ward)
            lines.append(f"\np2pfl {command} ward: exit {done.returncode}\n{done.stdout}{done.stderr}")
        lines.append(f"exit codes: {codes}")
    (folder / "walk.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[-3:]))


def _make(ward: Path, hosts: dict[str, Host]) -> None:
    subprocess.run([*P2PFL, "new", str(ward), "--nodes", ",".join(hosts)], check=True, capture_output=True)
    file = ward / "federation.toml"
    text = file.read_text(encoding="utf-8").replace("rounds = 40", f"time_s = {75 + 3 * len(hosts)}")
    for place, name in enumerate(hosts):
        text = text.replace(f'"127.0.0.1:{PORT + place}"', f'"{hosts[name].ipv4}:{PORT}"')
        settings = f'[node]\nlisten = "0.0.0.0:{PORT}"\nstatus_listen = "{PAGE}"\n'
        (ward / name / "node.toml").write_text(settings, encoding="utf-8")
    file.write_text(text, encoding="utf-8")


def _start(host: Host, ward: Path, name: str, folder: Path) -> subprocess.Popen[bytes]:
    log = (folder / f"{name}.log").open("wb")
    return host.start(*P2PFL, "run", ward, "--node", name, stdout=log, stderr=log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=5, help="how many boards (%(default)s)")
    parser.add_argument("--shoot", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shoot:
        asyncio.run(shoot(options.shoot, options.folder))
        return
    if reason := why_not() or (None if browser.found else "there is no Chromium"):
        sys.exit(f"no walk: {reason}")
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    walk(options.folder.absolute(), options.nodes)


if __name__ == "__main__":
    main()
