"""What nodes have spent of their privacy budgets, read from their folders as from outside: nothing there is changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from p2pfl.config.load import find_member, load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.learn.privacy import plan_of
from p2pfl.reporting.status import PrivacyStatus
from p2pfl.runtime.budget import MISSING, Budget
from p2pfl.runtime.parts import replay
from p2pfl.runtime.word import word_file
from p2pfl.storage import peek


@dataclass(frozen=True, slots=True, kw_only=True)
class Purse:
    """The budget of one node here; `told` is None where it has no state yet. `was_begun`: there is a ledger, if only
    one of another unit; `unpaid` are the rounds of a state that has none.
    """

    name: str
    node: NodeConfig
    told: PrivacyStatus | None
    was_begun: bool = False
    unpaid: int = 0

    @property
    def has_begun(self) -> bool:
        """Whether it is known that a budget began here."""
        return self.told is not None and self.told.state != MISSING

    @property
    def is_waiting(self) -> bool:
        """Whether a person's word lies there, for the next start."""
        return word_file(self.node.key_file).exists()

    @property
    def epsilon(self) -> float | None:
        return None if self.told is None else self.told.epsilon

    @property
    def row(self) -> dict[str, Any]:
        told = self.told
        return {
            "node": self.name,
            "epsilon": told and told.epsilon,
            "budget": told and told.budget,
            "delta": told and told.delta,
            "unit": told and told.unit,
            "rounds_left": told and told.rounds_left,
            "state": MISSING if told is None else told.state,
            "waiting": self.is_waiting,
        }


def purses(federation: FederationConfig, names: Iterable[str] = ()) -> list[Purse]:
    """Of these nodes; without names, of all that have a folder here.

    Raises UserError: there is no such node, or none of them is here; StorageError: what is there cannot be read.
    """
    wanted = [find_member(federation, name).name for name in names] or [one.name for one in federation.present]
    files = {name: node_file(federation, name) for name in wanted}
    here = [name for name, file in files.items() if file.parent.is_dir()]
    if not here or (names and len(here) < len(wanted)):
        missing = ", ".join(name for name in wanted if name not in here)
        text, allowed = f"no folder here for {missing}", "run it where these nodes have their folders"
        raise UserError(text, file=federation.path.parent, key="node", allowed=allowed)
    return [_purse(federation, load_node(files[name], federation, name)) for name in here]


def _purse(federation: FederationConfig, node: NodeConfig) -> Purse:
    loaded = peek(node.state_dir) if node.state_dir.is_dir() else None
    if loaded is None:
        return Purse(name=node.name, node=node, told=None)
    state = replay(federation, loaded)
    plan = plan_of(federation, int(state.samples))
    if plan is None:
        raise AssertionError("a federation with [privacy] has no plan")
    ledger = None if state.ledger is None else state.ledger.recovered(private=True, complete=loaded.complete)
    budget = Budget(plan, "")
    budget.look(ledger, int(state.samples))
    was_begun = ledger is not None
    return Purse(
        name=node.name,
        node=node,
        told=budget.told,
        was_begun=was_begun,
        unpaid=0 if was_begun else state.rounds,
    )
