"""The options of `p2pfl new` for `--task lora`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from p2pfl.config.tables import NAME
from p2pfl.console import NewOptions, NewPlan
from p2pfl.errors import UserError

TRAINING = {"optimizer": "adamw", "learning_rate": 0.002, "method": "plain"}
"""Better for adapters than the defaults. `variate` would steer by steps of AdamW, which are much larger than the
gradients that it corrects: nodes would hardly learn.
"""
RANK = 8
KEYS = (
    f"rank = {RANK}  # of the adapters: the larger, the more they can learn, and the longer a message",
    "alpha = 16  # scale of the adapters: they count alpha / rank",
    "block = 128  # tokens in a row",
    "# dropout = 0.0  # of the adapters",
    "# checkpointing = false  # true: compute activations again: less memory, longer steps",
    '# Layers with adapters, by the ends of their names, instead of all but the last: modules = ["q_proj", "v_proj"]',
    '# Texts on which all nodes test, instead of the last tenth of their own: test_path = "common.txt"',
)


class TextsOptions(NewOptions):
    parameters = (
        click.Option(
            ["--model"],
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="With --task lora: a Hugging Face folder.",
        ),
        click.Option(
            ["--data"],
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="With --task lora: texts, one for each node.",
        ),
    )
    after = "task"

    def plan(self, plan: NewPlan, said: Mapping[str, Any]) -> None:
        """Plan a node for each text; for other tasks, refuse the options."""
        from p2pfl.config.writing import toml_value  # noqa: PLC0415 - `--help` stays instant

        model, data = said["model"], said["data"]
        if plan.task != "lora":
            for key, value in (("--model", model), ("--data", data)):
                if value:
                    text = "this is only for --task lora"
                    raise UserError(text, key=key, value=str(value), allowed="--task lora")
            return
        for key, value in (("--model", model), ("--data", data)):
            if value is None:
                raise UserError("is missing", key=key, allowed=f"--task lora with {key} DIR")
        from p2pfl.adapt.transformers import adapter_values, checked_folder, texts_in  # noqa: PLC0415 - `--help` stays instant

        folder, texts = checked_folder(model), _texts(data)
        if len(texts) < 2:
            text = "there is only one text, and a federation has two nodes or more"
            raise UserError(
                text, key="--data", value=texts[0].name, allowed="a text, or a folder of texts, for each node"
            )
        names = plan.nodes or tuple(_name(path) for path in texts)
        if len(names) != len(texts) or len(set(names)) < len(names):
            text = f"there must be a name for each of {len(texts)} texts"
            raise UserError(text, key="--nodes", value=", ".join(names), allowed=", ".join(map(_name, texts)))
        for path in texts:
            texts_in(path)
        plan.nodes = names
        plan.data = {name: {"path": str(path)} for name, path in zip(names, texts, strict=True)}
        plan.task_keys = "\n".join((f"model = {toml_value(str(folder))}", *KEYS)) + "\n"
        plan.training, plan.size = TRAINING, adapter_values(folder, RANK)


def _texts(data: Path) -> list[Path]:
    """Return the .txt files of a folder, and its folders with such files. Raises UserError: there are none."""
    there = sorted(data.absolute().iterdir()) if data.is_dir() else []
    paths = [path for path in there if path.suffix == ".txt" or (path.is_dir() and any(path.glob("*.txt")))]
    if not paths:
        raise UserError("no texts are there", key="--data", value=str(data), allowed="a folder with .txt files")
    return paths


def _name(path: Path) -> str:
    """Make a node's name of that of its text."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-")[:64]
    return plain if NAME.fullmatch(plain) else "text"
