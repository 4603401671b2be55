"""What a feature brings to `p2pfl new`: options, and what follows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click


@dataclass(slots=True, kw_only=True)
class FoundingPlan:
    """A federation that is about to be written, as far as it is said. `nodes` and `topology` may have a default yet."""

    task: str
    nodes: tuple[str, ...] | None
    topology: str | None
    admin: str | None = None
    """The public half of a key."""
    task_keys: str = ""
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What stands in `[data]`, by node."""
    files: dict[str, str] = field(default_factory=dict)
    """What else stands beside the federation file, by name."""


class Founding:
    """Of one feature, for one federation."""

    parameters: Sequence[click.Parameter] = ()
    after = ""
    """The option behind which they are listed."""

    def plan(self, plan: FoundingPlan, said: Mapping[str, Any]) -> None:
        """Change it by what was said. Raises UserError, ExceptionGroup of such: that cannot be."""

    def write(self, folder: Path) -> None:
        """All files are there, in a folder that appears when all is well."""

    def tell(self, directory: Path) -> None:
        """That folder has appeared as `directory`."""
