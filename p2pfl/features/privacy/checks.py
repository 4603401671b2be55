"""Checks and figures of privacy, for `p2pfl check` and `p2pfl privacy`; nothing is changed in a node's folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import click

from p2pfl.config.load import find_member, load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.config.sections import MEMBER, PrivacyConfig
from p2pfl.console import Named
from p2pfl.console.output import Form, format_option, write_facts, write_rows
from p2pfl.errors import StorageError, UserError
from p2pfl.features.privacy.budget import MISSING, BudgetGuard, promise_of, unpaid_mistake
from p2pfl.features.privacy.ledger_file import LedgerFile, give_permission, permission_file
from p2pfl.learn.privacy.accounting import Ledger, Promise, epsilon_of, reconcile
from p2pfl.learn.privacy.plan import Plan, plan_of, planned_in_words, planned_rounds
from p2pfl.node.assembly import replay
from p2pfl.node.feature import Check, Inspected
from p2pfl.reporting.report import SCORE, TABLES
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

    @cached_property
    def status(self) -> PrivacyStatus | None:
        """Return the status of the budget; this may be slow. Raises UserError like `plan_of`."""
        if self.samples is None:
            return None
        plan = cast("Plan", plan_of(self.federation, self.samples))
        budget = BudgetGuard(plan, promise_of(self.federation, plan), "")
        budget.look(self.ledger, self.samples)
        return budget.status

    @property
    def is_waiting(self) -> bool:
        """Return True if a permission is waiting for the next start."""
        return permission_file(self.node.key_file).exists()

    @property
    def epsilon(self) -> float | None:
        """Return the epsilon known to be spent, or None if it is unknown."""
        if self.unpaid:
            return None
        if self.status is not None or self.ledger is None or self.ledger.promise is None:
            return None if self.status is None else self.status.epsilon
        return round(epsilon_of(self.ledger.spent, self.ledger.promise.delta), 4)

    @property
    def row(self) -> dict[str, Any]:
        status = self.status
        state = status.state if status is not None else MISSING if self.ledger is None else WIPED
        return {
            "node": self.node.name,
            "epsilon": self.epsilon,
            "budget": status and status.budget,
            "delta": status and status.delta,
            "unit": status and status.unit,
            "rounds_left": 0 if self.unpaid else status and status.rounds_left,
            "state": UNPROTECTED if self.unpaid else state,
            "waiting": self.is_waiting,
        }


def node_budgets(federation: FederationConfig, names: Iterable[str] = ()) -> list[NodeBudget]:
    """Return the budgets of these nodes; without names, of all that have a folder here.

    Raises UserError: there is no such node, or it has no folder here; StorageError: a file cannot be read.
    """
    chosen = [find_member(federation, name).name for name in names] or [member.name for member in federation.present]
    files = {name: node_file(federation, name) for name in chosen}
    here = [name for name, file in files.items() if file.parent.is_dir()]
    if not here or (names and len(here) < len(chosen)):
        missing = ", ".join(name for name in chosen if name not in here)
        text, allowed = f"no folder here for {missing}", "run it where these nodes have their folders"
        raise UserError(text, file=federation.path.parent, key="node", allowed=allowed)
    return [_budget(federation, load_node(files[name], federation, name)) for name in here]


def _budget(federation: FederationConfig, node: NodeConfig) -> NodeBudget:
    beside = LedgerFile(node.key_file, federation.name, node.name).read()
    loaded = peek(node.state_dir) if node.state_dir.is_dir() else None
    if loaded is None:
        return NodeBudget(federation=federation, node=node, ledger=beside)
    state = replay(loaded)
    kept = state.ledger if state.ledger is None or loaded.complete else state.ledger.as_incomplete()
    ledger, samples = reconcile(kept, beside), int(state.samples)
    return NodeBudget(federation=federation, node=node, ledger=ledger, samples=samples, unpaid=state.unpaid)


WEAK = 10.0
"""Above this epsilon a budget promises little: e^epsilon bounds how much more likely one row can make an outcome."""
FREE, DEAF = 0.05, 0.3
"""The thresholds for `Loudness.of_the_run`.

