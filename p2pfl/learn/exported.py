"""A model file written by `p2pfl export`: plain safetensors with metadata. Reading it needs neither the federation nor
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.foreign import refuse_special

PREPROCESSING = "preprocessing"
"""The key in the file's metadata for the preprocessing: how raw data become inputs, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An exported model. `preprocessing` is empty if the file has none."""

    preprocessing: str
    state: Mapping[str, NDArray[Any]]


def read_exported(path: Path) -> Exported | None:
    """Read a model; return None if it has no preprocessing, which its federation must then supply. Raises UserError: it
    cannot be read.
    """
    refuse_special(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            said = (file.metadata() or {}).get(PREPROCESSING, "")
            state = {name: file.get_tensor(name) for name in file.keys()} if said else {}  # noqa: SIM118 - no mapping
    except (safetensors.SafetensorError, OSError, TypeError) as error:
        raise UserError(f"this is not a safetensors file: {error}", file=path) from None
    return Exported(preprocessing=said, state=state) if said else None
