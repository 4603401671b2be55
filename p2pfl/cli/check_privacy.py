"""What `p2pfl check` says of `[privacy]`: the noise and the promise of each node whose data are here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from p2pfl.cli.output import write_facts, write_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2pfl.config.model import FederationConfig
    from p2pfl.errors import UserError
    from p2pfl.learn.privacy.plan import Plan

WEAK = 10.0
"""A larger epsilon promises little: e to its power bounds how much likelier one row makes what is seen."""


@dataclass(slots=True)
class PrivacyFound:
    facts: dict[str, Any] | None = None
    """None where the federation has no `[privacy]`."""
    mistakes: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def look_at_privacy(federation: FederationConfig, samples: Mapping[int, int]) -> PrivacyFound:
    """`samples` are the rows of the nodes whose data are here, by member index."""
    from p2pfl.config.privacy import MEMBER  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above
    from p2pfl.learn.privacy.plan import plan_of, planned_rounds  # noqa: PLC0415 - as above

    found, privacy = PrivacyFound(), federation.privacy
    if privacy is None:
        return found
    rows = []
    everyone = {member.index: 1 for member in federation.present} if privacy.unit == MEMBER else {}
    for index, count in sorted((everyone | dict(samples)).items()):
        try:
            plan = plan_of(federation, count)
        except UserError as error:
            if str(error) not in map(str, found.mistakes):
                found.mistakes.append(error)
        else:
            rows.append(_row(federation.members[index].name, plan, samples.get(index)) if plan else {})
    largest = max((row["epsilon"] for row in rows), default=0.0)
    if largest > WEAK:
        found.warnings.append(f"privacy: epsilon {largest:.3g} promises little: at most {WEAK:g} is usual, 1 is strong")
    found.facts = {
        "unit": privacy.unit,
        "delta": privacy.delta,
        "clip": privacy.clip,
        "accountant": privacy.accountant,
        "rounds": planned_rounds(federation),
        "test_set": privacy.test_set,
        "nodes": rows,
    }
    return found


def _row(name: str, plan: Plan, samples: int | None) -> dict[str, Any]:
    """One node after all its planned rounds. Rows do not matter where all of them are protected together."""
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


def print_privacy(facts: dict[str, Any]) -> None:
    """For people: what all have in common, and a row for each node."""
    protected = "each row of a node" if facts["unit"] == "record" else "all rows of a node together"
    rounds = f"{facts['rounds']} rounds of each node"
    said = {"privacy": f"of {protected}, for {rounds}, by {facts['accountant'].upper()}"}
    if facts["test_set"] == "private":
        said["scores"] = 'withheld; test_set = "public" shows those on a test set that is nobody\'s data'
    said["accuracy"] = "`p2pfl sim run` says what to expect; its scores of private rows have no noise: show them nobody"
    if not facts["nodes"]:
        said["noise"] = "not known: it follows from a node's rows, and no node's data are here"
    write_facts(said)
    if not facts["nodes"]:
        return
    figures = ("noise", "sampling_rate", "epsilon")
    shown = [row | {key: f"{row[key]:.4g}" for key in figures} for row in facts["nodes"]]
    write_rows(shown, "table")
