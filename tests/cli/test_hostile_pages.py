"""What another machine sends reaches a terminal as printable text alone, or as one line that it is no status."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import KNOWN
from test_status import SAID

from p2pfl.console.output import log_to_stderr
from p2pfl.features.status import NOT_A_NODE

ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\n\u202e"
NESTED = b"[" * 100_000 + b"]" * 100_000
NEIGHBOR = {"name": ESCAPES, "compressor": ESCAPES, "kept": 0.1, "faults": {ESCAPES: 3}}


@contextmanager
def saying(content):
    """Gives the address of a page that answers everything with this."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, args=(0.01,)).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def with_escapes(value):
    """The same JSON, with escapes in each text and name that may have them."""
    match value:
        case str():
            return ESCAPES + value
        case list():
            return [with_escapes(each) for each in value]
        case dict():
            return {key: with_escapes(each) for key, each in value.items()}
    return value


def is_plain(text):
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("command", ["status", "watch"])
def test_escapes_in_a_page_do_not_reach_the_terminal(p2pfl, command, form):
    said = SAID | {"disk_refuses": "x", "neighbors": [NEIGHBOR], "metrics": {ESCAPES: 0.5}, "alarms": {ESCAPES: 2}}
    page = said | KNOWN | {"measures": [{"name": "f1", "label": "f1"}]}
    with saying(json.dumps(with_escapes(page)).encode()) as address:
        outcome = p2pfl(command, address, "--format", form)
    assert outcome.code == 0
    assert "owned" in outcome.out
    assert is_plain(outcome.out + outcome.err)


@pytest.mark.parametrize(
    "content",
    [
        NESTED,
        b'{"node": "a", "phase": "b", "rounds": 1, "x": ' + NESTED + b"}",
        json.dumps({key: value for key, value in KNOWN.items() if key != "alarms"}).encode(),
        json.dumps(KNOWN | {"members": [{"name": "a"}]}).encode(),
        json.dumps(KNOWN | {"alarms": [{"kind": "storage"}], "phase": 3, "rounds": 10**400}).encode(),
        b"\xff{}",
    ],
)
def test_what_is_no_status_is_one_line(p2pfl, content):
    with saying(content) as address:
        shown, watched = p2pfl("status", address), p2pfl("watch", address)
    assert (shown.code, watched.code) == (1, 1)
    assert NOT_A_NODE in shown.out
    assert watched.err == f"error: http://{address}: {NOT_A_NODE}\n"


def whole(known):
    """Every place in the JSON, to be replaced."""
    yield ()
    for key, value in known.items() if isinstance(known, dict) else enumerate(known) if isinstance(known, list) else ():
        yield from ((key, *place) for place in whole(value))


PAGE = SAID | KNOWN | {"privacy": {"epsilon": 1.0, "unit": "record", "budget": 8.0, "delta": 1e-5, "rounds_left": 3}}
VALUES = st.sampled_from([None, True, -1, 2.5, 1e308, 2**63, "\x1b[2J", [], {}, [[]], [None], {"\x1b": None}])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(whole(PAGE))[1:]), VALUES)
def test_no_value_anywhere_in_a_page_stops_its_readers(p2pfl, place, value):
    page = json.loads(json.dumps(PAGE))
    at = page
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    with saying(json.dumps(page).encode()) as address:
        for command in ("status", "watch"):
            outcome = p2pfl(command, address)
            assert outcome.code in (0, 1)
            assert is_plain(outcome.out + outcome.err)


def test_what_a_peer_has_written_is_one_printable_line_in_a_log(capsys, monkeypatch):
    root, notice = logging.getLogger(), logging.getLogger("p2pfl.notice")
    levels = root.level, notice.level
    monkeypatch.setattr(root, "handlers", [])
    try:
        log_to_stderr("%(levelname)s %(message)s")
        notice.info("it says %s", f"no{ESCAPES}INFO all is well")
    finally:
        root.setLevel(levels[0]), notice.setLevel(levels[1])
    assert capsys.readouterr().err == "INFO it says no?]0;owned??[2J???INFO all is well\n"
