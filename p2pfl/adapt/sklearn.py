"""A scikit-learn estimator as a node's learner: linear models with `partial_fit`, and multi-layer perceptrons.

    def data(node):
        rows = node.partition(y, "iid")
        return (X[rows], y[rows]), (X_test, y_test)        # this node's rows, the common test set or None

    task = sklearn.task(SGDClassifier(loss="log_loss"), data, metrics=["auc"])

A local round calls `partial_fit` once for each batch, with as many batches and rows as `[training]` says. The learning
rate, penalty and loss are the estimator's own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import ArrayLike, NDArray

from p2pfl.adapt.client import ArrayLayout, corrected, needed, refuse_optimizer
from p2pfl.chance import generator
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.foreign import read_file
from p2pfl.learn.interface import LocalRound, RoundStart, Score, Vector, batch_sizes, draw_rows
from p2pfl.learn.intervals import Interval, wilson
from p2pfl.learn.metrics import ACCURACY, Metric, measured_by, named
from p2pfl.learn.task import NodeContext
from p2pfl.methods.method import own_failures
from p2pfl.plugins import FAILURES, describe_failure

LINEAR, LAYERS = ("coef_", "intercept_"), ("coefs_", "intercepts_")
SUITED = "a linear estimator with partial_fit (SGDClassifier, SGDRegressor, Perceptron), MLPClassifier or MLPRegressor"
TINY_RATE = 1e-300
"""A learning rate with which a first step, which only makes an estimator's arrays, changes nothing."""


def refuse_unsuited(estimator: Any) -> None:
    """Refuse what cannot be trained in steps. Raises UserError."""
    kind = type(estimator).__name__
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise UserError("this is no estimator", file=kind, key="estimator", value=estimator, allowed=SUITED)
    if not hasattr(estimator, "partial_fit"):
        raise UserError("has no partial_fit, so it cannot learn in steps", file=kind, key="estimator", allowed=SUITED)
    from sklearn.base import is_outlier_detector  # noqa: PLC0415 - an extra

    if is_outlier_detector(estimator):
        raise UserError("finds outliers and learns no targets", file=kind, key="estimator", allowed=SUITED)
    params = estimator.get_params()
    if params.get("average"):
        text = "keeps a mean of its steps, which is not shared"
        raise UserError(text, file=kind, key="average", value=params["average"], allowed="False")
    if params.get("early_stopping"):
        text = "partial_fit does not stop early"
        raise UserError(text, file=kind, key="early_stopping", value=True, allowed="False; see training.stop")


