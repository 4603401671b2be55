"""Text files as rows of token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.foreign import read_file

FEWEST = 2
"""A node needs a row to train on and one to test on."""


def texts_in(path: Path) -> list[tuple[Path, str]]:
    """Return the texts of a file, or of the .txt files of a folder in the order of their names.

    Raises UserError: there is none, or one is empty or not UTF-8.
    """
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise UserError("the folder has no text", file=path, allowed="*.txt files in UTF-8")
    return [(file, _text(file)) for file in files]


def _text(file: Path) -> str:
    try:
        text = read_file(file, allowed="a text file").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("is not UTF-8", file=file, value=f"byte {error.start}", allowed="text in UTF-8") from None
    if not text.strip():
        raise UserError("is empty", file=file, allowed="some text")
    return text


def blocks_of(texts: list[tuple[Path, str]], tokenizer: Any, block: int, words: int | None = None) -> NDArray[np.int64]:
    """Return the tokens of all texts as rows (n, block); each text ends with the end-of-text token, if there is one.

    The last tokens that fill no row are left out. Raises UserError: there are too few, or one is not among the `words`
    that a model knows.
    """
    ids: list[int] = []
    for _, text in texts:
        ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if tokenizer.eos_token_id is not None:
            ids.append(tokenizer.eos_token_id)
    if words is not None and ids and (most := max(ids)) >= words:
        raise UserError(
            "the tokenizer has words that the model lacks", key="model", value=most, allowed=f"ids below {words}"
        )
    rows = len(ids) // block
    if rows < FEWEST:
        place, allowed = texts[0][0], f"at least {FEWEST * block}: more text, or a smaller task.block"
        raise UserError("has too few tokens", file=place, value=len(ids), allowed=allowed)
    return np.array(ids[: rows * block], np.int64).reshape(rows, block)
