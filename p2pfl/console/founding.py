"""Options that a feature adds to `p2pfl new`, and their effect on the new federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click


@dataclass(slots=True, kw_only=True)
class FoundingPlan:
    """A federation that is about to be written, as far as options define it. `nodes` and `topology` may still be
    undecided.
    """

    task: str
    nodes: tuple[str, ...] | None
    topology: str | None
    admin: str | None = None
    """The admin's public key."""
    discovery: bool = False
    """True if the nodes have no addresses and find each other on the LAN."""
    relays: tuple[str, ...] = ()
    """The URLs of relays, where nodes without addresses meet."""
    task_keys: str = ""
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The `[data]` table of each node."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `[training]` whose usual values suit the task better than the defaults."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files to write next to the federation file, by name."""


class Founding:
    """A feature's part in a call of `p2pfl new`."""

    parameters: Sequence[click.Parameter] = ()
    after = ""
    """The option after which its options are listed."""

    def plan(self, plan: FoundingPlan, said: Mapping[str, Any]) -> None:
        """Change the plan according to the options `said`. Raises UserError, or an ExceptionGroup of them: the options
        are wrong.
        """

    def write(self, folder: Path) -> None:
        """Write more files after all others. The folder appears only if everything succeeds."""

    def tell(self, directory: Path) -> None:
        """Print more information, once the folder has appeared as `directory`."""