class Fitting:
    """An estimator with arrays that can be set and read: of linear models and of layers, as `layout` has them."""

    def __init__(
        self,
        estimator: Any,
        features: int,
        classes: NDArray[Any] | None,
        *,
        target_shape: tuple[int, ...] = (1,),
        seed: int,
    ) -> None:
        """Make the first arrays: zeros for a linear model, else drawn from `seed` unless `random_state` is a number.

        Raises UserError: `partial_fit` refuses the estimator's parameters.
        """
        from sklearn.base import clone  # noqa: PLC0415 - an extra

        self.estimator: Any = clone(estimator)
        kind = type(estimator).__name__
        given = self.estimator.get_params()
        if not isinstance(given.get("random_state", 0), int):
            self.estimator.set_params(random_state=seed % 2**31)
        rate = {"learning_rate_init": TINY_RATE} if "learning_rate_init" in given else {}
        self.estimator.set_params(**rate)
        self._how: dict[str, Any] = {} if classes is None else {"classes": classes}
        first = np.zeros(target_shape) if classes is None else classes[:1]
        try:
            self.estimator.partial_fit(np.zeros((1, features)), first, **self._how)
        except FAILURES as error:
            text = f"partial_fit failed on one row of zeros: {describe_failure(error)}"
            raise UserError(text, file=kind, key="estimator", allowed=SUITED) from error
        self.estimator.set_params(**{name: given[name] for name in rate})
        self.names = LAYERS if hasattr(self.estimator, LAYERS[0]) else LINEAR
        if not all(hasattr(self.estimator, name) for name in self.names):
            raise UserError("has no linear coefficients", file=kind, key="estimator", allowed=SUITED)
        if self.names == LINEAR:
            for name in self.names:
                setattr(self.estimator, name, np.zeros_like(getattr(self.estimator, name)))
        arrays = self._arrays()
        self.layout = ArrayLayout(list(arrays), list(arrays.values()), kind)
        self.first = self.layout.joined(list(arrays.values()))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for name in self.names:
            value = getattr(self.estimator, name)
            arrays |= {f"{name}.{k}": part for k, part in enumerate(value)} if self.names == LAYERS else {name: value}
        return arrays

    def load(self, vector: Vector) -> None:
        """Set the estimator's arrays to a model (d,)."""
        self._set(self.layout.state(vector))

    def loaded(self, state: Mapping[str, NDArray[Any]]) -> Any:
        """Return the estimator with these arrays. Raises UserError: they are another's."""
        expected = {name: array.shape for name, array in self._arrays().items()}
        shapes = {name: array.shape for name, array in state.items()}
        if shapes != expected:
            raise UserError("the arrays are of another estimator", value=str(shapes), allowed=str(expected))
        self._set({name: np.asarray(array, np.float64) for name, array in state.items()})
        return self.estimator

    def _set(self, state: Mapping[str, NDArray[Any]]) -> None:
        for name in self.names:
            of_layers = [state[key] for key in self.layout.names if key.startswith(f"{name}.")]
            setattr(self.estimator, name, of_layers if self.names == LAYERS else state[name])

    def vector(self) -> Vector:
        return self.layout.joined(list(self._arrays().values()))

    def begin(self, rows_seen: int) -> None:
        """Forget the optimizer's state, and set the counter of rows by which an estimator lowers its learning rate."""
        vars(self.estimator).pop("_optimizer", None)
        if hasattr(self.estimator, "t_"):
            self.estimator.t_ = type(self.estimator.t_)(1 + rows_seen)

    def step(self, X: Any, y: Any, seed: int) -> None:
        """Call `partial_fit` once."""
        if "random_state" in self.estimator.get_params():
            self.estimator.random_state = seed
        self.estimator.partial_fit(X, y)


LEAST_PROBABILITY = float(np.finfo(np.float64).eps)


Data = Callable[[NodeContext], tuple[Any, Any]]


def task(
    estimator: Any,
    data: Data,
    *,
    classes: ArrayLike | None = None,
    metrics: Sequence[str] = (),
    metric: str | None = None,
    name: str = "",
) -> SklearnTask:
    """Make a task of an estimator, which is copied and not fitted itself.

    `data` returns (training set, common test set or None) for a node; a set is a pair (X (n, features), y (n,)).
    `classes` are all labels; by default those in the node's own two sets, and nodes with different ones refuse to
    connect. `metrics` are names as in [Metrics](metrics.md), computed from `decision_function` where there is one;
    `metric` is the main one. Raises UserError: the estimator cannot be trained in steps, or has no linear coefficients
    or layers.
    """
    needed("sklearn", "sklearn", "scikit-learn")
    refuse_unsuited(estimator)
    labels = None if classes is None else np.unique(np.asarray(classes))
    own = named(metrics, key="metrics")
    return SklearnTask(estimator=estimator, data=data, classes=labels, metrics=own, metric=metric, name=name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SklearnTask:
    """A task with a learner of its own; `task` makes it."""

    estimator: Any
    data: Data
    classes: NDArray[Any] | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    metric: str | None = None
    name: str = ""

    def learner(self, context: NodeContext, training: TrainingConfig) -> SklearnLearner:
        """Make the learner of one node. Raises UserError: its data do not fit the estimator."""
        return SklearnLearner(self, context, training)

    def fitted(self, model: Path | str | Mapping[str, NDArray[Any]]) -> Any:
        """Return a fitted estimator of a file that `p2pfl export` or `checkpoints` wrote, or of its arrays by name.

        A classifier needs the task's `classes`. Raises UserError: the file or its arrays belong to another estimator.
        """
        try:
            state = model if isinstance(model, Mapping) else safetensors.numpy.load(read_file(Path(model)))
        except safetensors.SafetensorError as error:
            raise UserError(f"this is not a safetensors file: {error}", file=model) from None
        except KeyError as dtype:
            raise UserError(f"numpy has no numbers of the type {dtype}", file=model) from None
        first = state.get("coef_", state.get("coefs_.0"))
        if first is None:
            raise UserError("this is no model of scikit-learn", value=", ".join(state), allowed="coef_ or coefs_.0")
        if self.classes is None and _is_classifier(self.estimator):
            raise UserError("a classifier needs its labels", key="classes", allowed="all of them, in the task")
        features = first.shape[0] if "coefs_.0" in state else first.shape[-1]
        outputs = state.get("intercept_", state[max(state)]).shape[0]
        shape = (1,) if outputs == 1 or _is_classifier(self.estimator) else (1, outputs)
        return Fitting(self.estimator, features, self.classes, target_shape=shape, seed=0).loaded(state)


@dataclass(frozen=True, slots=True)
class RowPairs:
    """A set of rows: X (n, features), dense or sparse, and y (n,) or (n, outputs)."""

    X: Any
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)