They come from the runs in docs/explanation/privacy.md and docs/how-to/simulate.md. Up to the first, noise cost next
to nothing (.99 of the accuracy was left at .048, .95 at .06); above the second, most was lost (.67 left at .31, .26 at
.44, nothing at 5). This is a rule of thumb: those nodes learned digits, on dense graphs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loudness:
    """The noise in one step, compared with what the step can learn: `of_a_step` is their ratio.

    In DP-SGD with d parameters, the noise has norm noise * clip * sqrt(d) / rows (root mean square), and the mean
    gradient of the rows, the signal, has at most the norm of the clip. Over `steps`, the signal grows linearly and the
    noise with the square root; averaging over `nodes` divides the noise by the square root of their number.
    """

    of_a_step: float
    steps: int
    nodes: int

    @property
    def of_the_run(self) -> float:
        """Return the noise-to-signal ratio over all steps, in the mean of all nodes that mix well: the best case."""
        return self.of_a_step / math.sqrt(self.steps * self.nodes)

    @property
    def in_words(self) -> str:
        of = self.of_the_run
        cost = "little accuracy" if of <= FREE else "accuracy" if of <= DEAF else "most of the accuracy"
        nodes = f" and {self.nodes} nodes" if self.nodes > 1 else ""
        run = f"{of:.2g} times over all {self.steps:,} steps{nodes}"
        return f"{self.of_a_step:.2g} times the signal in one step, {run}: it costs {cost}"


class PrivacyCheck(Check):
    part = "privacy"

    def __init__(self) -> None:
        self.facts: dict[str, Any] | None = None

    def before_launch(self, inspected: Inspected) -> None:
        if inspected.federation.privacy is not None and not inspected.mistakes:  # reads whole states
            _look_for_budgets(inspected, is_launch=True)

    def of_learners(self, inspected: Inspected) -> None:
        if (privacy := inspected.federation.privacy) is not None:
            self.facts = _look_at_privacy(inspected, privacy)
            with suppress(UserError, StorageError):  # a state that cannot be read is reported when the node starts
                _look_for_budgets(inspected, is_launch=False)

    def told(self) -> dict[str, Any] | None:
        return self.facts

    def show(self, facts: Any) -> None:
        """Print the facts that all nodes share, then a row for each node."""
        protected = "each row of a node" if facts["unit"] == "record" else "all rows of a node together"
        rounds = f"{facts['rounds']} rounds of each node"
        twice = "compares with and without the data; if they are replaced, or a label changes, it is twice that"
        said = {"privacy": f"of {protected}, for {rounds}, by {facts['accountant'].upper()}", "epsilon": twice}
        if facts["test_set"] == "private":
            said["scores"] = 'withheld; test_set = "public" shows those on a test set that is nobody\'s data'
            said["scores"] += f"; {SCORE}" if facts["task"] == TABLES else ""
        if not facts["shared"]:
            hint = "`p2pfl sim run` says what to expect; its scores of private rows have no noise: show them nobody"
            said["accuracy"] = hint
        if facts["noise_in_words"]:
            said["noise"] = facts["noise_in_words"]
        if not facts["nodes"]:
            said["noise"] = "not known: it follows from a node's rows, and no node's data are here"
        write_facts(said)
        if not facts["nodes"]:
            return
        real = ("noise", "sampling_rate", "epsilon")
        rows = [{key: f"{value:.4g}" if key in real else value for key, value in row.items()} for row in facts["nodes"]]
        write_rows(rows, "table")


def _look_for_budgets(inspected: Inspected, *, is_launch: bool) -> None:
    """Warn about nodes here that would only mix: without a budget and a permission to start one. A launch in which no
    node would train is a mistake, and so is a model that no budget covers. Raises UserError or StorageError.
    """
    federation = inspected.federation
    known, begin = node_budgets(federation), f"p2pfl privacy begin {federation.path.parent}"
    unpaid = [unpaid_mistake(budget.node, budget.unpaid) for budget in known if budget.unpaid]
    inspected.mistakes.extend(unpaid)
    without = [budget.node.name for budget in known if not (budget.ledger or budget.is_waiting or budget.unpaid)]
    if is_launch and not unpaid and len(without) == len(federation.present):
        text = "no node has one, so none would train"
        inspected.mistakes.append(UserError(text, file=federation.path, key="the privacy budget", allowed=begin))
    elif without:
        names = "" if len(without) == len(known) else "".join(f" --node {name}" for name in without)
        text = "privacy: without a budget a node does not train; start it once, before the first start"
        inspected.warnings.append(f"{text}: {begin}{names}")


