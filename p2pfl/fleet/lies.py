"""The interface to lying nodes, which are commands in another package, found by the entry point group
`p2pfl.attackers`: p2pfl itself contains no liar, and a deployed node imports none.
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
    """The object behind the entry point. `spec` is the text that specifies an attack."""

    def check(self, spec: str) -> None:
        """Check the spec. Raises UserError: there is no such attack."""
        ...

    def choose(self, federation: FederationConfig, count: int) -> tuple[str, ...]:
        """Choose the names of `count` nodes, spread over the graph."""
        ...

    def command(self, federation: FederationConfig, name: str, spec: str, liars: Sequence[str]) -> list[str]:
        """Return the arguments for Python that make node `name` lie, as one of `liars`; the arguments of `p2pfl run`
        are appended.
        """
        ...

    def success(
        self, spec: str, federation: FederationConfig, node: NodeConfig, models: Mapping[str, Vector]
    ) -> dict[str, float]:
        """Return the attack's success, from 0 to 1, on each of the `models` (d,), by node; empty if accuracy already
        shows it. `node` is one that has data.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lies:
    """The lies in a run: `names` are the nodes that lie, using the attack `spec`."""

    attackers: Attackers
    spec: str
    names: tuple[str, ...]

    def command(self, federation: FederationConfig, name: str) -> list[str]:
        return self.attackers.command(federation, name, self.spec, self.names)


def find_attackers() -> Attackers:
    """Find the attack package. Raises UserError: none is installed."""
    for entry in entry_points(group=GROUP):
        found: Attackers = entry.load()
        return found
    raise UserError("no package of attacks is installed", key="--byzantine", allowed="`attackers`, from p2pfl's source")
