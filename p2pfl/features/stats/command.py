"""`p2pfl stats`: counts, means, quantiles and histograms of all sites' tables."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console import seconds_now
from p2pfl.console.output import Form, cell, format_option, log_to_stderr, write_facts, write_json, write_rows
from p2pfl.errors import UserError

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig
    from p2pfl.features.stats.survey import Bar, Quantile, Statistics, SurveyFigures

HIDDEN = "hidden"


@click.command(
    epilog="\b\nExamples:\n  p2pfl stats hospitals --columns age,chol --by sex"
    "\n  p2pfl stats hospitals --node south --answer\n  p2pfl stats hospitals --node north --columns age"
)
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--columns", metavar="NAMES", help="The columns, such as age,chol.")
@click.option("--by", metavar="COLUMN", help="Figures of each group by this categorical column.")
@click.option("--node", metavar="NAME", help="The node that asks, or answers; without it, all nodes are here.")
@click.option("--answer", "answers", is_flag=True, help="Answer questions of others, until stopped.")
@format_option("table", "json")
def stats(
    *,
    folder: Path,
    columns: str | None,
    by: str | None,
    node: str | None,
    answers: bool,
    form: Form,
) -> int:
    """Show counts, means and quantiles of all sites' tables.

    FOLDER has the federation.toml of a csv task. The figures come from secure sums: nobody sees those of a site. Each
    site decides by `[stats]` in its node.toml whom it answers about which columns, and how often; by default it answers
    nobody. It logs each question in stats.log of its state folder. Counts of few rows are hidden, and others with them
    from which they could be computed.

    If all nodes' folders are here, one program does it. Else each site runs it with --answer, and one asks with --node
    and --columns. A node that answers does not train meanwhile.
    """
    from p2pfl.features.stats.node import answer_others, ask  # noqa: PLC0415 - `--help` stays instant

    log_to_stderr()
    if answers:
        name = _required("--node", node, "the node that answers")
        answering = answer_others(folder, name, on_start=lambda: click.echo(f"{name} answers"), on_end=_tell)
        asyncio.run(answering)
        return 0
    names = tuple(filter(None, map(str.strip, _required("--columns", columns, "names of columns").split(","))))
    if not names:
        raise UserError("no column", key="--columns", value=columns, allowed="names of columns, such as age,chol")
    _show(*ask(folder, node, names, by), form)
    return 0


def _required(key: str, value: str | None, allowed: str) -> str:
    if value is None:
        raise UserError("is missing", key=key, allowed=allowed)
    return value


def _tell(asker: str, words: str, failure: str | None) -> None:
    at = datetime.fromtimestamp(seconds_now(), UTC).astimezone().isoformat(sep=" ", timespec="seconds")
    click.echo(f"{at} {asker} asks for {words}: {failure or 'answered'}")


def _show(federation: FederationConfig, statistics: Statistics, form: Form) -> None:
    from p2pfl.features.stats.survey import MISSING  # noqa: PLC0415 - `--help` stays instant

    nodes = [member.name for member in federation.present]
    if form == "json":
        write_json({"federation": federation.name, "nodes": nodes} | facts_of(statistics))
        return
    write_facts(
        {
            "federation": federation.name,
            "nodes": ", ".join(nodes),
            "rows": statistics.rows,
            "hidden": f"what fewer than {statistics.asked.least_rows} rows or 3 nodes have, and what would tell it",
        }
    )
    by, groups = statistics.asked.by, statistics.groups
    if by is not None:
        click.echo()
        write_rows([{by: name, "rows": _count(rows)} for name, rows in groups.items()], "table")
    figures = [figure for figure in statistics.figures if by is None or groups.get(str(figure.group)) is not None]
    if numbers := [figure for figure in figures if figure.categories is None]:
        click.echo()
        write_rows([_number_row(figure, by) for figure in numbers], "table")
    for figure in numbers:
        if figure.histogram:
            click.echo()
            rows = [{figure.column: _range(bar), "rows": _count(bar.rows)} for bar in figure.histogram]
            write_rows(rows, "table")
    for figure in figures:
        if figure.categories is not None:
            click.echo()
            shown = [*figure.categories.items(), (MISSING, figure.missing)]
            write_rows([{_titled(figure, by): name, "rows": _count(count)} for name, count in shown], "table")


def _titled(figures: SurveyFigures, by: str | None) -> str:
    return figures.column if by is None else f"{figures.column}, {by} = {figures.group}"


def _number_row(figures: SurveyFigures, by: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"column": figures.column} | ({} if by is None else {by: figures.group})
    row |= {"n": _count(figures.rows), "missing": _count(figures.missing)}
    row |= {"mean": _figure(figures.mean), "sd": _figure(figures.deviation)}
    named = {quantile.share: quantile for quantile in figures.quantiles}
    return row | {f"{share:.0%}": _quantile(named.get(share)) for share in (0.05, 0.25, 0.5, 0.75, 0.95)}


def _figure(value: float | None) -> str:
    return HIDDEN if value is None else cell(value)


def _count(value: int | None) -> int | str:
    return HIDDEN if value is None else value


def _quantile(quantile: Quantile | None) -> str:
    match quantile:
        case None:
            return HIDDEN
        case _ if quantile.value is not None:
            return f"{quantile.value:.4g} ±{quantile.bound:.2g}"
        case _ if quantile.high is not None:
            return f"below {quantile.high:.4g}"
        case _ if quantile.low is not None:
            return f"above {quantile.low:.4g}"
        case _:
            return HIDDEN


def _range(bar: Bar) -> str:
    if bar.low is None and bar.high is None:
        return "all"
    if bar.low is None:
        return f"below {bar.high:.6g}"
    return f"{bar.low:.6g} and above" if bar.high is None else f"{bar.low:.6g} to {bar.high:.6g}"


def facts_of(statistics: Statistics) -> dict[str, Any]:
    """Return the statistics as JSON values; null is hidden, or not defined."""
    return {
        "rows": statistics.rows,
        "least_rows": statistics.asked.least_rows,
        "by": statistics.asked.by,
        "groups": dict(statistics.groups) or None,
        "figures": [
            {
                "column": figure.column,
                "group": figure.group,
                "n": figure.rows,
                "missing": figure.missing,
                "mean": figure.mean,
                "sd": figure.deviation,
                "quantiles": [
                    {"share": each.share, "value": each.value, "bound": each.bound, "low": each.low, "high": each.high}
                    for each in figure.quantiles
                ],
                "histogram": [{"low": bar.low, "high": bar.high, "rows": bar.rows} for bar in figure.histogram],
                "categories": None if figure.categories is None else dict(figure.categories),
            }
            for figure in statistics.figures
        ],
    }
