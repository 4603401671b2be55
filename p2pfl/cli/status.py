"""`p2pfl status`: asks running nodes what they are doing, each by its status page."""

from __future__ import annotations

import json
from typing import Any

import click

from p2pfl.cli.output import Form, format_option, write_rows
from p2pfl.errors import UserError

PATH = "/status"
TIMEOUT_S = 5.0
MOST_BYTES = 16 << 20
AT_ONCE = 32
ALLOWED = "http://HOST:PORT or HOST:PORT, as the node's log says with `p2pfl run -v`"
NOT_A_NODE = "not the status of a node"


@click.command(epilog="\b\nExample:\n  p2pfl status 127.0.0.1:43211 http://pi2:8480")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@format_option("table", "json", "csv")
def status(*, urls: tuple[str, ...], form: Form) -> int:
    """Say what running nodes are doing.

    URL is where a node's status page is: `status_listen` in its node.toml. Exits with 1 if a node does not answer.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - `--help` stays instant

    places = [_place(url) for url in urls]
    with ThreadPoolExecutor(min(AT_ONCE, len(places))) as pool:
        answers = list(pool.map(_ask, places))
    rows = [_row(url, answer) for url, answer in zip(urls, answers, strict=True)]
    write_rows(rows if form == "json" else [_flat(row) for row in rows], form)
    return int(any(isinstance(answer, str) for answer in answers))


def _place(url: str) -> str:
    """The address of the page itself."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - `--help` stays instant

    text = url if "//" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "http" and parts.hostname and parts.port
    except ValueError:
        usable = False
    if not usable or parts.path.rstrip("/") not in ("", PATH) or parts.query or parts.fragment or parts.username:
        raise UserError("not the address of a node's status page", key="URL", value=url, allowed=ALLOWED)
    return f"http://{parts.netloc}{PATH}"


def _ask(place: str) -> dict[str, Any] | str:
    """What the node says, or why it does not."""
    from http.client import HTTPException  # noqa: PLC0415 - `--help` stays instant
    from urllib.error import HTTPError, URLError  # noqa: PLC0415 - as above
    from urllib.request import ProxyHandler, build_opener  # noqa: PLC0415 - as above

    try:
        with build_opener(ProxyHandler({})).open(place, timeout=TIMEOUT_S) as answer:
            said = json.loads(answer.read(MOST_BYTES))
    except HTTPError as error:
        return f"{NOT_A_NODE}: HTTP {error.code}"
    except URLError as error:
        return _reason(error.reason)
    except OSError as error:
        return _reason(error)
    except (HTTPException, ValueError):
        return NOT_A_NODE
    return said if isinstance(said, dict) and {"node", "phase", "rounds"} <= said.keys() else NOT_A_NODE


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {TIMEOUT_S:g} s"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _row(url: str, answer: dict[str, Any] | str) -> dict[str, Any]:
    said: dict[str, Any] = {} if isinstance(answer, str) else answer
    staleness = said.get("staleness")
    return {
        "url": url,
        "node": said.get("node"),
        "phase": answer if isinstance(answer, str) else said["phase"],
        "round": said.get("rounds"),
        "of": said.get("rounds_to_do"),
        "accuracy": said.get("accuracy"),
        "loss": said.get("loss"),
        "staleness": staleness.get("mean") if isinstance(staleness, dict) else None,
        "peers": said.get("peers"),
        "bytes_sent": said.get("bytes_sent"),
        "compressors": _compressors(said.get("neighbors")),
        "distance": said.get("neighbor_distance"),
        "alarms": said.get("alarms"),
    }


def _compressors(neighbors: Any) -> dict[str, str] | None:
    """By neighbor, as far as the node says so."""
    if not isinstance(neighbors, list):
        return None
    return {
        str(one["name"]): str(one["compressor"])
        for one in neighbors
        if isinstance(one, dict) and {"name", "compressor"} <= one.keys()
    }


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Neighbors are named only where they do not all get the same."""
    alarms, compressors = row["alarms"], row["compressors"] or {}
    told = ", ".join(f"{kind} {count}" for kind, count in alarms.items()) if isinstance(alarms, dict) else None
    alike = len(set(compressors.values())) == 1
    each = sorted(set(compressors.values())) if alike else [f"{name} {spec}" for name, spec in compressors.items()]
    return row | {"alarms": told, "compressors": ", ".join(each) or None}
