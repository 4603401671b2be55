"""`p2pfl status`: ask running nodes, each at its status page, what they are doing.

`p2pfl watch`: show the whole federation in a terminal, as one node knows it. In a pipe, show it once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import (
    Form,
    age,
    cell,
    figure,
    footnote,
    format_option,
    size,
    spent_text,
    write_json,
    write_rows,
)
from p2pfl.errors import P2PFLError
from p2pfl.features.status.running import (
    DIED,
    LocalFederation,
    LocalMember,
    ask_federation,
    ask_status,
    ended_federation,
    is_folder,
    place_of,
    read_folder,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

AT_ONCE = 32
SELDOM = (
    *("metrics", "rule", "liars_borne", "rounds_alone", "held_against", "kept", "pace_set_by", "device", "bounds"),
    "privacy",
    "second_hand",
)
"""The columns that a table leaves out if no node has an unusual value.

They show other metrics, robust rules, the neighbor that sets the pace, devices, privacy budgets, and the source.
"""
WITHHELD = ("accuracy", "loss")
"""The columns that are also left out if there are privacy budgets."""
OF_MIXING = ("staleness", "compressors", "distance")
"""The columns that are left out if rounds are sums, in which no model is mixed with a neighbor's."""
TOLD_BELOW = ("tested_round", "test_is_stale", "disk_refuses")
TOLD_BESIDE = ("standing_alarms",)
"""The columns that a table tells in another one."""
OTHER_NODE = "another node answers there"


@click.command(epilog="\b\nExamples:\n  p2pfl status ward-7\n  p2pfl status 127.0.0.1:43211 http://192.168.1.12:8480")
@click.argument("targets", metavar="FOLDER|URL...", nargs=-1, required=True)
@format_option("table", "json", "csv")
def status(*, targets: tuple[str, ...], form: Form) -> int:
    """Show what running nodes are doing.

    FOLDER is the folder of a federation: all nodes whose state is in it are asked, also about the latest news of the
    others. URL is the address of a node's status page (`status_listen` in its node.toml); from another machine it is
    the whole link from the node's log. If a node in FOLDER has ended, its result is shown. Exits with 1 if a node does
    not answer and no other node has news of it.
    """
    found = [row for target in targets for row in (_of_folder(target) if is_folder(target) else [target])]
    asked = iter(_ask_all([one for one in found if isinstance(one, str)]))
    rows = [next(asked) if isinstance(one, str) else one for one in found]
    shown = [{key: value for key, value in row.items() if key != "well"} for row in rows]
    write_rows(shown if form == "json" else _table_rows([_flat_row(row) for row in shown], form), form)
    if form == "table":
        for note in _notes(rows):
            click.echo(note)
    return int(not all(row["well"] for row in rows))


def _ask_all(urls: list[str]) -> list[dict[str, Any]]:

    places = [place_of(url) for url in urls]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask_status, places))
    return [_row(url.partition("#")[0], answer) for url, answer in zip(urls, answers, strict=True)]


def _of_folder(target: str) -> list[dict[str, Any]]:
    """Return a row for each member: its own answer, or else the latest row that a node here has."""
    folder = read_folder(target)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(_answer, folder.members))
    own = [_refuse_other(folder, one.name, said) for one, said in zip(folder.members, answers, strict=True)]
    heard = _latest_rows(folder, own) if any(isinstance(said, str) for said in own) else {}
    return [
        _second_hand(one.name, said, heard[one.name])
        if isinstance(said, str) and one.name in heard
        else _row("" if one.place is None else f"http://{one.place.netloc}", said) | {"node": one.name}
        for one, said in zip(folder.members, own, strict=True)
    ]


def _answer(member: LocalMember) -> dict[str, Any] | str:
    """Return a member's answer or the result that it left behind, or the reason if there is neither."""
    if member.place is None:
        return member.reason if member.result is None else member.result
    return ask_status(member.place)


def _refuse_other(folder: LocalFederation, name: str, answer: dict[str, Any] | str) -> dict[str, Any] | str:
    """Refuse an answer from another node: once a node is gone, another process may get its port."""
    if isinstance(answer, str) or (answer.get("node"), answer.get("federation")) == (name, folder.federation):
        return answer
    return OTHER_NODE


