"""Nodes that lie are commands of another package, found by the entry point group `p2pfl.attackers`: p2pfl has no liar,
and a node in the field imports none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Vector

GROUP = "p2pfl.attackers"


class Attackers(Protocol):
    """The object behind the entry point. `spec` is the text that names an attack."""

    def check(self, spec: str) -> None:
        """Check the spec. Raises UserError: there is no such attack."""
        ...

    def choose(self, federation: FederationConfig, count: int) -> tuple[str, ...]:
        """Choose the names of `count` nodes, spread over the graph."""
        ...

    def command(self, federation: FederationConfig, name: str, spec: str, liars: Sequence[str]) -> list[str]:
        """Return arguments for Python that make node `name` lie, as one of `liars`; those of `p2pfl run`
        are appended.
        """
        ...

    def success(
        self, spec: str, federation: FederationConfig, node: NodeConfig, models: Mapping[str, Vector]
    ) -> dict[str, float]:
        """Return, by node, the attack's success on a model (d,), from 0 to 1; empty if accuracy shows it. `node` has
        data.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lies:
    """The lies in a run: `names` are the nodes that lie, by the attack `spec`."""

    attackers: Attackers
    spec: str
    names: tuple[str, ...]

    def command(self, federation: FederationConfig, name: str) -> list[str]:
        return self.attackers.command(federation, name, self.spec, self.names)


def find_attackers() -> Attackers:
    """Find the package of attacks. Raises UserError: none is installed."""
    for entry in entry_points(group=GROUP):
        found: Attackers = entry.load()
        return found
    raise UserError("no package of attacks is installed", key="--byzantine", allowed="`attackers`, from p2pfl's source")
