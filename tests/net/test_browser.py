"""The page in a real browser: it shows what there is, complains about nothing, and asks nobody else."""

from __future__ import annotations

from contextlib import asynccontextmanager

import browser
import pytest
from page_site import Made

from p2pfl.features.status import StatusPage

pytestmark = pytest.mark.skipif(browser.found is None, reason="needs Chromium (Debian: apt install chromium)")

DRAWN = "document.querySelectorAll('.curve canvas').length === 4 && document.querySelectorAll('.node').length > 0"
ROWS = "document.querySelectorAll('#members tbody tr').length"
DISTANCES = """import('/curves.js').then(({ Curves }) => {
  const place = document.createElement('div');
  document.body.append(place);
  const none = [[null], [null]];
  const figures = { main: none, distance: [[0.02], [0.9]], staleness: none, bytes_per_s: none };
  new Curves(place).start({ members: true, times: [1, 2], figures }, () => 'pi0', 0, null);
})"""
"""Curves of distances for which not every line of their scale has room for a number."""


@asynccontextmanager
async def shown(made, folder, **options):
    """A page of a federation that does not run, and a tab in which nothing is open yet."""
    async with (
        StatusPage("127.0.0.1:0", dict, site=made.display.overview, **options) as page,
        browser.browser(folder) as new,
    ):
        yield page, await new()


@pytest.mark.slow
async def test_the_page_shows_the_federation_live_and_asks_nobody_else(tmp_path):
    made = Made(5, fast=20.0)
    for _ in range(3):
        made.display.overview.curves.step_s = 0.0
        made.pass_time(3.0)
    async with shown(made, tmp_path) as (page, tab):
        await tab.open(f"http://127.0.0.1:{page.port}/")
        await tab.until(DRAWN)
        assert await tab.evaluate(ROWS) == 5
        assert await tab.evaluate("document.querySelectorAll('.edge').length") == 5
        made.alarm("neighbor-lost", 1, "<img src=x onerror=alert(1)>")
        made.pass_time(3.0)
        await tab.until("document.querySelectorAll('.alarm').length === 1")
        text = await tab.evaluate("document.querySelector('.alarm').innerText")
        assert "<img src=x" in text, "what others have said is text"
        assert "Goes on with the other neighbors" in text
        await tab.evaluate("document.querySelectorAll('.node')[2].dispatchEvent(new MouseEvent('click'))")
        await tab.until("document.querySelector('#member b').textContent === 'pi3'")
        await tab.evaluate(DISTANCES)
        await tab.open(f"http://127.0.0.1:{page.port}/", width=390, height=844, dark=True, phone=True)
        await tab.until(DRAWN)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 390, "a phone need not scroll sideways"
        assert tab.complaints == []
        assert {url.split("/")[2] for url in tab.requests if url.startswith("http")} == {f"127.0.0.1:{page.port}"}
        assert not [url for url in tab.requests if not url.startswith(("http", "about"))]


@pytest.mark.long
@pytest.mark.slow
async def test_who_is_not_heard_is_seen_from_afar_and_how_it_ended_stays(tmp_path):
    """Title, icon, tile and first row; and once the process is gone the page keeps its last state and says so."""
    made = Made(5)
    made.pass_time(3.0)
    async with browser.browser(tmp_path) as new:
        tab = await new()
        async with StatusPage("127.0.0.1:0", dict, site=made.display.overview) as page:
            await tab.open(f"http://127.0.0.1:{page.port}/")
            await tab.until(DRAWN)
            assert await tab.evaluate("document.title") == "ward-7 · p2pfl"
            made.silent.add(1)
            made.source = 4
            made.lose(1)
            for _ in range(4):
                made.pass_time(2.5)
            await tab.until("document.title === '1 not heard · ward-7 · p2pfl'")
            assert await tab.evaluate("document.getElementById('icon').getAttribute('href')") == "/icon-wrong.svg"
            assert "1 not heard" in await tab.evaluate("document.querySelector('.tile .more').textContent")
            assert await tab.evaluate("document.querySelector('#members tbody tr td').textContent") == "pi2"
            await tab.until("document.querySelectorAll('.edge.cut').length === 2")
            made.rounds[0] = 10_000.0
            made.display.see_end()
            await page.conclude()
        await tab.until("document.title === 'finished · ward-7 · p2pfl'")
        said = await tab.evaluate("document.getElementById('connection').textContent")
        assert said.startswith("finished at ")
        assert ", accuracy 0." in said
        assert "not heard from at the end: " in said
        assert await tab.evaluate(ROWS) == 5
        assert "no answer" not in await tab.evaluate("document.body.innerText")


@pytest.mark.slow
async def test_the_policy_holds_in_a_browser_and_the_link_with_the_token_opens_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr("p2pfl.features.status.page.Guard._is_here", lambda *_: False)  # as from another machine
    made = Made(5)
    made.pass_time(3.0)
    async with shown(made, tmp_path, token="a-token-of-a-test") as (page, tab):
        place = f"http://127.0.0.1:{page.port}"
        await tab.open(f"{place}/")
        await tab.until("document.querySelector('#message').innerText.includes('link')")
        await tab.open(f"{place}/#a-token-of-a-test")
        await tab.until(DRAWN)
        assert await tab.evaluate("location.href") == f"{place}/", "the token is nowhere to be seen"
        assert await tab.evaluate("document.cookie") == ""
        await tab.evaluate(
            "let s = document.createElement('script'); s.textContent = 'window.hurt = 1'; document.body.append(s);"
            "document.body.setAttribute('style', 'display: none'); 0"
        )
        assert await tab.evaluate("window.hurt") is None
        assert await tab.evaluate("getComputedStyle(document.body).display") == "block"
        blocked = await tab.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'blocked')")
        assert blocked == "blocked"
        assert any("Content Security Policy" in line for line in tab.complaints)


@pytest.mark.long
@pytest.mark.slow
async def test_two_hundred_members_are_drawn(tmp_path):
    made = Made(200)
    made.pass_time(100.0)
    async with shown(made, tmp_path) as (page, tab):
        await tab.open(f"http://127.0.0.1:{page.port}/")
        await tab.until(f"{DRAWN} && {ROWS} === 200")
        await tab.evaluate("document.querySelectorAll('tbody tr')[150].click()")
        await tab.until("document.querySelector('#member b').textContent.startsWith('pi')")
        assert tab.complaints == []
