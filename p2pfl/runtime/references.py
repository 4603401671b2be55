"""What the nodes of a federation on this machine would have learned without each other, beside what they have.

It is computed after the run, in the launcher's process, from the nodes' own data: so only where all of them are here.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2pfl.config.charter import compacted
from p2pfl.config.model import FederationConfig
from p2pfl.errors import UserError
from p2pfl.learn.shift import label_shift, targets_of
from p2pfl.reporting.history import References
from p2pfl.reporting.report import Report
from p2pfl.runtime.fleet import Child
from p2pfl.runtime.parts import load_learner


def refuse_references(federation: FederationConfig, key: str) -> None:
    """Raises UserError: the data of nodes that promise privacy are not put in one place, nor learned without noise."""
    if federation.privacy is not None:
        text = "they would be learned from the nodes' rows without noise, while [privacy] is there"
        raise UserError(text, file=federation.path, key=key, allowed="without them")


def add_references(report: Report, federation: FederationConfig, children: Sequence[Child]) -> None:
    """Into `report`: each honest node alone, all their data in one place, with as many rounds as a node has taken; and
    how far their targets are apart.

    Raises LearningError: the task failed.
    """
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - slow, and only here needed
    from p2pfl.reporting.references import alone, centralized, of_alone, round_seconds  # noqa: PLC0415 - as above

    whole = compacted(federation)
    honest = [child for child in children if not child.byzantine]
    learners = [load_learner(whole, child.node) for child in honest]
    round_s = round_seconds(report.history)
    rounds = whole.training.rounds or round(sum(node.rounds or 0 for node in report.nodes) / len(report.nodes))
    targets = {child.name: targets_of(learner) for child, learner in zip(honest, learners, strict=True)}
    report.label_shift = label_shift(targets)
    by_name = {node.name: node for node in report.nodes}
    for child, learner in zip(honest, learners, strict=True):
        by_name[child.name].alone = alone(learner, rounds, round_s)
    torch = [learner for learner in learners if isinstance(learner, TorchLearner)]
    report.reference = References(
        alone=of_alone([node.alone for node in report.nodes]),
        centralized=centralized(torch, rounds, round_s=round_s) if torch and rounds else None,
    )
