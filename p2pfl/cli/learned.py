"""`p2pfl evaluate` and `p2pfl export`: use a node's model.

`evaluate` measures how good the model is, on the common test set and on the node's own data; `export` writes it as a
plain torch `state_dict` in a safetensors file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from p2pfl.console.output import Form, format_option, write_facts, write_json
from p2pfl.errors import UserError
from p2pfl.learn.table.csv_task import onnx_file, table_model, xgboost_file
from p2pfl.node.folders import appearing
from p2pfl.node.outcomes import Learned, read_learned
from p2pfl.plugins import software
from p2pfl.reporting.plot import check_target
from p2pfl.reporting.report import SCORE
from p2pfl.storage.disk import replace_file

SOFTWARE = f"p2pfl {software()}"
STDOUT = Path("-")
FOLDERS = ("peft", "merged")
"""The formats that are a folder; a task says which of them it has."""
ORIGIN_FILE = "p2pfl.json"
"""The origin of the model in such a folder, which also shows that the folder may be replaced."""
FORMS = {".onnx": "onnx", ".json": "xgboost"}
"""The formats that the name of a file says."""
FEDERATION = click.option(
    "--federation", type=click.Path(path_type=Path), help="Its file; by default looked for above SNAPSHOT."
)


@click.command(
    epilog="\b\nExamples:\n  p2pfl evaluate ward-7/node0\n  p2pfl evaluate model.safetensors --federation ward-7"
)
@click.argument("snapshot", metavar="SNAPSHOT", type=click.Path(path_type=Path))
@FEDERATION
@click.option("--node", metavar="NAME", help="The node whose data to use, if SNAPSHOT does not say.")
@format_option("table", "json")
def evaluate(*, snapshot: Path, federation: Path | None, node: str | None, form: Form) -> None:
    """Test the model that a node has learned.

    SNAPSHOT is a node's folder, or the federation's with --node, or the node's state folder, or a file from `p2pfl
    export`. The node may be running: its folder is only read, up to the last round on disk.
    """
    learned = _read(snapshot, federation, node)
    facts = _facts(learned)
    if getattr(learned.learner, "plan", None) is not None:
        text = "withheld, as computed from the data without noise: scores on the node's own data"
        text += "" if facts["test_samples"] else ", and on a test set that is private"
        click.echo(f"{text}; {SCORE}" if learned.preprocessing else text, err=True)
    if form == "json":
        write_json(facts)
    else:
        write_facts(_one_by_one(facts))


def _read(snapshot: Path, federation: Path | None, node: str | None) -> Learned:
    learned = read_learned(snapshot, federation=federation, node=node)
    for warning in learned.warnings:
        click.echo(f"warning: {warning}", err=True)
    return learned


@click.command(
    epilog="\b\nExamples:\n  p2pfl export ward-7/node0 -o model.safetensors"
    "\n  p2pfl export chat/anna -o anna --format peft"
)
@click.argument("snapshot", metavar="SNAPSHOT", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The file or folder to write; - for stdout."
)
@FEDERATION
@click.option("--node", metavar="NAME", help="The node, if SNAPSHOT does not say.")
@click.option(
    "--finetune",
    type=click.IntRange(1),
    metavar="EPOCHS",
    help="First train this many epochs on the node's data; only its personal parameters, if it has any.",
)
@click.option("--force", is_flag=True, help="Replace an existing file or folder.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "onnx", "xgboost", *FOLDERS]),
    help="By default that of OUTPUT's name, else safetensors. onnx: for a csv task, including its preprocessing. "
    "xgboost: trees in XGBoost's JSON. peft: a folder with the adapters of a language model; merged: with the model "
    "and the adapters in it.",
)
def export(
    *,
    snapshot: Path,
    output: Path,
    federation: Path | None,
    node: str | None,
    finetune: int | None,
    force: bool,
    form: str | None,
) -> None:
    """Write the model that a node has learned as a plain file, or as a folder that other libraries read.

    SNAPSHOT is a node's folder, or the federation's with --node, or a state folder; the node may be running. The file
    is readable only by you (mode 600), because a model reveals something about its data. Your own module reads it:
    module.load_state_dict(safetensors.torch.load_file("model.safetensors")). For a csv task the file also contains the
    preprocessing of raw rows, for `p2pfl predict`; OUTPUT.schema.json, next to it, is a readable copy of that. Trees
    have no module: `p2pfl predict` reads them, XGBoost their JSON.
    """
    form = form or FORMS.get(output.suffix, "safetensors")
    if form in FOLDERS:
        _check_free_folder(output, force=force)
    elif output != STDOUT:
        _check_free(output, force=force)
    beside = output.with_suffix(".schema.json") if output != STDOUT and form != "onnx" else None
    learned = _read(snapshot, federation, node)
    if finetune:
        learned = learned.finetune(finetune)
    if form in FOLDERS:
        _write_folder(output, form, learned)
        return
    content = learned.export(SOFTWARE) if form == "safetensors" else _for_others(learned, form)
    if beside is not None and learned.preprocessing:
        readable = json.dumps(learned.preprocessing, indent=2, ensure_ascii=False).encode() + b"\n"
        if not beside.is_file() or beside.read_bytes() != readable:  # another export of this model has the same
            _check_free(beside, force=force)
            replace_file(beside, [readable])
    if output == STDOUT:
        sys.stdout.buffer.write(content)
    else:
        replace_file(output, [content])


def _for_others(learned: Learned, form: str) -> bytes:
    """Return a file in a form for other programs. Raises UserError: there is none of such a model."""
    if not learned.preprocessing:
        text = "this format is for models of tables, the task csv"
        raise UserError(text, key="--format", value=form, allowed="safetensors, for torch.onnx.export of your module")
    model = table_model(learned.preprocessing, learned.learner.state_dict(learned.vector))
    return onnx_file(model, learned.metadata(SOFTWARE)) if form == "onnx" else xgboost_file(model)


def _facts(learned: Learned) -> dict[str, Any]:
    """Return scores, named as in a node's status and result; None without data."""
    test, local = (learned.learner.evaluate(learned.vector, part) for part in ("test", "local"))
    return {
        "federation": learned.federation,
        "node": learned.node,
        "rounds": learned.rounds,
        "version": learned.version,
        "accuracy": test and test.accuracy,
        "test_loss": test and test.loss,
        "test_samples": test and test.samples,
        "test_metrics": test.metrics if test else {},
        "local_accuracy": local and local.accuracy,
        "local_loss": local and local.loss,
        "local_samples": local and local.samples,
        "local_metrics": local.metrics if local else {},
    }


def _one_by_one(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Put each metric on a separate line."""
    shown: dict[str, Any] = {}
    for key, value in facts.items():
        part = key.removesuffix("_metrics")
        shown |= {key: value} if part == key else {f"{part}_{name}": number for name, number in value.items()}
    return shown


def _check_free(output: Path, *, force: bool) -> None:
    check_target(output, key="--output")
    if output.exists() and not force:
        raise UserError("already exists", key="--output", value=str(output), allowed="a new file, or --force")


def _check_free_folder(output: Path, *, force: bool) -> None:
    if output == STDOUT or (output.exists() and not output.is_dir()):
        raise UserError("this format is a folder", key="--output", value=str(output), allowed="a new folder")
    if not output.absolute().parent.is_dir():
        raise UserError("no such folder", key="--output", value=str(output.parent), allowed="a folder that exists")
    there = list(output.iterdir()) if output.is_dir() else []
    is_ours = (output / ORIGIN_FILE).is_file() and not any(file.is_dir() for file in there)
    if there and not (force and is_ours):
        allowed = "a new or an empty folder, or --force to replace one that export has written"
        raise UserError("already exists", key="--output", value=str(output), allowed=allowed)


def _write_folder(output: Path, form: str, learned: Learned) -> None:
    """Write the folder completely or not at all, and readable only by its owner: a model tells of its training data."""
    with appearing(output.absolute(), replacing=output.is_dir()) as folder:
        learned.write_folder(form, folder)
        origin = json.dumps(learned.metadata(SOFTWARE), ensure_ascii=False, indent=1)
        (folder / ORIGIN_FILE).write_text(f"{origin}\n", encoding="utf-8")
        folder.chmod(0o700)
