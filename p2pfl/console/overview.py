"""The overview of a federation that `watch`, `launch` and `demo` draw: a headline, members, alarms, events.

It is drawn from what `GET /federation` answers (`reporting.vitals.FederationStatus`), or from a dictionary like it.
A figure that no member has gets no column, and columns that do not fit the terminal are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p2pfl.console.output import STALE, age, footnote, size, spent_text

EVENTS = 6
LEAST_ROWS = 4
MAIN = "main"
"""The key of a member's main score."""
LONGEST_NAME, LONGEST_STATE, GAP = 16, 26, 3
COLORS = {
    "training": "blue",
    "running": "yellow",
    "finished": "green",
    "lingering": "green",
    "closing": "cyan",
    "not heard": "bold red",
    "quiet": "red",
}

Row = Mapping[str, Any]


def view(federation: Mapping[str, Any], *, width: int, height: int = 10_000, note: str = "") -> RenderableType:
    """Draw the overview for a terminal of that size: members with problems first, and those that fit."""
    parts: list[RenderableType] = [_headline(federation)]
    if note:
        parts.append(Text(note, style="bold red"))
    most = max(LEAST_ROWS, height - 7 - 3 * len(federation["alarms"]) - EVENTS)
    members = sorted(federation["members"], key=lambda row: (-_trouble(row), row["index"]))
    parts.append(_table(federation, members[:most], width))
    if len(members) > most:
        parts.append(Text(f"and {len(members) - most} more, without other problems", style="dim"))
    return Group(*parts, *_alarms(federation), *_events(federation))


def _headline(federation: Mapping[str, Any]) -> RenderableType:
    members = federation["members"]
    states: dict[str, int] = {}
    for row in members:
        states[state_of(row)] = states.get(state_of(row), 0) + 1
    summary = ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: -item[1]))
    there = [row for row in members if not (row.get("quiet") or row.get("lost"))]
    rounds, scores = _numbers(there, "rounds"), _numbers(there, MAIN)
    if rounds:
        low, high = str(min(rounds)), str(max(rounds))
        of = f" of {federation['rounds_to_do']}" if federation.get("rounds_to_do") else ""
        summary += f"; round {low if low == high else f'{low} to {high}'}{of}"
    figures = f"sent {size(sum(_numbers(members, 'bytes_sent')))}"
    if rates := _numbers(there, "bytes_per_s"):
        figures += f", {size(sum(rates))}/s"
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
    by = federation.get("by") or f"seen by {federation['node']}"
    text = Text()
    text.append(f"{federation['federation']}  " if federation["federation"] else "", style="bold")
    graph = f" of {federation['topology']}" if federation.get("topology") else ""
    text.append(f"{len(members)} members{graph}, {by}\n", style="dim")
    text.append(f"{summary}\n{figures}")
    return text


def _numbers(members: Sequence[Row], key: str) -> list[Any]:
    return [row[key] for row in members if isinstance(row.get(key), int | float)]


def state_of(row: Row) -> str:
    if row.get("phase") is None:
        return "not heard of"
    if row.get("lost"):
        return "not heard"
    return "quiet" if row.get("quiet") else str(row["phase"])


def _trouble(row: Row) -> int:
    silent = 8 * bool(row.get("lost")) + 4 * bool(row.get("quiet"))
    return silent + 2 * bool(row.get("standing")) + (row.get("phase") is None)