class SklearnLearner:
    """The learner of one node. It keeps nothing from round to round but its data."""

    personal = 0

    def __init__(self, task: SklearnTask, context: NodeContext, training: TrainingConfig) -> None:
        """Read the node's data. Raises UserError: they do not fit, or `[training]` has an optimizer."""
        kind = type(task.estimator).__name__
        refuse_optimizer(training, kind)
        self.task, self.context, self.training = task, context, training
        self.rows, tests = _read_data(task, context)
        self.is_classifier = _is_classifier(task.estimator)
        self.classes: NDArray[Any] | None = None
        if self.is_classifier:
            labels = self.rows.y if tests is None else np.concatenate([self.rows.y, tests.y])
            self.classes = np.unique(labels) if task.classes is None else task.classes
            for what, part in (("training set", self.rows), ("test set", tests)):
                _check_labels(part, self.classes, kind, what)
        seed = int(generator(context.seed, "model").integers(2**31))
        features = self.rows.X.shape[1]
        shape = (1, *self.rows.y.shape[1:])
        self.fitting = Fitting(task.estimator, features, self.classes, target_shape=shape, seed=seed)
        if tests is not None and tests.X.shape[1] != features:
            text, allowed = "has another number of columns than the training set", f"{features}"
            raise UserError(text, file=kind, key="test set", value=tests.X.shape[1], allowed=allowed)
        self.parts = {"local": self.rows, "test": tests}
        self.size = self.fitting.layout.size
        self.shape_digest = self.fitting.layout.digest
        self.digest = b"" if self.classes is None else _digest(self.classes)
        self.samples = len(self.rows)
        self.measures = measured_by(task.metrics, task.metric, labels=self.is_classifier)

    def initial(self) -> Vector:
        return self.fitting.first.copy()

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        fitting, sizes = self.fitting, batch_sizes(self.training, self.samples)
        rng = generator(self.context.seed, "batches", self.context.node, round_index)
        rate = self.training.rate(round_index, start.elapsed_s, start.closing)
        fitting.begin(round_index * sum(sizes))
        model, losses = start.model, []
        rows = draw_rows(self.samples, sum(sizes), rng)
        with own_failures(f"{self._kind}: training"):
            for batch in np.split(rows, np.cumsum(sizes)[:-1]):
                fitting.load(model)
                part = RowPairs(self.rows.X[batch], self.rows.y[batch])
                losses.append(self._loss(part))
                fitting.step(part.X, part.y, int(rng.integers(2**31)))
                model = corrected(start, model, fitting.vector(), rate)
        return LocalRound(
            vector=model.astype(start.model.dtype),
            steps=len(sizes),
            learning_rate=rate,
            samples=self.samples,
            loss=float(np.mean(losses)) if losses else math.nan,
        )

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        rows = self.parts[part]
        if rows is None:
            return None
        if not np.isfinite(vector).all():
            return Score(accuracy=0.0 if self.is_classifier else None, loss=math.nan, samples=len(rows))
        self.fitting.load(vector)
        with own_failures(f"{self._kind}: evaluation"):
            return self._score(rows)

    def _score(self, rows: RowPairs) -> Score:
        outputs, targets = self._outputs(rows.X), rows.y
        accuracy: float | None = None
        intervals: dict[str, Interval | None] = {}
        if self.classes is not None:
            accuracy = float(np.mean(self.fitting.estimator.predict(rows.X) == rows.y))
            targets = np.searchsorted(self.classes, rows.y)
            intervals[ACCURACY.name] = wilson(accuracy, len(rows))
        metrics = {name: metric(outputs, targets) for name, metric in self.task.metrics.items()}
        for name, metric in self.task.metrics.items():
            intervals[name] = metric.interval(outputs, targets) if metric.interval else None
        return Score(
            accuracy=accuracy,
            loss=self._loss(rows),
            samples=len(rows),
            metrics=metrics,
            intervals={name: ends for name, ends in intervals.items() if ends and all(map(math.isfinite, ends))},
        )

    def _outputs(self, X: Any) -> Any:
        """Return logits (n,) or (n, classes) of a classifier, or predicted numbers."""
        estimator = self.fitting.estimator
        if not self.is_classifier:
            return estimator.predict(X)
        if hasattr(estimator, "decision_function"):
            return estimator.decision_function(X)
        return np.log(np.clip(estimator.predict_proba(X), LEAST_PROBABILITY, None))

    def _loss(self, rows: RowPairs) -> float:
        """Return the mean squared error; of a classifier log loss, or hinge loss if it has no probabilities."""
        estimator = self.fitting.estimator
        if self.classes is None:
            return float(np.mean((estimator.predict(rows.X) - rows.y) ** 2))
        targets = np.searchsorted(self.classes, rows.y)
        if hasattr(estimator, "predict_proba"):
            chosen = estimator.predict_proba(rows.X)[np.arange(len(rows)), targets]
            return float(np.mean(-np.log(np.clip(chosen, LEAST_PROBABILITY, None))))
        values = estimator.decision_function(rows.X)
        if values.ndim == 1:
            return float(np.mean(np.maximum(0.0, 1.0 - (2 * targets - 1) * values)))
        own = values[np.arange(len(rows)), targets]
        values[np.arange(len(rows)), targets] = -np.inf
        return float(np.mean(np.maximum(0.0, 1.0 + values.max(axis=1) - own)))

    @property
    def _kind(self) -> str:
        return type(self.task.estimator).__name__

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return {}

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        del state

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return self.fitting.layout.state(vector)


