"""A causal language model and its tokenizer, loaded once for each process.

The folder's weights are safetensors and stay mapped from the file, no other format is read, nothing is fetched, and no
code of the folder runs.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError

from p2pfl.adapt.model_folder import TOKENIZERS
from p2pfl.errors import UserError

MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pretrained:
    """A pretrained model with its tokenizer: in a `folder`, or as objects."""

    folder: Path | None = None
    given: Any = None
    given_tokenizer: Any = None

    def model(self) -> Any:
        """Return the pretrained model, which is never trained itself."""
        return self.given if self.folder is None else _loaded(self.folder)

    def refuse_size(self, models: int) -> None:
        """Refuse a folder whose weights, in memory `models` times, are more than this machine has, before any is read.

        Raises UserError.
        """
        here = memory_bytes()
        if self.folder is None or here is None:
            return
        needed = models * sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))
        if needed > here:
            text, allowed = "the model is larger than the memory", f"{here // MB} MB on this machine"
            raise UserError(text, file=self.folder, key="model", value=f"{needed // MB} MB", allowed=allowed)

    def digest(self) -> bytes:
        return b"" if self.folder is None else _digest(self.folder)

    def tokenizer(self) -> Any:
        return self.given_tokenizer if self.folder is None else _tokenizer(self.folder)


def memory_bytes() -> int | None:
    """Return how much memory this machine has; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


@lru_cache(maxsize=2)
def _loaded(folder: Path) -> Any:
    """Load a model once for each process. Its weights stay mapped from the file.

    Raises UserError: it cannot be loaded, or the file lacks weights, which transformers would draw by chance.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - an extra
    from transformers.utils import logging  # noqa: PLC0415 - as above

    logging.disable_progress_bar()
    told, allowed = logging.get_verbosity(), "a causal language model of transformers"
    logging.set_verbosity(logging.CRITICAL)  # what matters is the error below
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype="auto",
            ignore_mismatched_sizes=True,  # to name them
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"the model {_reason(error)}", file=folder, key="model", allowed=allowed) from error
    finally:
        logging.set_verbosity(told)
    if lost := sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}):
        text, value = "the weights do not fit config.json: some are missing, or have another shape", ", ".join(lost[:3])
        raise UserError(text, file=folder, key="model", value=value, allowed=allowed)
    return model.requires_grad_(requires_grad=False)


def _reason(error: Exception) -> str:
    """Return why a part of a folder is not used, in one line."""
    said = " ".join(str(error).split())
    if "trust_remote_code" in said:
        return "needs code of its own, which is not run"
    return f"cannot be loaded: {said[:300]}"


@lru_cache(maxsize=2)
def _digest(folder: Path) -> bytes:
    """Return a digest of weights and tokenizer, because adapters of different models must not be mixed."""
    digest = xxhash.xxh3_128()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("token*"), folder / "config.json"]):
        with file.open("rb") as opened:
            while part := opened.read(1 << 20):
                digest.update(part)
    return hashlib.blake2b(digest.digest(), digest_size=32, person=b"p2pfl-weights").digest()


@lru_cache(maxsize=2)
def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - an extra

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"the tokenizer {_reason(error)}"
        raise UserError(text, file=folder, key="model", allowed=", ".join(TOKENIZERS)) from error
