"""Simulated federations as scikit-learn estimators, so that `cross_val_score` compares them with a center.

    from sim.adapt import FederatedClassifier

    sites = FederatedClassifier(SGDClassifier(loss="log_loss"), nodes=5, partition="dirichlet:0.3", random_state=0)
    print(cross_val_score(sites, X, y).mean(), cross_val_score(SGDClassifier(loss="log_loss"), X, y).mean())

`fit` divides the rows of X among nodes, which learn together in virtual time. Needs scikit-learn and torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from p2pfl.adapt.sklearn import Fitting, SklearnTask, refuse_unsuited
from p2pfl.config.load import federation_from
from p2pfl.config.model import GOSSIP, TRAINING, FederationConfig
from p2pfl.config.tables import Mistakes
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import UserError
from sim.worlds.world import World

WHERE = "settings"
"""The place of mistakes, in errors."""
ROWS = {"accept_sparse": "csr", "accept_large_sparse": False, "dtype": np.float64}
"""What may hold X: estimators that train in steps read no sparse matrix with 64-bit indices."""
OWN = {"task.partition": "partition", "federation.topology": "topology"}
"""Keys of a federation that are parameters of the estimators."""


class FederatedEstimator(BaseEstimator):  # type: ignore[misc]  # it has no stubs
    """What both have in common.

    `estimator` is what each node trains: linear with `partial_fit`, or an MLP. Its rows are those of X by `partition`
    (iid, shards:2, dirichlet:0.3 ...; see `p2pfl.learn.task`). `settings` has keys of `[training]` and `[gossip]`,
    such as `method`, `rule` or `local_steps`; `world` has the keywords of `sim.World`. With a number as `random_state`,
    each `fit` gives the same bits.

    After `fit`, `estimators_` has the fitted estimator of each node, `estimator_` that of their mean, which predicts,
    and `report_` the report of the simulation. With fewer rows than `nodes`, there are as many nodes as rows.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        nodes: int = 4,
        topology: str = "complete",
        rounds: int = 20,
        partition: str = "iid",
        settings: Mapping[str, Any] | None = None,
        world: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.nodes = nodes
        self.topology = topology
        self.rounds = rounds
        self.partition = partition
        self.settings = settings
        self.world = world
        self.random_state = random_state

    def _template(self) -> Any:
        """Return the estimator that each node trains."""
        raise NotImplementedError

    def _learn(self, X: Any, y: NDArray[Any], classes: NDArray[Any] | None) -> None:
        """Simulate, and keep what was learned. Raises ValueError: an argument is wrong, or the task."""
        from sim.simulation import simulate  # noqa: PLC0415 - it loads torch

        template, models = self._template(), list[NDArray[Any]]()
        if is_classifier(template) != (classes is not None):
            raise ValueError(f"{type(template).__name__} does not fit {type(self).__name__}")
        labels = y if classes is None else np.searchsorted(classes, y)

        def data(node: Any) -> tuple[Any, None]:
            rows = node.partition(labels, self.partition)
            return (X[rows], y[rows]), None

        def keep(found: NDArray[Any]) -> None:
            models.extend(found.copy())

        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        task = SklearnTask(estimator=template, data=data, classes=classes)
        try:
            refuse_unsuited(template)
            federation = described(
                task,
                nodes=min(self.nodes, X.shape[0]),
                topology=self.topology,
                seed=seed,
                settings={"rounds": self.rounds, **(self.settings or {})},
            )
            world = World(**(self.world or {})).spec([member.name for member in federation.members])
            self.report_ = simulate(
                federation, world=world, references=False, on_models=keep, on_progress=lambda _: None
            )
            fittings = [Fitting(template, X.shape[1], classes, seed=seed) for _ in range(len(models) + 1)]
        except UserError as error:
            if error.key in OWN:  # of this estimator, and in no file
                error.file, error.key = None, OWN[error.key]
            raise ValueError(str(error)) from error
        for fitting, model in zip(fittings, [*models, np.mean(models, axis=0)], strict=True):
            fitting.load(model)
        *self.estimators_, self.estimator_ = (fitting.estimator for fitting in fittings)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict with the mean of the nodes' models."""
        return np.asarray(self._of_fitted("predict", X))

    def _of_fitted(self, name: str, X: Any) -> Any:
        check_is_fitted(self, "estimator_")
        X = validate_data(self, X, **ROWS, reset=False)
        return getattr(self.estimator_, name)(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def described(
    task: SklearnTask, *, nodes: int, topology: str, seed: int, settings: Mapping[str, Any]
) -> FederationConfig:
    """Describe a federation as a file would. Raises UserError: its first mistake."""
    tables: dict[str, dict[str, Any]] = {"training": {}, "gossip": {}}
    for key, value in settings.items():
        if key not in TRAINING and key not in GOSSIP:
            raise UserError("unknown key", file=WHERE, key=key, value=value, allowed=", ".join([*TRAINING, *GOSSIP]))
        tables["gossip" if key in GOSSIP else "training"][key] = value
    members = [{"name": f"node{index}", "key": public_text(_key(index))} for index in range(nodes)]
    head = {"name": "federation", "seed": seed, "topology": topology}
    mistakes = Mistakes(Path(WHERE))
    config = federation_from({"federation": head, "task": {"name": "task"}, **tables, "node": members}, mistakes)
    for mistake in mistakes.found:
        mistake.file = WHERE
        raise mistake
    return replace(config, task=replace(config.task, given=task))


def _key(index: int) -> bytes:
    """Return the key of a node that does not exist."""
    return Identity(blake2b(str(index).encode(), digest_size=32, person=b"p2pfl-simulated").digest()).public


def _has(name: str) -> Callable[[FederatedEstimator], bool]:
    return lambda made: hasattr(made._template(), name)  # noqa: SLF001 - of this module


class FederatedClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]  # it has no stubs
    """A classifier; by default of `SGDClassifier(loss="log_loss")`."""

    def _template(self) -> Any:
        return SGDClassifier(loss="log_loss") if self.estimator is None else self.estimator

    def fit(self, X: Any, y: Any) -> FederatedClassifier:
        """Learn labels y (n,) from X (n, features). Raises ValueError."""
        X, y = validate_data(self, X, y, **ROWS, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError("a classifier needs rows of two classes, and there is one class")
        self._learn(X, y, self.classes_)
        return self

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]  # it has no stubs
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return probabilities (n, classes)."""
        return np.asarray(self._of_fitted("predict_proba", X))

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]  # as above
    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return decision values (n,), or (n, classes) for more than two."""
        return np.asarray(self._of_fitted("decision_function", X))


class FederatedRegressor(RegressorMixin, FederatedEstimator):  # type: ignore[misc]  # it has no stubs
    """A regression of one number; by default by `SGDRegressor()`."""

    def _template(self) -> Any:
        return SGDRegressor() if self.estimator is None else self.estimator

    def fit(self, X: Any, y: Any) -> FederatedRegressor:
        """Learn numbers y (n,) from X (n, features). Raises ValueError."""
        X, y = validate_data(self, X, y, **ROWS, y_numeric=True, ensure_min_samples=2)
        self._learn(X, column_or_1d(y, warn=True), None)
        return self