def _is_classifier(estimator: Any) -> bool:
    from sklearn.base import is_classifier  # noqa: PLC0415 - an extra

    return bool(is_classifier(estimator))


def _read_data(task: SklearnTask, context: NodeContext) -> tuple[RowPairs, RowPairs | None]:
    kind = type(task.estimator).__name__
    try:
        returned = task.data(context)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"data failed: {describe_failure(error)}", file=kind, key="data") from error
    if not (isinstance(returned, tuple | list) and len(returned) == 2) or returned[0] is None:
        allowed = "(training set, test set or None); a set is a pair (X, y)"
        raise UserError("data returned something else", file=kind, key="data", value=type(returned), allowed=allowed)
    train, test = returned
    return _rows(train, kind, "training set"), None if test is None else _rows(test, kind, "test set")


def _rows(pair: Any, kind: str, what: str) -> RowPairs:
    from sklearn.utils import check_array, check_consistent_length, column_or_1d  # noqa: PLC0415 - an extra

    try:
        X = check_array(pair[0], accept_sparse="csr", dtype=np.float64)
        y = np.asarray(pair[1])
        y = y if y.ndim == 2 and y.shape[1] > 1 else column_or_1d(y)
        check_consistent_length(X, y)
    except (ValueError, TypeError, IndexError, KeyError) as error:
        text = " ".join(str(error).split())
        raise UserError(
            f"cannot be used: {text}", file=kind, key=what, allowed="a pair (X, y), one row each"
        ) from error
    return RowPairs(X, y)


def _check_labels(rows: RowPairs | None, classes: NDArray[Any], kind: str, what: str) -> None:
    """Raises UserError: a label is none of the classes, or there is only one class."""
    allowed = ", ".join(map(str, classes))
    if len(classes) < 2:
        raise UserError("a classifier needs two labels", file=kind, key="classes", value=allowed, allowed="all labels")
    unknown = [] if rows is None else [label for label in np.unique(rows.y) if label not in classes]
    if unknown:
        raise UserError("a label is none of the classes", file=kind, key=what, value=unknown[0], allowed=allowed)


def _digest(classes: NDArray[Any]) -> bytes:
    text = "\n".join(map(str, classes.tolist())).encode()
    return hashlib.blake2b(text, digest_size=32, person=b"p2pfl-classes").digest()
