"""Options that a feature adds to `p2pfl new`, and their effect on the new federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click


@dataclass(slots=True, kw_only=True)
class FoundingPlan:
    """A federation that is about to be written, as far as options define it. `nodes` and `topology` may
    still be open.
    """

    task: str
    nodes: tuple[str, ...] | None
    topology: str | None
    admin: str | None = None
    """The public key of the admin."""
    task_keys: str = ""
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The table `[data]` of each node."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files beside the federation file, by name."""


class Founding:
    """A feature's part in one `p2pfl new`."""

    parameters: Sequence[click.Parameter] = ()
    after = ""
    """The option after which they are listed."""

    def plan(self, plan: FoundingPlan, said: Mapping[str, Any]) -> None:
        """Change the plan by the options `said`. Raises UserError, or an ExceptionGroup of them: they are wrong."""

    def write(self, folder: Path) -> None:
        """Write more files, once all others are written, in a folder that appears only if everything succeeds."""

    def tell(self, directory: Path) -> None:
        """Tell the user more, once the folder has appeared as `directory`."""
