"""`p2pfl status`: ask running nodes, each at its status page, what they are doing.

`p2pfl watch`: show the whole federation in a terminal, as one node knows it. In a pipe, show it once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, age, cell, format_option, size, spent_text, table_console, write_json, write_rows
from p2pfl.errors import P2PFLError
from p2pfl.features.status.running import (
    NOT_HERE,
    REPLACED,
    LocalMember,
    PageAddress,
    ask_federation,
    ask_status,
    is_folder,
    place_of,
    read_folder,
    scores_of,
)
from p2pfl.foreign import printable

if TYPE_CHECKING:
    from rich.console import Console

AT_ONCE = 32
EVERY_S = 1.0
DETAILS = (
    *("url", "loss", "alarms", "disk_refuses", "disk_bytes_a_day", "pace_set_by", "rule"),
    *("liars_borne", "rounds_alone", "held_against", "kept", "device"),
)
"""The fields without a column in the overview."""
WORDS = {"url": "at", "loss": "training loss", "disk_refuses": "disk", "disk_bytes_a_day": "written a day:"}
"""The words before a field that are not its name."""
COLUMNS = (
    *("url", "node", "phase", "round", "of", "accuracy", "metric", "main", "metrics", "tested_round", "test_is_stale"),
    *("loss", "staleness", "peers", "pace_set_by", "rule", "liars_borne", "rounds_alone", "held_against", "kept"),
    *("bytes_sent", "distance", "alarms", "standing_alarms", "disk_refuses", "disk_bytes_a_day"),
    *("device", "privacy"),
)
HIDDEN = ("well", "federation", "measures")
"""The fields of a row that only the overview uses."""
PIPE_WIDTH = 100
DAY_S, LEAST_UPTIME_S = 86_400, 600.0
OTHER_NODE = "another node answers there"


@click.command(epilog="\b\nExamples:\n  p2pfl status ward-7\n  p2pfl status 127.0.0.1:43211 http://192.168.1.12:8480")
@click.argument("targets", metavar="FOLDER|URL...", nargs=-1, required=True)
@format_option("table", "json", "csv")
def status(*, targets: tuple[str, ...], form: Form) -> int:
    """Show what running nodes are doing.

    FOLDER is the folder of a federation: all nodes whose state is in it are asked; `p2pfl watch` shows members on other
    machines, too. URL is the address of a node's status page (`status_listen` in its node.toml); from another machine
    it is the whole link from the node's log. If a node in FOLDER has ended, its result is shown. Exits with 1 if a node
    does not answer.
    """
    rows = _ask_all(targets)
    shown = [{key: value for key, value in row.items() if key not in HIDDEN} for row in rows]
    if form == "table":
        from p2pfl.console.overview import view  # noqa: PLC0415 - `--help` stays instant

        console = table_console()
        console.print(view(_overview(rows), width=console.width))
        for row in rows:
            if details := _details(row):
                click.echo(printable(f"{row['node'] or row['url']}: {details}"))
    else:
        write_rows(shown if form == "json" else [_flat_row(row) for row in shown], form)
    asked_here = [row for row in rows if row["phase"] not in (NOT_HERE, REPLACED)]
    return int(not all(row["well"] for row in asked_here or rows))


def _ask_all(targets: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each URL, and for each member of each folder."""
    asked: list[Callable[[], dict[str, Any]]] = []
    for target in targets:
        if is_folder(target):
            federation, members = read_folder(target)
            asked += [partial(_row_of_member, federation, member) for member in members]
        else:
            asked.append(partial(_row_at, target.partition("#")[0], place_of(target)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda ask: ask(), asked))


def _row_at(url: str, place: PageAddress) -> dict[str, Any]:
    return _row(url, ask_status(place))


def _row_of_member(federation: str, member: LocalMember) -> dict[str, Any]:
    """Return the row of a member that answers or has left a result behind; or the reason if there is neither."""
    url, said = "", member.reason if member.result is None else member.result
    if member.place is not None:
        url, said = f"http://{member.place.netloc}", ask_status(member.place)
    is_other = not isinstance(said, str) and (said.get("node"), said.get("federation")) != (member.name, federation)
    # once a node is gone, another process may get its port
    return _row(url, OTHER_NODE if is_other else said) | {"node": member.name}


