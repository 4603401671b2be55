"""The results that the nodes of a launched federation would have had without each other, for comparison.

They are computed after the run, in the launcher's process, from the nodes' own data, so all of these must be here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from p2pfl.config.charter import compacted
from p2pfl.config.model import FederationConfig
from p2pfl.errors import UserError
from p2pfl.fleet.child import Child
from p2pfl.learn.interface import Learner
from p2pfl.learn.shift import label_shift, targets_of
from p2pfl.node.assembly import load_learner, replay
from p2pfl.reporting.comparison import Pair, against, paired
from p2pfl.reporting.history import References
from p2pfl.reporting.measures import model_score
from p2pfl.reporting.report import NodeReport, Report
from p2pfl.storage import peek


def refuse_references(federation: FederationConfig, key: str) -> None:
    """Refuse references if privacy is promised. Raises UserError: such data must not be pooled, nor trained on without
    noise.
    """
    if federation.privacy is not None:
        text = "they would be learned from the nodes' rows without noise, while [privacy] is there"
        raise UserError(text, file=federation.path, key=key, allowed="without them")


def add_references(report: Report, federation: FederationConfig, children: Sequence[Child]) -> None:
    """Add references to `report`: each honest node alone, and one model trained on all their data, with as many rounds
    as a node has trained on average; also the distance between their targets.

    Raises LearningError: the task failed.
    """
    from p2pfl.learn.evaluation import value_of  # noqa: PLC0415 - slow, and only here needed
    from p2pfl.learn.samples import Distinct  # noqa: PLC0415 - as above
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - as above
    from p2pfl.reporting.references import centralized, learned_alone, of_alone, round_seconds  # noqa: PLC0415 - as above

    whole = compacted(federation)
    honest = [child for child in children if not child.byzantine]
    learners = [load_learner(whole, child.node) for child in honest]
    round_s = round_seconds(report.history)
    rounds = round(sum(node.rounds or 0 for node in report.nodes) / len(report.nodes))
    targets = {child.name: targets_of(learner) for child, learner in zip(honest, learners, strict=True)}
    report.label_shift = label_shift(targets)
    by_name = {node.name: node for node in report.nodes}
    pairs, tests = list[Pair](), Distinct()
    for child, learner in zip(honest, learners, strict=True):
        together = _together(child, learner, by_name[child.name])
        model = learned_alone(learner, rounds, round_s)
        by_name[child.name].alone = model_score(learner.evaluate(model, "test"))
        if together is not None and isinstance(learner, TorchLearner) and (other := learner.predictions(model)):
            outputs, targets = together
            place = tests.add(learner.test_set)
            pairs.append(Pair(together=outputs, other=other[0], targets=targets, place=place))
    torch = [learner for learner in learners if isinstance(learner, TorchLearner)]
    pooled = centralized(torch, rounds, round_s=round_s) if torch and rounds else None
    main = report.main_measure
    report.reference = References(
        alone=of_alone([node.alone for node in report.nodes]),
        against_alone=paired(pairs, main, value_of(torch[0].task, main)) if pairs else None,
        centralized=pooled,
        against_pooled=against(report, None if pooled is None else pooled.all_nodes),
    )


def _together(child: Child, learner: Learner, node: NodeReport) -> tuple[Any, Any] | None:
    """Return outputs of the node's final model and targets, both for its test set. Return None if the node has not
    ended well, or the task has no outputs or targets. The personal part of the learner's model does not change.
    """
    loaded = peek(child.node.state_dir) if node.finished else None
    if loaded is None or not hasattr(learner, "predictions"):
        return None
    before, state = learner.local_state(), replay(loaded)
    learner.load_local_state(state.local)
    found: tuple[Any, Any] | None = learner.predictions(state.model)
    learner.load_local_state(before)
    return found
