"""The privacy budget of one node: how it starts, the reasons to refuse another round, and its public status.

The state records what was spent (`learn.privacy.accounting`); if that is unknown, the whole budget counts as spent.

Rows that a node signed itself, and that its neighbors still have, are evidence that it has lost records. A neighbor can
withhold such a row, but not forge one. Only a row that reports more than the ledger is evidence, so no old row is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.config.sections import PUBLIC
from p2pfl.core.events import RoundRefused
from p2pfl.engine.state import NodeState
from p2pfl.errors import UserError
from p2pfl.features.privacy.ledger_file import (
    LedgerFile,
    Permission,
    discard_permission,
    give_permission,
    permission_file,
    read_permission,
)
from p2pfl.learn.interface import plan_by
from p2pfl.learn.privacy import Plan, Spend
from p2pfl.learn.privacy.accounting import Ledger, Promise, Signed, reconcile
from p2pfl.learn.privacy.plan import planned_in_words
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, NodeView, StateAtStart
from p2pfl.node.learner_runner import Answer, Payment, RoundPlan, Wait
from p2pfl.reporting.status import PrivacyStatus
from p2pfl.storage import Store

WAIT_S = 5.0
"""The time after a session opens during which the first round of a process waits for that neighbor's rows."""


class LostAccount(NamedTuple):
    """An account that this node signed and no longer has; `epsilon` is what the account stated."""

    account: Signed
    epsilon: float | None


@dataclass(slots=True, eq=False)
class Evidence:
    """The evidence about this node's spending. All times come from one monotonic clock."""

    seen: LostAccount | None = None
    began_now: bool = False
    """True if a permission started the ledger at this start of the node."""
    _silent_since: dict[int, float] = field(default_factory=dict)
    """The neighbors that have sent nothing yet in their session, each with the time when it opened."""

    def opened(self, peer: int, now: float) -> None:
        self._silent_since[peer] = now

    def note_rows(self, peer: int) -> None:
        """Note that a neighbor has sent its first rows, or that its session is over.

        A neighbor sends this node's own row first.
        """
        self._silent_since.pop(peer, None)

    def is_due(self, now: float) -> bool:
        """Return True if a neighbor may still send one of this node's own rows."""
        return any(now - opened_at < WAIT_S for opened_at in list(self._silent_since.values()))  # from any thread

    def account(self, ledger: Ledger | None) -> Signed | None:
        """Return the account to show to others: never below one this node has signed, so that neighbors keep it."""
        if ledger is None:
            return None if self.seen is None else self.seen.account
        return ledger.account

    def hear(self, ledger: Ledger | None, seen: LostAccount) -> Ledger | None:
        """Update the ledger with an account that this node has signed; return the same ledger if nothing is new.

        A later budget than the current one is evidence, unless the current one began just now and has paid for nothing.
        In that case a person has begun it knowingly after the other's records were lost, so the current one is in fact
        later. A budget that began at an earlier start may be an old copy, from when it too was unspent.
        """
        updated, account = ledger, seen.account
        if ledger is not None:
            own = ledger.account
            same = account[:2] == own[:2]
            fresh = self.began_now and not ledger.spent and ledger.is_whole
            later = account.order > own.order or (account.order == own.order and not ledger.spent)
            if not same and later and fresh:
                updated = replace(ledger, order=account.order + 1)
            elif account.steps > own.steps if same else later:
                updated = ledger.as_incomplete(account)
        if ledger is None or updated is None or (updated is not ledger and not updated.is_whole):
            self.seen = seen
        return updated


OPEN, SPENT, MISSING, UNSURE, UNPERMITTED = "open", "spent", "missing", "unsure", "unpermitted"
"""The states of a budget.

In this order: rounds may be trained; none is left; there is no ledger, or one for another unit; the ledger is known to
be incomplete; the federation file promises less privacy than a person has permitted.
"""


def withheld(setup: Setup) -> frozenset[str]:
    """Return the parts of the data on which a node reports no figures, because scores and losses have no noise."""
    if plan_by(setup.learner) is None:
        return frozenset()
    privacy = setup.federation.privacy
    public = privacy is not None and privacy.test_set == PUBLIC and not getattr(setup.learner, "tests_own", False)
    return frozenset({"local"} if public else {"local", "test"})


def _begin(setup: Setup) -> str:
    return f"p2pfl privacy begin {setup.federation.path.parent} --node {setup.member.name}"


def promise_of(federation: FederationConfig, plan: Plan) -> Promise:
    """Return the promise that the federation file makes to a node with this plan."""
    noise = None if federation.privacy is None else federation.privacy.multiplier
    return Promise(plan.unit, plan.epsilon, plan.delta, noise)


def unpaid_mistake(node: NodeConfig, rounds: int) -> UserError:
    """Return the mistake of starting a node whose model has `rounds` rounds that no budget has paid for."""
    text = f"the model was trained for {rounds} rounds without a privacy budget, which no later one covers"
    allowed = "a new model: remove this folder; what the old one revealed stays revealed"
    return UserError(text, file=node.state_dir, key="privacy", allowed=allowed)


