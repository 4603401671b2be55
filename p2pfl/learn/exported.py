"""A model in a file that `p2pfl export` made: plain safetensors, with metadata. Needs neither federation nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from p2pfl.errors import UserError

PREPROCESSING = "preprocessing"
"""The key in the file's metadata: how raw data become inputs, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An exported model. `preprocessing` is empty where the file has none."""

    preprocessing: str
    state: Mapping[str, NDArray[Any]]


def read_exported(path: Path) -> Exported | None:
    """Read a model; None if it has no preprocessing, so that its federation must supply it. Raises UserError: it cannot
    be read.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            said = (file.metadata() or {}).get(PREPROCESSING, "")
            state = {name: file.get_tensor(name) for name in file.keys()} if said else {}  # noqa: SIM118 - no mapping
    except (safetensors.SafetensorError, OSError, TypeError) as error:
        raise UserError(f"this is not a safetensors file: {error}", file=path) from None
    return Exported(preprocessing=said, state=state) if said else None
