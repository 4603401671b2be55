"""`p2pfl predict` and `p2pfl score`: a federation's model on the rows of a table, without or with the target."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from p2pfl.console.output import Form, cell, format_option, write_facts, write_json, write_rows
from p2pfl.errors import UserError
from p2pfl.learn.load import read_exported
from p2pfl.learn.table.csv_task import table_model
from p2pfl.learn.table.reading import read_table, say_what_is_odd
from p2pfl.learn.table.rows import KEYS, Layout, guess_layout, make_layout
from p2pfl.learn.table.scoring import Figure, ScoresTables, TableOutputs, read_preprocessing, tested

ALLOWED = "a node whose task is csv, or a safetensors file that `p2pfl export` made of one"


class Read(NamedTuple):
    """A model and the table's layout; `learned_from` is the node's own table, None if unknown."""

    model: ScoresTables
    layout: Layout
    learned_from: Path | None


@click.command(epilog="\b\nExample:\n  p2pfl predict hospitals/site1 new.csv > scores.csv")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("table", metavar="TABLE", type=click.Path(path_type=Path))
@format_option("csv", "json", "table")
def predict(*, model: Path, table: Path, form: Form) -> int:
    """Predict the target of each row of TABLE.

    MODEL is the folder of a node whose task is csv, its state folder, or a file from `p2pfl export`, which needs
    neither a federation nor torch. TABLE needs no target. The result has one row for each of its rows, in the same
    order, with the prediction and the probability of each class. Columns that TABLE lacks, and values that the model
    does not know, count as missing.
    """
    found, layout, _ = read_model(model, table)
    rows = read_table(table, found.schema, layout, scoring=True)
    for text in say_what_is_odd(rows, "TABLE"):
        click.echo(f"warning: {text.replace(' of node TABLE', '')}", err=True)
    write_rows(list(_by_row(found.scores(rows))), form)
    sys.stdout.flush()
    return 0


def read_model(path: Path, table: Path) -> Read:
    """Return the model and the table's layout, which is guessed from its content, with the names and codes from the
    node's own table.
    """
    if reader := {".onnx": "onnxruntime", ".json": "XGBoost"}.get(path.suffix):
        text = f"this file is for other programs, such as {reader}, and is not read here"
        raise UserError(text, key="MODEL", value=str(path), allowed=ALLOWED)
    found = read_exported(path) if path.is_file() else None
    if found is not None:
        preprocessing: Mapping[str, Any] = read_preprocessing(found.preprocessing) or {}
        state, local = found.state, dict[str, Any]()
    else:
        from p2pfl.node.outcomes import read_learned  # noqa: PLC0415 - as above, and it imports torch

        learned = read_learned(path)
        for warning in learned.warnings:
            click.echo(f"warning: {warning}", err=True)
        preprocessing, state = learned.preprocessing, learned.learner.state_dict(learned.vector)
        local = dict(getattr(getattr(learned.learner, "context", None), "local", {}))
    if not preprocessing:
        raise UserError("this model is not of a csv task", key="MODEL", value=str(path), allowed=ALLOWED)
    try:
        model = table_model(preprocessing, state)
    except UserError as error:
        error.file = error.file or str(path)
        raise
    guessed = guess_layout(table)
    looks = {key: getattr(guessed, key) for key in ("separator", "decimal", "encoding")}
    layout = make_layout({"missing": preprocessing["missing"]}, _of_layout(local) | looks)
    return Read(model, layout, Path(local["path"]) if "path" in local else None)


def _of_layout(local: Mapping[str, Any]) -> dict[str, Any]:

    return {key: value for key, value in local.items() if key in KEYS}


def _by_row(columns: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


OWN = "the node has learned from rows of this very table: it will do worse on others"


@click.command(epilog="\b\nExample:\n  p2pfl score hospitals/site1 test.csv\n  p2pfl score model.safetensors test.csv")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("table", metavar="TABLE", type=click.Path(path_type=Path))
@format_option("table", "json", "csv")
def score(*, model: Path, table: Path, form: Form) -> int:
    """Measure how good a model is on TABLE.

    MODEL is the folder of a node whose task is csv, its state folder, or a file from `p2pfl export`. TABLE has the
    target, and rows that no node has trained on; rows without a target are left out. Each metric has a 95% interval,
    which covers the chance in the choice of rows. Nothing is sent to anybody, so this also works for a federation with
    [privacy], whose nodes report no scores; but the figures reveal something about TABLE's rows.
    """
    found, layout, learned_from = read_model(model, table)
    rows = read_table(table, found.schema, layout, testing=True)
    for text in say_what_is_odd(rows, "TABLE"):
        click.echo(f"warning: {text.replace(' of node TABLE', '')}", err=True)
    if learned_from is not None and learned_from.resolve() == table.resolve():
        click.echo(f"warning: {OWN}", err=True)
    result = tested(found, rows)
    figures = list(result.figures())
    if undefined := [one.label for one in figures if one.value is None]:
        click.echo(f"warning: not defined here: {', '.join(undefined)}: {result.why_undefined()}", err=True)
    _show(result, figures, form, left_out=rows.without_target)
    return 0


def _show(result: TableOutputs, figures: list[Figure], form: Form, *, left_out: int) -> None:
    counts, rows = result.class_counts, [_row(one) for one in figures]
    if form == "json":
        write_json({"rows": len(result), "rows_left_out": left_out, "classes": counts, "metrics": rows})
    elif form == "csv":
        write_rows([row | {"rows": len(result)} for row in rows], "csv")
    else:
        classes = counts and ", ".join(f"{name} {count}" for name, count in counts.items())
        write_facts({"rows": len(result), "classes": classes})
        write_rows([_line(one) for one in figures], "table")


def _line(figure: Figure) -> dict[str, Any]:
    return {
        "metric": figure.label,
        "value": figure.value,
        "95% interval": None if figure.interval is None else cell(list(figure.interval)),
        "better": "higher" if figure.higher_is_better else "lower",
    }


def _row(figure: Figure) -> dict[str, Any]:
    low, high = figure.interval or (None, None)
    return {
        "metric": figure.name,
        "value": figure.value,
        "low": low,
        "high": high,
        "higher_is_better": figure.higher_is_better,
    }