def _look_at_privacy(inspected: Inspected, privacy: PrivacyConfig) -> dict[str, Any]:
    """Add mistakes and warnings of the nodes whose data are here; return the facts for the report."""
    federation, rows, loudest = inspected.federation, [], None
    here = inspected.here.keys() & inspected.learners.keys()
    samples = {index: inspected.learners[index].samples for index in here}
    trained = {getattr(learner, "trained", learner.size + learner.personal) for learner in inspected.learners.values()}
    parameters = max(trained, default=None)
    everyone = {member.index: 1 for member in federation.present} if privacy.unit == MEMBER else {}
    for index, count in sorted((everyone | samples).items()):
        try:
            plan = plan_of(federation, count)
        except UserError as error:
            if str(error) not in map(str, inspected.mistakes):  # a learner's plan has the same
                inspected.mistakes.append(error)
        else:
            rows.append(_row(federation.members[index].name, plan, samples.get(index)) if plan else {})
            loud = plan and parameters and _loudness(plan, samples.get(index) or 1, parameters, len(federation.present))
            if loud and (loudest is None or loud.of_the_run > loudest.of_the_run):
                loudest = loud
    largest = max((row["epsilon"] for row in rows), default=0.0)
    if largest > WEAK:
        text = f"epsilon {largest:.3g} promises little: at most {WEAK:g} is usual, 1 is strong"
        inspected.warnings.append(f"privacy: {text}")
    if loudest is not None and loudest.of_the_run > DEAF:
        most = f"above {DEAF:g} most of what could be learned was lost in our runs, which is only a rule of thumb"
        help_ = "more rows, larger batches, more rounds at the same noise, a smaller model, or a larger epsilon"
        if privacy.unit == MEMBER:  # a member is protected as a whole, however many rows it has
            help_ = "more members, more rounds at the same noise, a smaller model, or a larger epsilon"
        text = f"the noise of the whole run is {loudest.of_the_run:.2g} times what can be learned ({most})"
        inspected.warnings.append(f"privacy: little will be learned: {text}; what helps: {help_}")
    return {
        "task": federation.task.name,
        "unit": privacy.unit,
        "delta": privacy.delta,
        "clip": privacy.clip,
        "accountant": privacy.accountant,
        "rounds": planned_rounds(federation),
        "test_set": privacy.test_set,
        "shared": privacy.is_shared,
        "noise_in_words": loudest and loudest.in_words,
        "nodes": rows,
    }


def _row(name: str, plan: Plan, samples: int | None) -> dict[str, Any]:
    """Return one node's figures after all its planned rounds; its rows do not matter if they are protected as one."""
    once = plan.spend(samples or 1)
    return {
        "name": name,
        "samples": samples,
        "noise": plan.noise,
        "sampling_rate": once.rate,
        "steps": once.steps * plan.rounds,
        "epsilon": plan.spent((once._replace(steps=once.steps * plan.rounds),)),
        "delta": plan.delta,
    }


def _loudness(plan: Plan, samples: int, parameters: int, nodes: int) -> Loudness:
    """Return the loudness of the noise at a node with this number of rows."""
    once = plan.spend(samples)
    rows = 1.0 if plan.unit == MEMBER else once.rate * samples
    of_a_step = plan.noise * math.sqrt(parameters) / rows
    if plan.shared_rate is not None:  # one noise for the sum over all nodes, of as many rows each
        of_a_step *= plan.share / math.sqrt(nodes)
        nodes = 1
    return Loudness(of_a_step=of_a_step, steps=once.steps * plan.rounds, nodes=nodes)


ALL = "Only this node; by default all whose folders are here."
NODE = click.option("--node", "names", multiple=True, metavar="NAME", help=ALL)


