"""A language model as a Hugging Face folder, looked at before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from p2pfl.errors import UserError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def checked_folder(folder: Path) -> Path:
    """Return the absolute path of a model's folder. Raises UserError: a part of it is missing."""
    allowed = "a Hugging Face folder with config.json, a tokenizer and *.safetensors"
    if not folder.is_dir():
        text = "is not a folder" if folder.exists() else "there is no such folder"
        raise UserError(text, file=folder, key="model", allowed=allowed)
    if not (folder / "config.json").is_file():
        raise UserError("there is no model: config.json is missing", file=folder, key="model", allowed=allowed)
    if not any(folder.glob("*.safetensors")):
        text = "there are no weights as safetensors, and others are not read"
        raise UserError(text, file=folder, key="model", allowed=allowed)
    if (folder / "adapter_config.json").exists():
        text = "the folder has adapters of its own, which are not read"
        raise UserError(text, file=folder, key="model", allowed="the model without them, or merged with them")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError("there is no tokenizer", file=folder, key="model", allowed=", ".join(TOKENIZERS))
    return folder.absolute()
