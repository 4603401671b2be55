"""`p2pfl status`: asks running nodes what they are doing, each by its status page.

A folder stands for the nodes of its federation that run on this machine: each has written its ports beside its state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from p2pfl.cli.output import Form, figure, footnote, format_option, write_rows
from p2pfl.errors import UserError

PATH = "/status"
TIMEOUT_S = 5.0
MOST_BYTES = 16 << 20
AT_ONCE = 32
ALLOWED = "http://HOST:PORT or HOST:PORT, as the node's log says with `p2pfl run -v`; or a federation's folder"
NOT_HERE = "does not run on this machine"
SELDOM = ("rule", "liars_borne", "rounds_alone", "held_against", "kept", "pace_set_by")
"""Columns of robust rules, and of who sets the pace: a table leaves out those in which no node says anything."""
TOLD_BELOW = ("tested_round", "test_is_stale", "disk_refuses")
NOT_A_NODE = "not the status of a node"


@click.command(epilog="\b\nExample:\n  p2pfl status ward-7\n  p2pfl status 127.0.0.1:43211 http://pi2:8480")
@click.argument("urls", metavar="URL|FOLDER...", nargs=-1, required=True)
@format_option("table", "json", "csv")
def status(*, urls: tuple[str, ...], form: Form) -> int:
    """Show what running nodes are doing.

    URL is where a node's status page is: `status_listen` in its node.toml. FOLDER is that of a federation, and stands
    for its nodes on this machine. Exits with 1 if a node does not answer.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - `--help` stays instant

    targets = [target for url in urls for target in _targets(url)]
    with ThreadPoolExecutor(min(AT_ONCE, len(targets))) as pool:
        answers = list(pool.map(lambda target: NOT_HERE if target[1] is None else _ask(target[1]), targets))
    rows = [_row(shown, answer) for (shown, _), answer in zip(targets, answers, strict=True)]
    write_rows(rows if form == "json" else _shown([_flat(row) for row in rows], form), form)
    if form == "table":
        for note in _notes(rows):
            click.echo(note)
    return int(any(isinstance(answer, str) for answer in answers))


def _targets(url: str) -> list[tuple[str, str | None]]:
    """What is shown as the address of each node that is meant, and where its status page is."""
    return _nodes_of(Path(url)) if url and Path(url).exists() else [(url, _place(url))]


def _nodes_of(folder: Path) -> list[tuple[str, str | None]]:
    """Each node of the federation that has a folder here. Shown by its name, and None, where it does not run."""
    from p2pfl.config.load import load_config, load_node, node_file  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.runtime.whereabouts import find  # noqa: PLC0415 - as above

    federation = load_config(folder)
    found: list[tuple[str, str | None]] = []
    all_files = [node_file(federation, member.name) for member in federation.members]
    here_files = [file for file in all_files if file.parent.is_dir()]
    for file in here_files or all_files:
        here = find(load_node(file, federation).state_dir)
        if here is None or here.status is None:
            found.append((file.parent.name, None))
        else:
            found.append((here.status, _place(here.status)))
    return found


def _place(url: str) -> str:
    """The address of the status page."""
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
    """The node's status, or why it did not answer."""
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
        "tested_round": said.get("tested_round"),
        "test_is_stale": said.get("test_is_stale"),
        "loss": said.get("loss"),
        "staleness": staleness.get("mean") if isinstance(staleness, dict) else None,
        "peers": said.get("peers"),
        "pace_set_by": said.get("pace_set_by"),
        "rule": said.get("rule"),
        "liars_borne": said.get("liars_borne"),
        "rounds_alone": said.get("rounds_alone"),
        "held_against": _held(said.get("neighbors")),
        "kept": _of_each(said.get("neighbors"), "kept", int | float),
        "bytes_sent": said.get("bytes_sent"),
        "compressors": _of_each(said.get("neighbors"), "compressor", str),
        "distance": said.get("neighbor_distance"),
        "alarms": said.get("alarms"),
        "disk_refuses": said.get("disk_refuses"),
    }


def _of_each(neighbors: Any, key: str, kind: Any) -> dict[str, Any] | None:
    """The values by neighbor, for those of which the node reports one."""
    if not isinstance(neighbors, list):
        return None
    named = [one for one in neighbors if isinstance(one, dict) and "name" in one]
    return {str(one["name"]): one[key] for one in named if isinstance(one.get(key), kind)}


def _held(neighbors: Any) -> dict[str, dict[str, Any]] | None:
    """By neighbor of which the node has proven faults: its standing from 0 to 1, these by kind, and its quarantine."""
    if not isinstance(neighbors, list):
        return None
    keys = ("standing", "faults", "quarantined_s", "probation")
    found = [one for one in neighbors if isinstance(one, dict) and isinstance(one.get("faults"), dict)]
    return {str(one.get("name")): {key: one.get(key) for key in keys} for one in found if one["faults"]}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Neighbors are named only where they do not all get the same; of what the rule kept, the least."""
    alarms, compressors = row["alarms"], row["compressors"] or {}
    told = ", ".join(f"{kind} {count}" for kind, count in alarms.items()) if isinstance(alarms, dict) else None
    alike = len(set(compressors.values())) == 1
    each = sorted(set(compressors.values())) if alike else [f"{name} {spec}" for name, spec in compressors.items()]
    against = [_accused(name, held) for name, held in (row["held_against"] or {}).items()]
    least = min((row["kept"] or {}).items(), key=lambda item: item[1], default=None)
    return row | {
        "alarms": told,
        "compressors": ", ".join(each) or None,
        "held_against": ", ".join(against) or None,
        "kept": least and f"{least[0]} {least[1]:.2g}",
    }


def _shown(rows: list[dict[str, Any]], form: Form) -> list[dict[str, Any]]:
    """A table leaves out the columns of `SELDOM` in which no node says anything, and has stars for old tests."""
    quiet = (None, "mean", 0)
    if form != "table":
        return rows
    empty = {key for key in SELDOM if all(row[key] in quiet for row in rows)} | set(TOLD_BELOW)
    rows = [row | {"accuracy": figure(row["accuracy"], stale=True)} if row["test_is_stale"] else row for row in rows]
    return [{key: value for key, value in row.items() if key not in empty} for row in rows]


def _notes(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What has no column of its own in a table: whose test is old, whose disk refuses."""
    for row in rows:
        of = row["of"] or row["round"]
        accuracy, stale, after = row["accuracy"], row["test_is_stale"], row["tested_round"]
        if note := footnote(row["node"], accuracy=accuracy, stale=stale, after=after, of=of):
            yield note
        if row["disk_refuses"]:
            yield f"{row['node']}: {row['disk_refuses']}"


def _accused(name: str, held: dict[str, Any]) -> str:
    kinds = " ".join(f"{kind} {count}" for kind, count in held["faults"].items())
    left_s = held["quarantined_s"]
    away = f", quarantined for {left_s:.0f} s" if isinstance(left_s, int | float) and left_s > 0 else ""
    return f"{name} ({kinds}{away})"
