"""The spending of nodes' privacy budgets, read from their folders without changing anything there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from p2pfl.config.load import find_member, load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.features.privacy.budget import MISSING, BudgetGuard, promise_of, unpaid_mistake
from p2pfl.features.privacy.ledger_file import LedgerFile
from p2pfl.features.privacy.permission import permission_file
from p2pfl.learn.privacy import plan_of
from p2pfl.learn.privacy.accounting import epsilon_of
from p2pfl.learn.privacy.ledger import Ledger, Promise, reconcile
from p2pfl.node.assembly import replay
from p2pfl.reporting.status import PrivacyStatus
from p2pfl.storage import peek

WIPED = "wiped"
"""The state of a budget whose node has no state: the node continues from the ledger file next to its key."""
UNPROTECTED = "unprotected"
"""The state of a budget whose node has a model that was trained without one: the node does not start."""


@dataclass(frozen=True, kw_only=True)
class NodeBudget:
    """The budget of one node on this machine.

    `samples` is None if the node has no state; the file next to its key may still have a `ledger`. `unpaid` is the
    number of rounds in the state that were trained without a budget.
    """

    federation: FederationConfig
    node: NodeConfig
    ledger: Ledger | None = None
    samples: int | None = None
    unpaid: int = 0

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def status(self) -> PrivacyStatus | None:
        """Return the status of the budget; this may be slow. Raises UserError like `plan_of`."""
        if self.samples is None:
            return None
        plan = plan_of(self.federation, self.samples)
        if plan is None:
            raise AssertionError("a federation with [privacy] has no plan")
        budget = BudgetGuard(plan, promise_of(self.federation, plan), "")
        budget.look(self.ledger, self.samples)
        return budget.status

    @property
    def is_waiting(self) -> bool:
        """Return True if a permission is waiting for the next start."""
        return permission_file(self.node.key_file).exists()

    @property
    def unpermitted(self) -> str:
        """Describe the figures in which the file promises less privacy than permitted, judging by the files only.

        Empty if there are none, or if a permission for them is waiting.
        """
        privacy, ledger = self.federation.privacy, self.ledger
        if privacy is None or ledger is None or ledger.promise is None or self.is_waiting:
            return ""
        return Promise.in_file(privacy).weaker_than(ledger.promise)

    @property
    def epsilon(self) -> float | None:
        """Return the epsilon known to be spent, or None if it is unknown."""
        if self.unpaid:
            return None
        if self.status is not None or self.ledger is None or self.ledger.promise is None:
            return None if self.status is None else self.status.epsilon
        return round(epsilon_of(self.ledger.spent, self.ledger.promise.delta), 4)

    @property
    def mistake(self) -> UserError | None:
        """The reason why the node would not start; None: it would."""
        return unpaid_mistake(self.node, self.unpaid) if self.unpaid else None

    @property
    def row(self) -> dict[str, Any]:
        told = self.status
        state = told.state if told is not None else MISSING if self.ledger is None else WIPED
        return {
            "node": self.name,
            "epsilon": self.epsilon,
            "budget": told and told.budget,
            "delta": told and told.delta,
            "unit": told and told.unit,
            "rounds_left": 0 if self.unpaid else told and told.rounds_left,
            "state": UNPROTECTED if self.unpaid else state,
            "waiting": self.is_waiting,
        }


def purses(federation: FederationConfig, names: Iterable[str] = ()) -> list[NodeBudget]:
    """Return the budgets of these nodes; without names, of all that have a folder here.

    Raises UserError: there is no such node, or it has no folder here; StorageError: a file cannot be read.
    """
    wanted = [find_member(federation, name).name for name in names] or [one.name for one in federation.present]
    files = {name: node_file(federation, name) for name in wanted}
    here = [name for name, file in files.items() if file.parent.is_dir()]
    if not here or (names and len(here) < len(wanted)):
        missing = ", ".join(name for name in wanted if name not in here)
        text, allowed = f"no folder here for {missing}", "run it where these nodes have their folders"
        raise UserError(text, file=federation.path.parent, key="node", allowed=allowed)
    return [_purse(federation, load_node(files[name], federation, name)) for name in here]


def _purse(federation: FederationConfig, node: NodeConfig) -> NodeBudget:
    beside = LedgerFile(node.key_file, federation.name, node.name).read()
    loaded = peek(node.state_dir) if node.state_dir.is_dir() else None
    if loaded is None:
        return NodeBudget(federation=federation, node=node, ledger=beside)
    state = replay(loaded)
    kept = None if state.ledger is None else state.ledger.as_recovered(private=True, complete=loaded.complete)
    ledger = reconcile(kept, beside)
    samples = int(state.samples)
    return NodeBudget(federation=federation, node=node, ledger=ledger, samples=samples, unpaid=state.unpaid)
