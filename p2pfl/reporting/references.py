"""What the same learning gives without a network of peers: each node alone with its own data, all data in one place.

Both take the same optimizer, batch size and length of a round, and plain steps. Imported by who asks for it: it needs
torch where the task does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from p2pfl.config.model import TrainingConfig
from p2pfl.learn.interface import Learner, RoundStart, Score
from p2pfl.learn.samples import Samples, TensorSamples, batch_sizes
from p2pfl.learn.trainer import TorchLearner
from p2pfl.reporting.figures import spread
from p2pfl.reporting.history import Alone, Centralized, ModelScore, Reference, ReferencePoint
from p2pfl.reporting.measures import spreads

EVALUATIONS = 20
"""Most evaluations in one history."""
MOST_STEPS = 20_000
"""Most steps of a centralized run: more would cost as much as the run itself, long after it converged."""


def centralized(
    learners: Sequence[TorchLearner], rounds: int, *, rows: TensorSamples | None = None, most_steps: int = MOST_STEPS
) -> Centralized | None:
    """One model that learns from all data; None where data cannot be pooled.

    The first takes as many steps as one of `learners` in `rounds` rounds, on average; the second goes on until it has
    taken as many as all of them, or `most_steps`. Each has accuracy, loss (of the test set, or the training loss where
    there is none), metrics, steps and history. `rows` are all data, where they are together already.
    """
    rows = joined([learner.train_set for learner in learners]) if rows is None else rows
    if rows is None:
        return None
    first = learners[0]
    steps = [len(batch_sizes(first.training, learner.samples)) for learner in learners]
    training = replace(first.training, local_steps=round(sum(steps) / len(steps)), local_epochs=None)
    tested = next((learner.test_set for learner in learners if learner.test_set is not None), None)
    goals = rounds, min(rounds * len(steps), most_steps // (training.local_steps or 1))
    one, every = _pooled_run(_pooled_learner(first, rows, tested, training), goals)
    return Centralized(one_node=one, all_nodes=every)


def joined(sets: Sequence[Samples]) -> TensorSamples | None:
    """All rows in one set; None where they are read row by row, or differ in shape or type."""
    import torch  # noqa: PLC0415 - a task without torch has no such sets

    tensors = [samples for samples in sets if isinstance(samples, TensorSamples)]
    kinds = {(s.inputs.shape[1:], s.inputs.dtype, s.targets.shape[1:], s.targets.dtype) for s in tensors}
    if len(tensors) < len(sets) or len(kinds) != 1:
        return None
    return TensorSamples(torch.cat([s.inputs for s in tensors]), torch.cat([s.targets for s in tensors]))


def alone(learner: Learner, rounds: int) -> ModelScore | None:
    """How a node's model scores on the common test set after `rounds` rounds on its own data, without neighbors.

    None where there is no test set. The learner's own part of the model is another one afterwards.
    """
    model = learner.initial()
    for index in range(rounds):
        model = learner.train(RoundStart(model), index).vector
    return model_score(learner.evaluate(model, "test"))


def of_alone(scores: Sequence[ModelScore | None]) -> Alone | None:
    """What they have learned all together, each alone; None where none has a score."""
    known = [one for one in scores if one is not None]
    if not known:
        return None
    return Alone(
        accuracy=spread(one.accuracy for one in known),
        loss=spread(one.loss for one in known),
        metrics=spreads(one.metrics for one in known),
    )


def model_score(score: Score | None) -> ModelScore | None:
    """As a report has it."""
    if score is None:
        return None
    return ModelScore(accuracy=score.accuracy, loss=score.loss, metrics=dict(score.metrics))


def reference_point(score: Score | None, training_loss: float) -> ReferencePoint:
    """Without a test set it is the loss in training that is known."""
    if score is None:
        return ReferencePoint(loss=training_loss)
    return ReferencePoint(accuracy=score.accuracy, loss=score.loss, metrics=dict(score.metrics))


def with_history(history: list[ReferencePoint]) -> Reference:
    """The last point, and those on the way to it."""
    return Reference(**msgspec.structs.asdict(history[-1]), history=history)


def moments(rounds: int) -> list[int]:
    """After which rounds a model is evaluated: evenly spaced, the last among them."""
    count = min(rounds, EVALUATIONS)
    return [rounds * (place + 1) // count for place in range(count)]


def _pooled_run(learner: TorchLearner, goals: tuple[int, int]) -> Iterator[Reference]:
    """A reference after each of the two numbers of rounds; one that has passed already changes nothing."""
    steps = learner.training.local_steps or 1
    model, done, history = learner.initial(), 0, list[ReferencePoint]()
    for goal in goals:
        for moment in moments(goal):
            loss = math.nan
            for index in range(done, moment):
                local = learner.train(RoundStart(model), index)
                model, loss = local.vector, local.loss
            if moment > done:
                done = moment
                point = reference_point(learner.evaluate(model, "test"), loss)
                point.steps = done * steps
                history.append(point)
        yield with_history(list(history))


def _pooled_learner(
    first: TorchLearner, rows: TensorSamples, tested: Samples | None, training: TrainingConfig
) -> TorchLearner:
    learner = TorchLearner(first.task, replace(first.context, node=0), training)
    return learner.at_node(learner.context, rows, tested)