@dataclass(slots=True, eq=False)
class BudgetGuard:
    """Decides whether the budget allows another round.

    `advice` is the command with which a person gives a permission. `look` and `wrong` may need a slow privacy
    computation, in the training thread; repeated calls with the same arguments are fast.
    """

    plan: Plan
    promise: Promise
    advice: str
    evidence: Evidence = field(default_factory=Evidence)
    status: PrivacyStatus | None = None
    """The latest status, readable from any thread: it is replaced, never modified."""

    @classmethod
    def of(cls, setup: Setup, plan: Plan) -> BudgetGuard:
        return cls(plan, promise_of(setup.federation, plan), _begin(setup))

    def wrong(self, ledger: Ledger | None, spend: Spend) -> RoundRefused | None:
        """Return why a round at this cost is refused, or None if it is allowed."""
        state = self.state(ledger, spend)
        if state == OPEN:
            return None
        if state == SPENT and ledger is not None:
            epsilon = self.plan.spent(ledger.spent)
            why = f"its privacy budget is spent: epsilon {epsilon:.3g} of {self.plan.epsilon:g}"
            return RoundRefused(why=why, for_good=True, planned=True)
        if state == UNPERMITTED and ledger is not None:
            less = "no record" if ledger.promise is None else self.promise.weaker_than(ledger.promise)
            text = f"the federation file promises less privacy than was permitted: {less}"
            why = f"{text}; write what was permitted, or, for another budget that adds to it, run {self.advice} --again"
            return RoundRefused(why=why, for_good=True)
        return RoundRefused(why=self._why_unknown(ledger, state), for_good=True)

    def _why_unknown(self, ledger: Ledger | None, state: str) -> str:
        what = "is unknown"
        if ledger is not None:
            what = f"is counted by {ledger.unit}, but now each {self.plan.unit} is protected"
        seen = self.evidence.seen
        if seen is not None:
            epsilon = "" if seen.epsilon is None else f" (epsilon {seen.epsilon:g})"
            known = 0 if ledger is None else ledger.steps
            what = f"is more than its records have: the node has signed for {seen.account.steps:,} steps{epsilon}"
            what += f", and they have {known:,}. They are lost, or an old copy"
        elif state == UNSURE:
            what = "lacks what was on disk before"
        text = f"the spending of its privacy budget {what}"
        return f"{text}. The budget counts as spent; to start a new one, run {self.advice}"

    def state(self, ledger: Ledger | None, spend: Spend) -> str:
        if ledger is None and self.evidence.seen is not None:
            return UNSURE
        if ledger is None or ledger.unit != self.plan.unit:
            return MISSING
        if not ledger.is_whole:
            return UNSURE
        if ledger.promise is None or self.promise.weaker_than(ledger.promise):
            return UNPERMITTED
        return OPEN if self.plan.allows(ledger.spent, spend) else SPENT

    def look(self, ledger: Ledger | None, samples: int) -> None:
        """Update the public status, for a training set of `samples` rows."""
        plan, state = self.plan, self.state(ledger, self.plan.spend(samples))
        known = ledger is not None and state != MISSING
        epsilon = plan.spent(ledger.spent) if ledger is not None and known else None
        self.status = PrivacyStatus(
            unit=plan.unit,
            epsilon=None if epsilon is None else round(epsilon, 4),
            budget=plan.epsilon,
            delta=plan.delta,
            rounds_left=plan.rounds_left(ledger.spent, samples) if ledger is not None and state == OPEN else 0,
            state=state,
        )

    def doubt(self) -> None:
        """Show at once that there is evidence of lost spending; known figures stay."""
        if self.status is not None:
            self.status = msgspec.structs.replace(self.status, rounds_left=0, state=UNSURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A node's ledger at its start: from the state, the file beside the key, and a permission.

    `keep` makes it durable and removes the permission.
    """

    file: LedgerFile
    ledger: Ledger | None
    key_file: Path | None = None
    """The key next to which a permission was found; None if there was none."""
    news: str = ""
    """The log line about the permission."""
    began: bool = False
    """True if the permission starts the ledger."""

    def keep(self, state: NodeState, store: Store) -> None:
        """Make the ledger durable, then remove the permission.

        The permission is removed last: after a crash in between, the ledger names it. Raises StorageError: the disk is
        full; UserError: writing fails for another reason, or the permission cannot be removed.
        """
        before, state.ledger = state.ledger, self.ledger
        if self.ledger is not None:
            self.file.begin(self.ledger)
            if before is None or before.word != self.ledger.word:
                store.end_log("a privacy budget has begun that it does not cover")
        if self.news:
            state.ended = None  # there may be rounds to train again
        if self.key_file is not None:
            discard_permission(self.key_file)


def lock(setup: Setup) -> LedgerFile:
    """Keep other processes on this machine from using the key while the node runs, if privacy is or was promised.

    A process without privacy would reveal rows that the other's ledger lacks. Raises UserError: the key is in use.
    """
    file = _ledger_file(setup)
    if plan_by(setup.learner) is not None or file.path.exists():
        file.hold()
    return file


def _ledger_file(setup: Setup) -> LedgerFile:
    return LedgerFile(setup.node.key_file, setup.federation.name, setup.member.name)


def opening(setup: Setup, state: NodeState) -> Opening | None:
    """Find out what was spent, and what a permission allows; return None if there is no privacy promise.

    Raises UserError: the ledger file or the permission cannot be used, or the model was trained without a budget.
    """
    plan, file = plan_by(setup.learner), _ledger_file(setup)
    if plan is None:
        file.void()
        return None
    if state.unpaid:
        raise unpaid_mistake(setup.node, state.unpaid)
    key_file = setup.node.key_file
    ledger, word = reconcile(state.ledger, file.read()), read_permission(key_file)
    if word is None:
        return Opening(file=file, ledger=ledger)
    if ledger is not None and word.name == ledger.word:
        return Opening(file=file, ledger=ledger, key_file=key_file)
    if word.after is not None and ledger is not None and word.after != ledger.word:
        text = "was given before the present budget, and has already been used: it is an old copy"
        allowed = "remove it; to start a new budget, run `p2pfl privacy begin --again`"
        raise UserError(text, file=permission_file(key_file), key="after", value=word.after, allowed=allowed)
    _refuse_less(promise_of(setup.federation, plan), word, setup)
    permitted = word.promise._replace(epsilon=word.promise.epsilon or plan.epsilon)
    order = 1 if ledger is None else ledger.account.order + 1
    news = f"with permission, the privacy budget starts: epsilon {plan.epsilon:g} at delta {plan.delta:g}"
    if ledger is not None and ledger.spent:
        news += f". The amount spent before adds to it: epsilon {plan.spent(ledger.spent):.3g}"
    begun = Ledger(unit=plan.unit, word=word.name, order=order, promise=permitted)
    return Opening(file=file, ledger=begun, key_file=key_file, news=news, began=True)


def _refuse_less(promise: Promise, word: Permission, setup: Setup) -> None:
    less = promise.weaker_than(word.promise)
    if not less and word.promise.epsilon is None:  # epsilon follows from the noise and these settings
        planned = planned_in_words(setup.federation)
        less = "" if word.planned == planned else f"{planned} in place of {word.planned or 'nothing'}"
    if less:
        allowed = f"the file as it was; or another permission, with `{_begin(setup)}`"
        text = f"{setup.federation.path.name} promises less privacy than this permits: {less}"
        raise UserError(text, file=permission_file(setup.node.key_file), key="epsilon", allowed=allowed)


class PrivacyFeature(Feature):
    name = "privacy"

    def guards(self, setup: Setup) -> bool:  # noqa: ARG002 - whatever the files say
        return True

    def withheld(self, setup: Setup) -> frozenset[str]:
        return withheld(setup)

    def recover(self, at_start: StateAtStart) -> Opening | None:
        """Open the budget at a start, also if privacy is no longer promised: then the ledger file must be voided."""
        at_start.until_over.callback(lock(at_start.setup).release)
        privacy = at_start.setup.federation.privacy
        if at_start.setup.passing and privacy is not None:  # whoever calls a run of its own permits it
            planned = planned_in_words(at_start.setup.federation)
            give_permission(at_start.setup.node.key_file, Promise.in_file(privacy), planned=planned)
        return opening(at_start.setup, at_start.state)

    def attach(self, node: NodeView) -> Attached | None:
        plan = plan_by(node.setup().learner)
        return None if plan is None else Private(node, BudgetGuard.of(node.setup(), plan))


class Private(Attached):
    """The part of a node that pays for rounds. `budget` is this node's budget; `node.recovered` is its `Opening`."""

    def __init__(self, node: NodeView, own: BudgetGuard) -> None:
        self._node, self.budget = node, own
        self._opening: Opening = node.recovered
        own.evidence.began_now = self._opening.began
        own.look(node.thread.engine.state.ledger, node.setup().learner.samples)
        node.thread.second_ledger = self._opening.file
        node.status.privacy = lambda: own.status

    def begin(self) -> None:
        if self._opening.news:
            self._node.alarm("budget-begun", None, self._opening.news)

    def before_round(self, plan: RoundPlan) -> Answer:
        """Compute the cost of the round from the current rows.

        This may be slow, but its results are cached for the engine's thread, which needs the same ones.
        """
        own, ledger, samples = self.budget, plan.ledger, plan.samples
        if own.evidence.is_due(time.monotonic()):
            return Wait(0.1)  # neighbors may still send records that this node has lost
        spend = own.plan.spend(samples)
        own.look(ledger, samples)
        if own.wrong(ledger, spend) is None and ledger is not None:
            own.look(ledger.plus(spend), samples)
        return Payment(spend=spend, wrong=lambda now: own.wrong(now, spend))