def _row(url: str, answer: dict[str, Any] | str) -> dict[str, Any]:
    said: dict[str, Any] = {} if isinstance(answer, str) else answer
    neighbors = said.get("neighbors")
    kept = {peer["name"]: peer["kept"] for peer in neighbors or () if peer.get("kept") is not None}
    computed = {
        "url": url,
        "phase": answer if isinstance(answer, str) else said["phase"],
        "round": said.get("rounds"),
        "of": said.get("rounds_to_do"),
        "metric": _main(said),
        "main": scores_of(said).get(_main(said) or ""),
        "metrics": scores_of(said),
        "staleness": (said.get("staleness") or {}).get("mean"),
        "held_against": _held_against(neighbors),
        "kept": None if neighbors is None else kept,
        "distance": said.get("neighbor_distance"),
        "disk_bytes_a_day": _a_day(said),
        "well": not isinstance(answer, str),
    }
    return {key: computed[key] if key in computed else said.get(key) for key in (*COLUMNS, *HIDDEN)}


def _main(status: Mapping[str, Any]) -> str | None:
    """Return the name of the task's main measure, as far as the node says."""
    measures = status.get("measures") or [{"name": "accuracy" if status.get("accuracy") is not None else None}]
    main: str | None = measures[0]["name"]
    return main


def _a_day(status: Mapping[str, Any]) -> int | None:
    """Return the bytes that a node writes to disks in a day, as it did since its start if that is long ago."""
    written, uptime_s = status.get("disk_bytes_written"), status.get("uptime_s") or 0
    return None if written is None or uptime_s < LEAST_UPTIME_S else round(DAY_S * written / uptime_s)


def _held_against(neighbors: list[dict[str, Any]] | None) -> dict[str, dict[str, Any]] | None:
    """Return, for each neighbor with proven faults, its standing from 0 to 1, the faults by kind, its quarantine."""
    keys = ("standing", "faults", "quarantined_s", "probation")
    faulty = [peer for peer in neighbors or [] if peer.get("faults")]
    return None if neighbors is None else {peer["name"]: {key: peer.get(key) for key in keys} for peer in faulty}


def _flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for a table: of the shares that the rule kept, only the smallest is shown."""
    alarms = row["alarms"]
    text = _alarms_text(alarms, row["standing_alarms"]) if isinstance(alarms, dict) else None
    against = [_faults_text(name, held) for name, held in (row["held_against"] or {}).items()]
    least = min((row["kept"] or {}).items(), key=lambda item: item[1], default=None)
    others = {name: value for name, value in row["metrics"].items() if name not in (row["metric"], "loss")}
    return {**row} | {
        "metrics": ", ".join(f"{name} {cell(value)}" for name, value in others.items()) or None,
        "alarms": text,
        "standing_alarms": ", ".join(row["standing_alarms"] or ()) or None,
        "held_against": ", ".join(against) or None,
        "kept": least and f"{least[0]} {least[1]:.2g}",
        "privacy": row["privacy"] and _budget_text(row["privacy"]),
    }


def _alarms_text(counts: Mapping[str, Any], standing: list[str] | None) -> str:
    """Return the number of alarms of each kind, and which kinds are over; a node that ended long ago may not say."""
    over = () if standing is None else counts.keys() - set(standing)
    return ", ".join(f"{kind} {count}{' (over)' if kind in over else ''}" for kind, count in counts.items())


def _budget_text(privacy: Mapping[str, Any]) -> str:
    """Return a node's budget as text."""
    epsilon, state = privacy.get("epsilon"), str(privacy.get("state", "open"))
    return f"budget {state}" if epsilon is None else f"epsilon {spent_text(epsilon, privacy.get('budget'), state)}"


