"""The findings of `p2pfl check` about `[privacy]`: the noise and the privacy promise for each node whose data are
here.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from p2pfl.console.output import write_facts, write_rows
from p2pfl.node.findings import Findings, Inspected
from p2pfl.reporting.report import SCORE, TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2pfl.config.model import FederationConfig
    from p2pfl.errors import UserError
    from p2pfl.features.privacy.spending import NodeBudget
    from p2pfl.learn.privacy.plan import Plan

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
    """The noise in one step, compared with what the step can learn.

    In DP-SGD with d parameters, the noise has norm `length` = noise * clip * sqrt(d) / rows (root mean square), and the
    mean gradient of the rows, the `signal`, has at most the norm of the clip. Over `steps`, the signal grows linearly
    and the noise with the square root; averaging over `nodes` divides the noise by the square root of their number.
    """

    length: float
    signal: float
    steps: int
    nodes: int

    @property
    def of_a_step(self) -> float:
        return self.length / self.signal

    @property
    def of_the_run(self) -> float:
        """Return the noise-to-signal ratio over all steps, in the mean of all nodes: the best case, on a graph that
        mixes well.
        """
        return self.of_a_step / math.sqrt(self.steps * self.nodes)

    @property
    def in_words(self) -> str:
        of = self.of_the_run
        cost = "little accuracy" if of <= FREE else "accuracy" if of <= DEAF else "most of the accuracy"
        nodes = f" and {self.nodes} nodes" if self.nodes > 1 else ""
        run = f"{of:.2g} times over all {self.steps:,} steps{nodes}"
        return f"{self.of_a_step:.2g} times the signal in one step, {run}: it costs {cost}"


class PrivacyFindings(Findings):
    part = "privacy"

    def __init__(self) -> None:
        self.facts: dict[str, Any] | None = None

    def before_launch(self, inspected: Inspected) -> None:
        if inspected.federation.privacy is not None and not inspected.mistakes:  # reads whole states
            _require_budget(inspected)

    def of_learners(self, inspected: Inspected) -> None:
        here = sorted(inspected.here.keys() & inspected.learners.keys())
        trained = {getattr(one, "trained", one.size + one.personal) for one in inspected.learners.values()}
        samples = {index: inspected.learners[index].samples for index in here}
        promised = look_at_privacy(inspected.federation, samples, max(trained, default=None))
        told = set(map(str, inspected.mistakes))  # the learners' rows, whose plans exist too
        inspected.mistakes.extend(mistake for mistake in promised.mistakes if str(mistake) not in told)
        inspected.warnings.extend(promised.warnings)
        self.facts = promised.facts
        if self.facts is not None:
            _look_for_budgets(inspected)

    def told(self) -> dict[str, Any] | None:
        return self.facts

    def show(self, facts: Any) -> None:
        print_privacy(facts)


def _require_budget(inspected: Inspected) -> None:
    """Report a mistake if no node would train; warn about single nodes that would not."""
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.features.privacy.spending import purses  # noqa: PLC0415 - as above

    federation = inspected.federation
    known, begin = purses(federation), f"p2pfl privacy begin {federation.path.parent}"
    if unpaid := [one.mistake for one in known if one.mistake is not None]:
        inspected.mistakes.extend(unpaid)
        return
    without = [one.name for one in known if one.ledger is None and not one.is_waiting]
    less = {one.name: one.unpermitted for one in known if one.unpermitted}
    if len(without) == len(federation.present):
        text = "no node has one, so none would train"
        inspected.mistakes.append(UserError(text, file=federation.path, key="the privacy budget", allowed=begin))
    if len(less) == len(federation.present):
        text = f"the file promises less privacy than was permitted, so no node would train: {next(iter(less.values()))}"
        allowed = f"the file as it was, or {begin} --raise"
        inspected.mistakes.append(UserError(text, file=federation.path, key="[privacy]", allowed=allowed))
    inspected.warnings += [f"{name} has no privacy budget: it will only mix" for name in without]
    for name, figures in less.items():
        inspected.warnings.append(f"{name} will only mix: the file promises less privacy than was permitted: {figures}")


def _look_for_budgets(inspected: Inspected) -> None:
    """Warn about nodes that have never run and have no permission to start their budget: they would not train."""
    from p2pfl.errors import StorageError, UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.features.privacy.permission import permission_file  # noqa: PLC0415 - as above
    from p2pfl.features.privacy.spending import purses  # noqa: PLC0415 - as above

    federation = inspected.federation
    new = [node for node in inspected.here.values() if not node.state_dir.exists()]
    without = [node.name for node in new if not permission_file(node.key_file).exists()]
    if without:
        names = "" if len(without) == len(inspected.here) else "".join(f" --node {name}" for name in without)
        text = "privacy: without a budget a node does not train; start it once, before the first start"
        inspected.warnings.append(f"{text}: p2pfl privacy begin {federation.path.parent}{names}")
    begun = [node.name for node in inspected.here.values() if node.name not in without]
    known: list[NodeBudget] = []
    with suppress(UserError, StorageError):  # a state that cannot be read is reported when the node starts
        known = purses(federation, begun) if begun else []
    inspected.mistakes.extend(one.mistake for one in known if one.mistake is not None)
    less = {one.name: one.unpermitted for one in known if one.unpermitted}
    if less:
        figures, names = next(iter(less.values())), ", ".join(less)
        text = f"privacy: the file promises less than was permitted ({figures}): {names} will not train"
        begin = f"p2pfl privacy begin {federation.path.parent} --raise"
        inspected.warnings.append(f"{text} until you permit it: {begin}")


@dataclass(slots=True)
class PrivacyFound:
    facts: dict[str, Any] | None = None
    """The facts for the report; None if the federation has no `[privacy]`."""
    mistakes: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def look_at_privacy(federation: FederationConfig, samples: Mapping[int, int], parameters: int | None) -> PrivacyFound:
    """Inspect the privacy of a federation.

    `samples` has the number of rows of each node whose data are here, by member index; `parameters` is the number of
    trained parameters, None if unknown.
    """
    from p2pfl.config.sections import MEMBER  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above
    from p2pfl.learn.privacy.plan import plan_of, planned_rounds  # noqa: PLC0415 - as above

    found, privacy = PrivacyFound(), federation.privacy
    if privacy is None:
        return found
    rows, loudest = [], None
    everyone = {member.index: 1 for member in federation.present} if privacy.unit == MEMBER else {}
    for index, count in sorted((everyone | dict(samples)).items()):
        try:
            plan = plan_of(federation, count)
        except UserError as error:
            if str(error) not in map(str, found.mistakes):
                found.mistakes.append(error)
        else:
            row = _row(federation.members[index].name, plan, samples.get(index)) if plan else {}
            loud = plan and parameters and _loudness(plan, samples.get(index) or 1, parameters, len(federation.present))
            rows.append(row | (_of_noise(loud) if loud else {}))
            if loud and (loudest is None or loud.of_the_run > loudest.of_the_run):
                loudest = loud
    largest = max((row["epsilon"] for row in rows), default=0.0)
    if largest > WEAK:
        found.warnings.append(f"privacy: epsilon {largest:.3g} promises little: at most {WEAK:g} is usual, 1 is strong")
    if loudest is not None and loudest.of_the_run > DEAF:
        most = f"above {DEAF:g} most of what could be learned was lost in our runs, which is only a rule of thumb"
        help_ = "more rows, larger batches, more rounds at the same noise, a smaller model, or a larger epsilon"
        if privacy.unit == MEMBER:  # a member is protected as a whole, however many rows it has
            help_ = "more members, more rounds at the same noise, a smaller model, or a larger epsilon"
        text = f"the noise of the whole run is {loudest.of_the_run:.2g} times what can be learned ({most})"
        found.warnings.append(f"privacy: little will be learned: {text}; what helps: {help_}")
    found.facts = {
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
    return found


def _row(name: str, plan: Plan, samples: int | None) -> dict[str, Any]:
    """Return one node's figures after all its planned rounds. The number of rows does not matter if all are protected
    together.
    """
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
    from p2pfl.config.sections import MEMBER  # noqa: PLC0415 - `--help` stays instant

    once = plan.spend(samples)
    rows = 1.0 if plan.unit == MEMBER else once.rate * samples
    length = plan.noise * plan.clip * math.sqrt(parameters) / rows
    if plan.shared_rate is not None:  # one noise for the sum over all nodes, of as many rows each
        length *= plan.share / math.sqrt(nodes)
        nodes = 1
    return Loudness(length=length, signal=plan.clip, steps=once.steps * plan.rounds, nodes=nodes)


def _of_noise(loud: Loudness) -> dict[str, float]:
    return {
        "noise_of_a_step": loud.length,
        "noise_to_signal": loud.of_a_step,
        "noise_to_signal_of_the_run": loud.of_the_run,
    }


TOLD_IN_WORDS = ("noise_of_a_step", "noise_to_signal", "noise_to_signal_of_the_run")
"""The columns that only JSON has; elsewhere a sentence explains them."""


def print_privacy(facts: dict[str, Any]) -> None:
    """Print the facts that all nodes share, then a row for each node."""
    protected = "each row of a node" if facts["unit"] == "record" else "all rows of a node together"
    rounds = f"{facts['rounds']} rounds of each node"
    said = {"privacy": f"of {protected}, for {rounds}, by {facts['accountant'].upper()}"}
    said["epsilon"] = "compares with and without the data; if they are replaced, or a label changes, it is twice that"
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
    figures = ("noise", "sampling_rate", "epsilon")
    shown = [
        {key: f"{value:.4g}" if key in figures else value for key, value in row.items() if key not in TOLD_IN_WORDS}
        for row in facts["nodes"]
    ]
    write_rows(shown, "table")