def _measures(federation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the task's measures, main one first and loss last; without any, accuracy if a node has it."""
    if measures := federation.get("measures"):
        return [*measures[:1], *sorted(measures[1:], key=lambda measure: bool(measure["name"] == "loss"))]
    name = "accuracy" if _numbers(federation["members"], "accuracy") else "loss"
    return [{"name": name, "label": name}]


def _table(federation: Mapping[str, Any], members: Sequence[Row], width: int) -> Table:
    main, *others = _measures(federation)
    heads = [main["label"], *(measure["label"] for measure in others)]
    rows = [_cells(row, [main, *others], federation["now"]) for row in members]
    shown = [head for head in (rows[0] if rows else ()) if any(row[head] is not None for row in rows)]
    withheld = federation.get("privacy") and not _numbers(members, MAIN)
    shown += ["round", *([] if withheld else [main["label"]])]
    order = ["round", main["label"], "epsilon", "sent", "distance", "heard", "peers", "staleness", *heads[1:]]
    states = [_state(row) for row in members]
    left = width - 2 * GAP - max([len("member"), *(min(len(str(row["name"])), LONGEST_NAME) for row in members)])
    left -= max([len("state"), *(min(len(state), LONGEST_STATE) for state in states)])
    fitting = []
    for head in [head for head in order if head in shown]:
        left -= GAP + max([len(head), *(len(row[head] or "-") for row in rows)])
        if left >= 0 or head in order[:2]:
            fitting.append(head)
    order = ["round", *heads, "epsilon", "staleness", "distance", "sent", "peers", "heard"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("member", overflow="ellipsis", no_wrap=True, max_width=LONGEST_NAME)
    table.add_column("state", overflow="fold", max_width=LONGEST_STATE)
    for head in (columns := [head for head in order if head in fitting]):
        table.add_column(Text(head), justify="right", no_wrap=True)
    for row, state, cells in zip(members, states, rows, strict=True):
        table.add_row(Text(str(row["name"])), state, *(cells[head] or "-" for head in columns))
    tested = _numbers([row for row in members if row.get(MAIN) is not None], "tested_round")
    notes = ["* received through others"] if any(row.get("source") for row in members) else []
    table.caption = "\n".join([*notes, *footnote(tested), *federation.get("notes", ())]) or None
    table.caption_justify = "left"
    return table


def _state(row: Row) -> Text:
    color = "red" if row.get("died") else COLORS.get(state_of(row), "yellow")
    state = Text(state_of(row), style=color)
    for kind in row.get("standing") or ():
        state.append(f" {kind}", style="bold red")
    return state


def _cells(row: Row, measures: Sequence[Mapping[str, Any]], now: float) -> dict[str, str | None]:
    """Return a member's figures by heading, None for those that are not known."""
    scores = {**(row.get("scores") or {}), measures[0]["name"]: row.get(MAIN)}
    at, sent, live = row.get("at"), row.get("bytes_sent"), row.get("live")
    heard = f"{age(max(0.0, now - at))}{'*' if row.get('source') else ''}" if isinstance(at, int | float) else None
    star = STALE if row.get("tested_round") is not None else ""
    cells = {"round": _cell(row.get("rounds"), "d")}
    for measure in measures:
        has_any_size = not measure.get("higher_is_better", True) and measure["name"] != "loss"
        cell = _cell(scores.get(measure["name"]), ".4g" if has_any_size else ".3f")
        cells[measure["label"]] = cell and cell + star
    return cells | {
        "epsilon": _cell(row.get("epsilon"), ".3g"),
        "staleness": _cell(row.get("staleness"), ".1f"),
        "sent": size(sent) if isinstance(sent, int) else None,
        "peers": _cell(len(live) if isinstance(live, list) else live, ""),
        "distance": _cell(row.get("distance"), ".1e"),
        "heard": heard,
    }


def _cell(value: Any, form: str) -> str | None:
    return value if isinstance(value, str) else format(value, form) if isinstance(value, int | float) else None


def _alarms(federation: Mapping[str, Any]) -> Iterable[RenderableType]:
    for alarm in federation["alarms"]:
        about = f" {alarm['about']}" if alarm.get("about") else ""
        text = Text()
        text.append(f"{alarm['kind']}{about}", style="bold red")
        text.append(f" for {age(max(0.0, federation['now'] - alarm['since']))}: {alarm['text']}\n")
        text.append(f"  this node: {alarm['does']}\n  to do: {alarm['advice']}", style="dim")
        yield text


def _events(federation: Mapping[str, Any]) -> Iterable[RenderableType]:
    for event in list(reversed(federation["events"]))[:EVENTS]:
        about = f" {event['about']}" if event.get("about") else ""
        text = Text(overflow="ellipsis", no_wrap=True)
        text.append(f"{age(max(0.0, federation['now'] - event['at'])):>7} ago  ", style="dim")
        text.append(f"{event['kind']}{about}", style="bold red" if event.get("wrong") else "bold")
        text.append(f"  {event['text']}")
        yield text
