"""Pictures of the page with five and with two hundred members, light and dark, on a desk and on a phone.

    python benchmarks/page_shots.py docs/images

The members are those of `page_site.py`, after seven minutes in which some of them have had trouble. It needs
Chromium (Debian: apt install chromium) and Pillow.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import browser
import numpy as np
from page_site import Made
from PIL import Image

from p2pfl.features.status.page_server import StatusPage

LONG_S = 440
TROUBLE_S = 150
"""Seconds since the trouble began: a member is quiet after 255 s without a row, among five members after 21 s."""
DESK = {"width": 1180, "height": 900, "phone": False}
COLORS = 256
DOT_PIXELS = 20
"""The number of pixels of one color beyond which more do not count."""
PHONE = {"width": 390, "height": 844, "phone": True}
DRAWN = "document.querySelectorAll('.curve canvas').length === 4 && document.querySelectorAll('.node').length > 0"


class Clock:
    """Stands for `time.monotonic`: the past passes in a moment, and then time goes on as usual."""

    def __init__(self, behind_s: float) -> None:
        self.behind_s, self._real = behind_s, time.monotonic

    def __call__(self) -> float:
        return self._real() - self.behind_s


def made(nodes: int, clock: Clock, *, private: bool = False) -> Made:
    """Make a federation in which some time ago one member, or three, went away; one has a neighbor without a session,
    one a full disk.
    """
    clock.behind_s = LONG_S
    found = Made(nodes, private=private)
    found.feed.tell("started", None, "this node has started for the first time")
    silent = {4} if nodes < 20 else {17, 54, 120}
    began = TROUBLE_S if nodes < 20 else 2 * TROUBLE_S
    for second in range(LONG_S):
        if LONG_S - second == began:
            found.silent |= silent
            found.wrong = {3: ("neighbor-lost",)} if nodes < 20 else {20: ("disk-low",), 77: ("neighbor-lost",)}
            if nodes < 20:
                found.lose(4)
                found.feed.tell("neighbor-away", 4, "connection lost: reset", wrong=False)
        if nodes < 20 and LONG_S - second == began - 15:
            found.alarm("neighbor-lost", 4, "no session for 15 s, since connection lost: reset")
        found.pass_time(1.0)
        clock.behind_s -= 1.0
    return found


async def shoot(found: Made, nodes: int, folder: Path) -> None:
    kind = "private" if found.private else str(nodes)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with (
            StatusPage("127.0.0.1:0", dict, site=found.display.overview) as page,
            browser.browser(profile) as new,
        ):
            for dark in (False, True):
                for form in (DESK, PHONE):
                    tab = await new()
                    name = f"page-{kind}{'-phone' if form['phone'] else ''}-{'dark' if dark else 'light'}.png"
                    await tab.open(f"http://127.0.0.1:{page.port}/", dark=dark, **form)
                    await tab.until(DRAWN)
                    await tab.until("document.getAnimations().every(one => one.playState !== 'running')")
                    await tab.picture(folder / name, whole=not form["phone"])
                    shrink(folder / name)
                    print(folder / name, "; ".join(tab.complaints) or "nothing in the console")


def shrink(path: Path) -> None:
    """Reduce to a palette of 256: the most frequent colors, and those that are farthest from them, as a legend's few
    dots.
    """
    picture = Image.open(path).convert("RGB")
    pixels = np.asarray(picture).reshape(-1, 3)
    shades, where, count = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    shades = shades.astype(np.int32)
    chosen = list(np.argsort(-count)[: COLORS // 2])
    off = np.min([((shades - shades[one]) ** 2).sum(axis=1) for one in chosen], axis=0)
    while len(chosen) < min(COLORS, len(shades)):
        chosen.append(int(np.argmax(off * np.minimum(count, DOT_PIXELS))))
        off = np.minimum(off, ((shades - shades[chosen[-1]]) ** 2).sum(axis=1))
    kept = shades[chosen]
    nearest = [int(np.argmin(((kept - shade) ** 2).sum(axis=1))) for shade in shades]
    small = Image.fromarray(np.array(nearest, np.uint8)[where.ravel()].reshape(picture.height, picture.width), "P")
    small.putpalette(kept.astype(np.uint8).tobytes())
    small.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5, 200])
    parser.add_argument("--private", action="store_true", help="members with a privacy budget, who tell no score")
    options = parser.parse_args()
    if browser.found is None:
        parser.error("there is no Chromium (Debian: apt install chromium)")
    options.folder.mkdir(parents=True, exist_ok=True)
    for nodes in options.nodes:
        clock = Clock(0.0)
        time.monotonic = clock  # type: ignore[assignment]
        asyncio.run(shoot(made(nodes, clock, private=options.private), nodes, options.folder))


if __name__ == "__main__":
    main()
