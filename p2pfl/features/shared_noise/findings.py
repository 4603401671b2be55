"""The findings of `p2pfl check` about shared noise: what a round costs, who may work together, who waits for whom."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from p2pfl.console.output import size, write_facts
from p2pfl.features.summed.costs import bytes_each
from p2pfl.node.findings import Findings, Inspected

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig


class SharedNoiseFindings(Findings):
    part = "shared_noise"

    def __init__(self) -> None:
        self._facts: dict[str, Any] | None = None

    def of_learners(self, inspected: Inspected) -> None:
        federation, privacy = inspected.federation, inspected.federation.privacy
        if privacy is None or not privacy.is_shared:
            return
        from p2pfl.features.shared_noise.doubtful import delta_exceeds, too_large  # noqa: PLC0415 - instant `--help`
        from p2pfl.learn.privacy.plan import planned_rounds  # noqa: PLC0415 - as above
        from p2pfl.learn.privacy.shared import shared_by  # noqa: PLC0415 - as above

        shared = next(filter(None, map(shared_by, inspected.learners.values())), None)
        entries = None if shared is None else shared.entries
        if (mistake := too_large(federation, shared)) is not None:
            inspected.mistakes.append(mistake)
        self._facts = facts = _facts(federation, entries)
        rounds, members = federation.training.rounds or 0, facts["members"]
        is_record = privacy.unit == "record"
        rows = sum(inspected.learners[index].samples for index in inspected.here.keys() & inspected.learners.keys())
        if is_record and privacy.delta * rows > 1.0:
            inspected.warnings.append(delta_exceeds(privacy.delta, rows))
        what = f"one step: each row of all nodes is in it with probability {privacy.rate:g}" if is_record else "one sum"
        each, brief = facts["bytes_each"], inspected.brief
        brief["a round"] = what if each is None else f"{what}; estimate: {size(each)} sent by each node"
        if each is not None:
            brief["sent"] = f"estimate: {size(each * members * rounds)} by all nodes in {rounds} rounds"
        brief["shared noise"] = (
            f"of a sum of {facts['least']} or more of {members} nodes; {facts['colluders']} may work together "
            f"against another; the budget pays for {planned_rounds(federation)} sums"
        )
        brief["waits"] = f"a round waits for {facts['least']} nodes; with fewer nothing is learned until they are back"

    def told(self) -> dict[str, Any] | None:
        return self._facts

    def show(self, facts: Any) -> None:
        excess = f"{facts['noise_times']:.3g} times that of a trusted center, if all give their parts"
        write_facts(
            {
                "shared noise": excess,
                "least": f"{facts['least']} of {facts['members']} members: with fewer a sum is refused",
                "colluders": f"{facts['colluders']} may work together, and leave their noise out, against any other; "
                f"this least bears up to {facts['colluders_at_most']}",
                "a liar": "can spoil a sum: a wrong part within the bounds is not noticed",
            }
        )


def _facts(federation: FederationConfig, entries: int | None) -> dict[str, Any]:
    privacy = federation.privacy
    if privacy is None:
        raise ValueError("no [privacy]")
    members = len(federation.present)
    least = privacy.least_of(members)
    each = None if entries is None else bytes_each(entries, members)
    return {
        "members": members,
        "least": least,
        "colluders": privacy.colluders,
        "colluders_at_most": least - 2,
        "noise_times": math.sqrt(members / (least - privacy.colluders)),
        "bytes_each": each,
    }
