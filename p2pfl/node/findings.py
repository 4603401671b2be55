"""The files read by `p2pfl check` or `launch`, and a feature's findings in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner
from p2pfl.node.memory_needs import MemoryNeeds


@dataclass(slots=True)
class Inspected:
    """The inspected files.

    `learners` and `here` are by member index, for members whose folder is on this machine; `unusable` ones get no
    learner.
    """

    federation: FederationConfig
    mistakes: list[UserError]
    warnings: list[str] = field(default_factory=list)
    learners: dict[int, Learner] = field(default_factory=dict)
    here: dict[int, NodeConfig] = field(default_factory=dict)
    unusable: set[int] = field(default_factory=set)
    has_model: bool = True
    """True if it is known which model the nodes will have."""
    memory: dict[int, MemoryNeeds] = field(default_factory=dict)
    """How much memory each node will take whose folder is on this machine."""
    brief: dict[str, str] = field(default_factory=dict)
    """Lines for the short report, by name; they replace those of the same name about gossip."""


class Findings:
    """One feature's findings, which add mistakes and warnings to the inspected files.

    `part` is the key of its part of the report.
    """

    part = ""

    def of_files(self, inspected: Inspected) -> None:
        """Inspect the files of the nodes whose folders are on this machine; their learners are loaded next."""

    def before_launch(self, inspected: Inspected) -> None:
        """Inspect what each node would find, or wait for in vain: all are on this machine and start next. Imports no
        torch.
        """

    def of_learners(self, inspected: Inspected) -> None:
        """Inspect the learners that could be loaded."""

    def told(self) -> Any:
        """Return its part of the report as JSON values; None if there is nothing to report."""
        return None

    def show(self, facts: Any) -> None:
        """Print that part for people to read."""
