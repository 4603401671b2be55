"""`p2pfl evaluate FOLDER --federation`: how good the models are on the test rows of all nodes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from p2pfl.config.load import federation_file
from p2pfl.console.output import Form, log_to_stderr, write_facts, write_json, write_rows
from p2pfl.errors import UserError
from p2pfl.fleet.evaluating import FederationScore, evaluate_here, evaluate_with_others

MOST_CLASSES = 12
"""A larger confusion matrix is only in JSON."""


def evaluate_all(folder: Path, node: str | None, finetune: int | None, form: Form) -> int:
    """Do the command. Raises UserError."""
    if not federation_file(folder).is_file():
        text = "not the folder of a federation"
        raise UserError(text, key="SNAPSHOT", value=str(folder), allowed="a folder with federation.toml, or that file")
    if node is None:
        found = evaluate_here(folder, finetune=finetune)
    else:
        log_to_stderr()
        text = "waiting for the other nodes, at most a quarter of an hour: start them too"
        found = evaluate_with_others(folder, node, finetune=finetune, on_wait=lambda: click.echo(text, err=True))
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)
    if form == "json":
        write_json(_facts_of_all(found))
    else:
        _show_all(found)
    return 0


def _facts_of_all(score: FederationScore) -> dict[str, Any]:
    figures = score.figures
    confusion = None if figures.confusion is None else figures.confusion.tolist()
    return {
        "federation": score.federation,
        "nodes": list(score.nodes),
        "rows": figures.rows,
        "measure": score.main.name,
        "mean": figures.main,
        "loss": figures.loss,
        "auc": figures.area and asdict(figures.area),
        "calibration_error": figures.calibration_error,
        "calibration": [asdict(part) for part in figures.calibration],
        "classes": list(score.classes) or None,
        "confusion": confusion,
    }


def _show_all(score: FederationScore) -> None:
    figures = score.figures
    area = figures.area and f"{figures.area.value:.4f}, off by at most {figures.area.error:.2g}"
    facts = {
        "federation": score.federation,
        "nodes": ", ".join(score.nodes),
        "test rows": figures.rows,
        f"mean {score.main.label}": figures.main,
        **({"mean loss": figures.loss} if score.main.name != "loss" else {}),
        "AUC over all rows": area,
        "calibration error": figures.calibration_error,
    }
    write_facts(facts)
    if figures.confusion is not None and len(figures.confusion) <= MOST_CLASSES:
        names = score.classes or tuple(map(str, range(len(figures.confusion))))
        rows = [
            {"true": name} | {f"as {other}": int(count) for other, count in zip(names, counts, strict=True)}
            for name, counts in zip(names, figures.confusion, strict=True)
        ]
        click.echo()
        write_rows(rows, "table")
    if figures.calibration:
        parts = [
            {"probability": f"{part.low:.1f} to {part.high:.1f}", "rows": part.rows}
            | {"mean": part.predicted, "positive": part.observed}
            for part in figures.calibration
        ]
        click.echo()
        write_rows(parts, "table")