def _latest_rows(folder: LocalFederation, own: list[dict[str, Any] | str]) -> dict[str, dict[str, Any]]:
    """Return, by member, the latest row that any node here has."""
    latest: dict[str, dict[str, Any]] = {}
    for one, said in zip(folder.members, own, strict=True):
        if isinstance(said, str) or one.place is None:
            continue
        told = ask_federation(one.place)
        if isinstance(told, str):
            continue
        for row in told["members"]:
            if row.get("at") is None:
                continue
            age_s = max(0.0, told["now"] - row["at"])
            if age_s < latest.get(str(row.get("name")), {"age_s": float("inf")})["age_s"]:
                latest[str(row.get("name"))] = row | {"age_s": age_s, "by": one.name, "of": told.get("rounds_to_do")}
        if len(latest) == len(folder.members):
            break
    return latest


def _second_hand(name: str, reason: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Make a row from what members send each other, which is less than a node's own status."""
    row = _row("", reason)
    told = {key: report.get(key) for key in ("accuracy", "loss", "staleness", "distance", "bytes_sent", "phase")}
    scores = report.get("scores") or {}
    main = next(iter(scores), None)
    told |= {"metric": main, "main": scores.get(main), "metrics": scores}
    after = report.get("tested_round")
    told |= {"tested_round": after, "test_is_stale": after is not None}
    over = report.get("phase") in ("finished", "stopped")
    missed = not over and bool(report.get("quiet") or report.get("lost"))
    if missed:
        told["phase"] = "not heard"
    if reason == DIED:
        told["phase"] = "died"
    return (
        row
        | told
        | {
            "node": name,
            "round": report.get("rounds"),
            "of": report.get("of"),
            "peers": None if report.get("live") is None else len(report["live"]),
            "alarms": dict.fromkeys(report.get("standing") or (), 1),
            "standing_alarms": list(report.get("standing") or ()),
            "privacy": None if report.get("epsilon") is None else {"epsilon": report["epsilon"]},
            "second_hand": {"by": report["by"], "age_s": round(report["age_s"], 1), "instead_of": reason},
            "well": reason != DIED and not missed,
        }
    )


def _row(url: str, answer: dict[str, Any] | str) -> dict[str, Any]:
    said: dict[str, Any] = {} if isinstance(answer, str) else answer
    return {
        "url": url,
        "node": said.get("node"),
        "phase": answer if isinstance(answer, str) else said["phase"],
        "round": said.get("rounds"),
        "of": said.get("rounds_to_do"),
        "accuracy": said.get("accuracy"),
        "metric": _main(said),
        "main": _scores(said).get(_main(said) or ""),
        "metrics": _scores(said),
        "tested_round": said.get("tested_round"),
        "test_is_stale": said.get("test_is_stale"),
        "loss": said.get("loss"),
        "staleness": (said.get("staleness") or {}).get("mean"),
        "peers": said.get("peers"),
        "pace_set_by": said.get("pace_set_by"),
        "rule": said.get("rule"),
        "liars_borne": said.get("liars_borne"),
        "rounds_alone": said.get("rounds_alone"),
        "held_against": _standings(said.get("neighbors")),
        "kept": _of_each(said.get("neighbors"), "kept"),
        "bytes_sent": said.get("bytes_sent"),
        "compressors": _of_each(said.get("neighbors"), "compressor"),
        "distance": said.get("neighbor_distance"),
        "alarms": said.get("alarms"),
        "standing_alarms": said.get("standing_alarms"),
        "disk_refuses": said.get("disk_refuses"),
        "device": said.get("device"),
        "privacy": said.get("privacy"),
        "bounds": (said.get("features") or {}).get("bounds") or None,
        "second_hand": None,
        "well": not isinstance(answer, str),
    }


def _main(status: Mapping[str, Any]) -> str | None:
    """Return the name of the task's main measure, as far as the node says."""
    measures = status.get("measures") or [{"name": "accuracy" if status.get("accuracy") is not None else None}]
    main: str | None = measures[0]["name"]
    return main


def _scores(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's measures by name, on the common test set."""
    known = {"accuracy": status.get("accuracy"), "loss": status.get("test_loss"), **(status.get("metrics") or {})}
    return {name: value for name, value in known.items() if value is not None}


def _of_each(neighbors: list[dict[str, Any]] | None, key: str) -> dict[str, Any] | None:
    """Return the values by neighbor, for the neighbors that have one."""
    return None if neighbors is None else {one["name"]: one[key] for one in neighbors if one.get(key) is not None}


def _standings(neighbors: list[dict[str, Any]] | None) -> dict[str, dict[str, Any]] | None:
    """Return, for each neighbor with proven faults, its standing from 0 to 1, the faults by kind, and its
    quarantine.
    """
    keys = ("standing", "faults", "quarantined_s", "probation")
    faulty = [one for one in neighbors or [] if one.get("faults")]
    return None if neighbors is None else {one["name"]: {key: one.get(key) for key in keys} for one in faulty}


def _flat_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for a table.

    Compressors are listed by neighbor only if they differ; of the shares that the rule kept, only the smallest is
    shown.
    """
    alarms, compressors = row["alarms"], row["compressors"] or {}
    told = _alarms_text(alarms, row["standing_alarms"]) if isinstance(alarms, dict) else None
    alike = len(set(compressors.values())) == 1
    each = sorted(set(compressors.values())) if alike else [f"{name} {spec}" for name, spec in compressors.items()]
    against = [_faults_text(name, held) for name, held in (row["held_against"] or {}).items()]
    least = min((row["kept"] or {}).items(), key=lambda item: item[1], default=None)
    others = {name: value for name, value in row["metrics"].items() if name not in (row["metric"], "loss")}
    return row | {
        "metrics": ", ".join(f"{name} {cell(value)}" for name, value in others.items()) or None,
        "alarms": told,
        "standing_alarms": ", ".join(row["standing_alarms"] or ()) or None,
        "compressors": ", ".join(each) or None,
        "held_against": ", ".join(against) or None,
        "kept": least and f"{least[0]} {least[1]:.2g}",
        "privacy": row["privacy"] and _budget_text(row["privacy"]),
        "bounds": row["bounds"] and _told_bounds(row["bounds"]),
        "second_hand": row["second_hand"] and f"{age(row['second_hand']['age_s'])} ago, by {row['second_hand']['by']}",
    }


def _table_rows(rows: list[dict[str, Any]], form: Form) -> list[dict[str, Any]]:
    """Prepare rows for a table: leave out the columns in `SELDOM` that no node uses, and mark old tests with a star."""
    quiet = (None, "mean", "cpu", 0)
    if form != "table":
        return rows
    private = any(row["privacy"] for row in rows)
    some = SELDOM if not private or any(row["main"] is not None for row in rows) else (*SELDOM, *WITHHELD)
    empty = {key for key in some if all(row[key] in quiet for row in rows)} | {*TOLD_BELOW, *TOLD_BESIDE}
    empty |= {TRAINING_LOSS} if "loss" in empty else set()
    if any(row["round"] is not None for row in rows) and all(row["staleness"] is None for row in rows):
        empty |= set(OF_MIXING)
    names = {row["metric"] for row in rows if row["metric"]}
    head = "main metric" if len(names) > 1 else next(iter(names), "accuracy")
    return [{key: value for key, value in _with_main_measure(row, head).items() if key not in empty} for row in rows]


def _told_bounds(bounds: Mapping[str, Any]) -> str:
    try:
        return _bounds_text(bounds)
    except (AttributeError, LookupError, TypeError, ValueError):
        return "not known"


def _bounds_text(bounds: Mapping[str, Any]) -> str:
    """Say how much of a node's bounds is used up, and when it goes on if it pauses."""
    parts = {
        "max_kbit_s": "at most {max_kbit_s:g} kbit/s",
        "hours": "{hours}",
        "month_used_gb": "{month_used_gb:g} of {month_gb:g} GB this month",
        "paused_until": "pauses until {paused_until}: {paused_because}",
        "says_paused_until": "says that it pauses until {says_paused_until}",
    }
    told = [text.format(**bounds) for key, text in parts.items() if key in bounds]
    told += [f"{name}: {_bounds_text(each)}" for name, each in bounds.get("by_neighbor", {}).items()]
    return "; ".join(told)


def _alarms_text(counts: Mapping[str, Any], standing: list[str] | None) -> str:
    """Return the number of alarms of each kind, and which kinds are over; a node that ended long ago may not say."""
    over = () if standing is None else counts.keys() - set(standing)
    return ", ".join(f"{kind} {count}{' (over)' if kind in over else ''}" for kind, count in counts.items())


TRAINING_LOSS = "training loss"
"""The heading for what JSON calls `loss`; in reports, that name means the test loss."""


def _budget_text(privacy: Mapping[str, Any]) -> str:
    """Return a node's budget as text, as reported by itself or by others."""
    epsilon, state = privacy.get("epsilon"), str(privacy.get("state", "open"))
    return f"budget {state}" if epsilon is None else f"epsilon {spent_text(epsilon, privacy.get('budget'), state)}"


def _with_main_measure(row: dict[str, Any], head: str) -> dict[str, Any]:
    """Rename accuracy to the task's main measure, with its value."""
    value = figure(row["main"], stale=True) if row["test_is_stale"] else row["main"]
    heads = {"accuracy": head, "loss": TRAINING_LOSS}
    told = {heads.get(key, key): value if key == "accuracy" else one for key, one in row.items()}
    return {key: one for key, one in told.items() if key not in ("metric", "main")}


def _notes(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield notes that do not fit in a table's columns: old tests, disks that cannot be written."""
    for row in rows:
        of = row["of"] or row["round"]
        value, stale, after = row["main"], row["test_is_stale"], row["tested_round"]
        if note := footnote(row["node"], value=value, stale=stale, after=after, of=of):
            yield note
        if row["second_hand"]:
            yield f"{row['node']}: {row['second_hand']['instead_of']}; reported by {row['second_hand']['by']}"
        if row["disk_refuses"]:
            yield f"{row['node']}: {row['disk_refuses']}"
    if any(row["privacy"] for row in rows):
        yield "withheld, as computed from the data without noise: losses, and scores on private data"


def _faults_text(name: str, standing: dict[str, Any]) -> str:
    kinds = " ".join(f"{kind} {count}" for kind, count in standing["faults"].items())
    left_s = standing["quarantined_s"]
    away = f", quarantined for {left_s:.0f} s" if isinstance(left_s, int | float) and left_s > 0 else ""
    return f"{name} ({kinds}{away})"


EVENTS = 6
LEAST_ROWS = 4
NARROW = 72
"""The width of a terminal, in columns, below which some figures are left out."""
MAIN = "main"
"""The key of a member's main score."""
MOST_OTHERS = 2
"""The number of other metrics that fit in 80 columns."""
OVER = ("finished", "lingering")
COLORS = {
    "training": "blue",
    "finished": "green",
    "lingering": "green",
    "closing": "cyan",
    "not heard": "bold red",
    "quiet": "red",
}


class NobodyAnswersError(P2PFLError):
    """No node answers."""


@click.command(epilog="\b\nExamples:\n  p2pfl watch ward-7\n  p2pfl watch 127.0.0.1:8480")
@click.argument("target", metavar="FOLDER|URL")
@click.option(
    "--every",
    "every_s",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between two looks.",
)
@format_option("table", "json", "csv")
def watch(*, target: str, every_s: float, form: Form) -> None:
    """Watch a whole federation: members, alarms and notable events, as one of its nodes knows them.

    FOLDER is the folder of a federation with a node on this machine, URL the address of a node's page (from another
    machine, the whole link from the node's log). In a pipe, or with another format, it is shown once. Ctrl-C ends it.
    It also ends, with their results, when all nodes in FOLDER have ended.
    """
    from rich.console import Console  # noqa: PLC0415 - `--help` stays instant

    console = Console(highlight=False)
    federation = _ask(target)
    if isinstance(federation, str):
        raise NobodyAnswersError(federation)
    if form == "json":
        write_json(federation)
    elif form == "csv":
        write_rows([{key: _flat(value) for key, value in row.items()} for row in federation["members"]], "csv")
    elif console.is_terminal:
        _follow(console, target, every_s, federation)
    else:
        Console(highlight=False, width=100).print(view(federation, rows=len(federation["members"])))


def _ask(target: str) -> dict[str, Any] | str:
    """Return the first answer from a node, or the reason why none answers."""
    folder = read_folder(target) if is_folder(target) else None
    places = [place_of(target)] if folder is None else [one.place for one in folder.members if one.place is not None]
    reason = ""
    for place in places:
        federation = ask_federation(place)
        if not isinstance(federation, str):
            return federation
        reason = f"http://{place.netloc}: {federation}"
    ended = None if folder is None or reason else ended_federation(folder)
    return ended or reason or f"no node of {target} is running on this machine"


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _follow(console: Console, target: str, every_s: float, federation: dict[str, Any]) -> None:
    from rich.live import Live  # noqa: PLC0415 - as above

    lost_at: float | None = None
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while True:
            rows = max(LEAST_ROWS, console.size.height - 7 - 3 * len(federation["alarms"]) - EVENTS)
            note = "" if lost_at is None else f"no answer for {age(time.monotonic() - lost_at)}"
            live.update(view(federation, rows=rows, note=note, narrow=console.size.width < NARROW), refresh=True)
            if federation.get("ended"):
                return
            time.sleep(every_s)
            answer = _ask(target)
            if isinstance(answer, str):
                lost_at = lost_at or time.monotonic()
            else:
                federation, lost_at = answer, None


def view(federation: dict[str, Any], *, rows: int, note: str = "", narrow: bool = False) -> RenderableType:
    """Draw the view for 80 columns; with `narrow`, for fewer columns and with fewer figures.

    It has a headline, at most `rows` members, the alarms and the events.
    """
    from rich.console import Group  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    parts: list[RenderableType] = [_headline(federation)]
    if note:
        parts.append(Text(note, style="bold red"))
    members = sorted(federation["members"], key=lambda row: (-_trouble(row), row["index"]))
    parts.append(
        _table(
            members[:rows],
            federation["now"],
            _measures(federation),
            narrow=narrow,
            private=bool(federation.get("privacy")),
        )
    )
    if len(members) > rows:
        parts.append(Text(f"and {len(members) - rows} more, without other problems", style="dim"))
    parts += _alarms(federation)
    parts += _events(federation)
    return Group(*parts)


def _headline(federation: dict[str, Any]) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415 - as above

    members = federation["members"]
    states: dict[str, int] = {}
    for row in members:
        states[state_of(row)] = states.get(state_of(row), 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: -item[1]))
    there = [row for row in members if not (row.get("quiet") or row.get("lost"))]
    rounds, scores = _numbers(there, "rounds"), _numbers(there, MAIN)
    if rounds:
        low, high = str(min(rounds)), str(max(rounds))
        of = f" of {federation['rounds_to_do']}" if federation.get("rounds_to_do") else ""
        told += f"; round {low if low == high else f'{low} to {high}'}{of}"
    figures = f"sent {size(sum(_numbers(members, 'bytes_sent')))}, {size(sum(_numbers(there, 'bytes_per_s')))}/s"
    if scores:
        low, high = f"{min(scores):.3f}", f"{max(scores):.3f}"
        spread = "" if low == high else f" ({low} to {high})"
        figures = f"{_measures(federation)[0]['label']} {sum(scores) / len(scores):.3f}{spread}; {figures}"
    if privacy := federation.get("privacy"):
        epsilon = max([privacy["epsilon"] or 0.0, *_numbers(members, "epsilon")])
        spent = spent_text(epsilon, privacy["budget"])
        figures += f"\nprivacy: epsilon {spent} spent at delta {privacy['delta']:g}, of each {privacy['unit']}"
        unknown = len(members) - len(_numbers(members, "epsilon"))
        figures += f"; not known of {unknown}" if unknown else ""
        figures += "" if scores else "; scores are withheld"
    text = Text()
    text.append(f"{federation['federation']}", style="bold")
    by = "by their results" if federation.get("ended") else f"seen by {federation['node']}"
    text.append(
        f"  {len(members)} members of {federation.get('topology', federation['federation'])}, {by}\n", style="dim"
    )
    text.append(f"{told}\n{figures}")
    return text


def _numbers(members: list[dict[str, Any]], key: str) -> list[Any]:
    return [row[key] for row in members if isinstance(row.get(key), int | float)]


def state_of(row: dict[str, Any]) -> str:
    if row.get("phase") is None:
        return "not heard of"
    if row.get("lost"):
        return "not heard"
    return "quiet" if row.get("quiet") else str(row["phase"])


def _trouble(row: dict[str, Any]) -> int:
    silent = 8 * bool(row.get("lost")) + 4 * bool(row.get("quiet"))
    return silent + 2 * bool(row.get("standing")) + (row.get("phase") is None)


def _measures(federation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the task's measures, the main one first. Without any, return accuracy if a node has it."""
    if measures := federation.get("measures"):
        return list(measures)
    name = "accuracy" if _numbers(federation["members"], "accuracy") else "loss"
    return [{"name": name, "label": name}]


def _table(
    members: list[dict[str, Any]], now: float, measures: list[dict[str, Any]], *, narrow: bool, private: bool = False
) -> Table:
    from rich import box  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("member", overflow="ellipsis", no_wrap=True, max_width=16)
    table.add_column("state", overflow="fold", max_width=26)
    mixes = any(row.get("staleness") is not None or row.get("phase") is None for row in members)
    others = [] if narrow else [one for one in measures[1:] if one["name"] != "loss"][:MOST_OTHERS]
    main, wide = measures[0]["label"], () if narrow else ("distance", "sent") if mixes else ("sent",)
    withheld = private and not _numbers(members, MAIN)
    scores = () if withheld else (main, *(one["label"] for one in others))
    for name in ("round", *scores, *(("epsilon",) if private else ()), *wide, "heard"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in members:
        state = Text(state_of(row), style=COLORS.get(state_of(row), "yellow"))
        for kind in row.get("standing") or ():
            state.append(f" {kind}", style="bold red")
        by = "*" if row.get("source") else ""
        cells = [_cell(row.get("rounds"), "d")]
        if not withheld:
            cells += [_cell(row.get(MAIN), ".3f")]
            cells += [_cell((row.get("scores") or {}).get(one["name"]), ".3f") for one in others]
        if private:
            cells.append(_cell(row.get("epsilon"), ".3g"))
        if not narrow:
            cells += [_cell(row.get("distance"), ".1e")] if mixes else []
            cells.append(size(row["bytes_sent"]) if isinstance(row.get("bytes_sent"), int) else "-")
        cells.append(f"{age(max(0.0, now - row['at']))}{by}" if isinstance(row.get("at"), int | float) else "-")
        table.add_row(Text(str(row["name"])), state, *cells)
    notes = ["* received through others"] if any(row.get("source") for row in members) else []
    if not withheld and (older := _numbers(members, "tested_round")):
        notes.append(f"scores of {len(older)} members are of earlier models: after round {min(older)} to {max(older)}")
    table.caption, table.caption_justify = "\n".join(notes) or None, "left"
    return table


def _cell(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else "-"


def _alarms(federation: dict[str, Any]) -> Iterable[RenderableType]:
    from rich.text import Text  # noqa: PLC0415 - as above

    for alarm in federation["alarms"]:
        about = f" {alarm['about']}" if alarm.get("about") else ""
        text = Text()
        text.append(f"{alarm['kind']}{about}", style="bold red")
        text.append(f" for {age(max(0.0, federation['now'] - alarm['since']))}: {alarm['text']}\n")
        text.append(f"  this node: {alarm['does']}\n  to do: {alarm['advice']}", style="dim")
        yield text


def _events(federation: dict[str, Any]) -> Iterable[RenderableType]:
    from rich.text import Text  # noqa: PLC0415 - as above

    for event in list(reversed(federation["events"]))[:EVENTS]:
        about = f" {event['about']}" if event.get("about") else ""
        text = Text(overflow="ellipsis", no_wrap=True)
        text.append(f"{age(max(0.0, federation['now'] - event['at'])):>7} ago  ", style="dim")
        text.append(f"{event['kind']}{about}", style="bold red" if event.get("wrong") else "bold")
        text.append(f"  {event['text']}")
        yield text
