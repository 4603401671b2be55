"""`p2pfl watch`: show the whole federation in a terminal, as one node knows it. In a pipe, show it once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, age, format_option, size, spent_text, write_json, write_rows
from p2pfl.errors import P2PFLError
from p2pfl.features.status.asking import ask_federation, ended_federation, is_folder, place_of, read_folder

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

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