def _overview(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `view` draws of these rows."""
    members = []
    for index, row in enumerate(rows):
        privacy = row["privacy"]
        epsilon = privacy and (privacy["epsilon"] if privacy.get("epsilon") is not None else _budget_text(privacy))
        member = {key: row[key] for key in ("phase", "main", "staleness", "distance", "bytes_sent", "tested_round")}
        member |= {"index": index, "name": row["node"] or row["url"], "rounds": row["round"], "live": row["peers"]}
        member |= {"scores": row["metrics"], "epsilon": epsilon}
        if not row["test_is_stale"]:
            member["tested_round"] = None
        members.append(member)
    measures = next((row["measures"] for row in rows if row["measures"]), None)
    metric = next((row["metric"] for row in rows if row["metric"]), None)
    budgets = [row["privacy"] for row in rows if row["privacy"] and "budget" in row["privacy"]]
    return {
        "federation": ", ".join(dict.fromkeys(row["federation"] for row in rows if row["federation"])),
        "by": "asked just now",
        "now": 0.0,
        "members": members,
        "measures": measures or (metric and [{"name": metric, "label": metric}]),
        "privacy": budgets[0] if budgets else None,
        "rounds_to_do": next((row["of"] for row in rows if row["of"]), None),
        "alarms": [],
        "events": [],
    }


def _details(row: Mapping[str, Any]) -> str:
    """Return what the overview has no column for, of one node: empty if there is nothing unusual."""
    flat = _flat_row(row)
    flat["disk_bytes_a_day"] = flat["disk_bytes_a_day"] and size(flat["disk_bytes_a_day"])
    odd = [
        f"{WORDS.get(key, key)} {cell(flat[key])}" for key in DETAILS if flat[key] not in (None, "", "mean", "cpu", 0)
    ]
    return "; ".join(odd)


def _faults_text(name: str, held: dict[str, Any]) -> str:
    kinds = " ".join(f"{kind} {count}" for kind, count in held["faults"].items())
    left_s = held["quarantined_s"]
    away = f", quarantined for {left_s:.0f} s" if isinstance(left_s, int | float) and left_s > 0 else ""
    return f"{name} ({kinds}{away})"


class NobodyAnswersError(P2PFLError):
    """No node answers."""


@click.command(epilog="\b\nExamples:\n  p2pfl watch ward-7\n  p2pfl watch 127.0.0.1:8480")
@click.argument("target", metavar="FOLDER|URL")
@format_option("table", "json", "csv")
def watch(*, target: str, form: Form) -> None:
    """Watch a whole federation: members, alarms and notable events, as one of its nodes knows them.

    FOLDER is the folder of a federation with a node on this machine, URL the address of a node's page (from another
    machine, the whole link from the node's log). In a pipe, or with another format, it is shown once. Ctrl-C ends it.
    It also ends when all nodes in FOLDER have ended; then `p2pfl status` shows their results.
    """
    from rich.console import Console  # noqa: PLC0415 - `--help` stays instant

    from p2pfl.console.overview import view  # noqa: PLC0415 - `--help` stays instant

    console = Console(highlight=False)
    federation = _ask(target)
    if isinstance(federation, str):
        raise NobodyAnswersError(federation)
    if form == "json":
        write_json(federation)
    elif form == "csv":
        write_rows([{key: _flat(value) for key, value in row.items()} for row in federation["members"]], "csv")
    elif console.is_terminal:
        _follow(console, target, federation)
    else:
        Console(highlight=False, width=PIPE_WIDTH).print(view(federation, width=PIPE_WIDTH))


def _ask(target: str) -> dict[str, Any] | str:
    """Return the first answer from a node, or the reason why none answers."""
    members = read_folder(target)[1] if is_folder(target) else None
    places = [place_of(target)] if members is None else [place for member in members if (place := member.place)]
    reason = ""
    for place in places:
        federation = ask_federation(place)
        if not isinstance(federation, str):
            return federation
        reason = f"http://{place.netloc}: {federation}"
    return reason or nobody_of(target)


def nobody_of(target: str) -> str:
    return f"no node of {target} is running on this machine; `p2pfl status {target}` shows results, if there are any"


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _follow(console: Console, target: str, federation: dict[str, Any]) -> None:
    from rich.live import Live  # noqa: PLC0415 - `--help` stays instant

    from p2pfl.console.overview import view  # noqa: PLC0415 - `--help` stays instant

    lost_at: float | None = None
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while True:
            note = "" if lost_at is None else f"no answer for {age(time.monotonic() - lost_at)}"
            width, height = console.size
            live.update(view(federation, width=width, height=height, note=note), refresh=True)
            time.sleep(EVERY_S)
            answer = _ask(target)
            if answer == nobody_of(target):
                click.echo(answer, err=True)
                return
            if isinstance(answer, str):
                lost_at = lost_at or time.monotonic()
            else:
                federation, lost_at = answer, None