class Commands(Named):
    """The two subcommands, both in this file."""

    def lines(self) -> Mapping[str, str]:
        return {
            "begin": "Permit nodes to start their privacy budgets; without that they do not train.",
            "show": "Show what nodes have spent of their privacy budgets.",
        }

    def find(self, name: str) -> Any:
        return {"begin": begin, "show": show}[name]


@click.group(cls=Commands, epilog="\b\nExamples:\n  p2pfl privacy begin ward-7\n  p2pfl privacy show ward-7")
def privacy() -> None:
    """Permit nodes to start their privacy budgets, and show how much of them is spent.

    With [privacy] in federation.toml, each node records what a round reveals about its data before it trains the round,
    and stops training when its budget is spent. If a node has lost its records, its budget counts as spent: only a
    person can permit a new one.
    """


@click.command(epilog="\b\nExamples:\n  p2pfl privacy begin ward-7\n  p2pfl privacy begin ward-7 --node pi3 --again")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@NODE
@click.option("--again", is_flag=True, help="Start another budget where there is one: both add up.")
def begin(*, federation: Path, names: tuple[str, ...], again: bool) -> None:
    """Permit nodes to start their privacy budgets.

    The permission is a file next to each node's key, with epsilon, delta, unit and noise from the federation file. The
    node uses it at its next start, and trains only while the file promises as much. What was revealed before stays
    revealed: with --again, the promise for these data is the sum of both budgets. A model that was trained
    without [privacy] gets no budget: remove the node's state first.
    """
    described, privacy = _private(federation)
    known = node_budgets(described, names)
    if mistakes := [unpaid_mistake(budget.node, budget.unpaid) for budget in known if budget.unpaid]:
        raise ExceptionGroup("models that no budget covers", mistakes)
    if (begun := [budget.node.name for budget in known if budget.ledger is not None]) and not again:
        text = f"has begun at {', '.join(begun)}: what is spent stays spent"
        allowed = "--node for nodes without one; --again, which adds a second budget to the first"
        raise UserError(text, file=described.path, key="the privacy budget", allowed=allowed)
    promise, planned = Promise.in_file(privacy), planned_in_words(described)
    for budget in known:
        after = "" if budget.ledger is None else budget.ledger.word
        give_permission(budget.node.key_file, promise, after=after, planned=planned)
        click.echo(f"{budget.node.name}: its budget starts when the node starts{_before(budget)}")


def _before(budget: NodeBudget) -> str:
    """Return what must be counted in addition to a new budget: the earlier spending on these data."""
    if budget.samples is None and budget.ledger is None:
        return ""
    known = "an amount unknown here" if budget.epsilon is None else f"epsilon {budget.epsilon:.3g}"
    if budget.ledger is not None and not budget.ledger.is_whole:
        return f"; it adds to what was spent before, of which the records lack a part ({known})"
    return "" if budget.epsilon == 0 else f"; it adds to what was spent before, {known}"


@click.command(epilog="\b\nExample:\n  p2pfl privacy show ward-7 --format json")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@NODE
@format_option("table", "json", "csv")
def show(*, federation: Path, names: tuple[str, ...], form: Form) -> None:
    """Show what nodes have spent of their privacy budgets, according to their folders here. They may be running.

    epsilon bounds what was revealed about one row (or one member) so far. state is "open" or "spent"; "missing" or
    "unsure" if the spending is unknown, so that the whole budget counts as spent; "unpermitted" if the file promises
    less privacy than a person has permitted; "unprotected" if the model was trained without a
    budget, so that the node does not start; "wiped" if the state is gone and the node will continue from the file next
    to its key. waiting: there is a permission, which takes effect at the next start.
    """
    write_rows([budget.row for budget in node_budgets(_private(federation)[0], names)], form)


def _private(path: Path) -> tuple[FederationConfig, PrivacyConfig]:
    described = load_config(path)
    if described.privacy is None:
        text = "no privacy is promised here, so there is no budget"
        allowed = "[privacy] with epsilon and delta: docs/how-to/privacy.md"
        raise UserError(text, file=described.path, key="privacy", allowed=allowed)
    return described, described.privacy
