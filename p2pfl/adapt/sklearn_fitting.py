"""A scikit-learn estimator whose arrays are set before a step and read after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.adapt.array_layout import ArrayLayout
from p2pfl.errors import UserError
from p2pfl.learn.interface import Vector
from p2pfl.plugins import FAILURES, describe_failure

LINEAR, LAYERS = ("coef_", "intercept_"), ("coefs_", "intercepts_")
SUITED = "a linear estimator with partial_fit (SGDClassifier, SGDRegressor, Perceptron), MLPClassifier or MLPRegressor"
TINY_RATE = 1e-300
"""A learning rate with which a first step, which only makes an estimator's arrays, changes nothing."""


class Estimator(Protocol):
    """The part of a scikit-learn estimator that is used here. Its arrays are attributes that end in `_`."""

    def get_params(self) -> dict[str, Any]: ...
    def set_params(self, **params: Any) -> Any: ...
    def partial_fit(self, X: Any, y: Any, **how: Any) -> Any: ...
    def predict(self, X: Any) -> Any: ...


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
        estimator: Estimator,
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
        found: dict[str, NDArray[Any]] = {}
        for name in self.names:
            value = getattr(self.estimator, name)
            found |= {f"{name}.{k}": one for k, one in enumerate(value)} if self.names == LAYERS else {name: value}
        return found

    def load(self, vector: Vector) -> None:
        """Set the estimator's arrays to a model (d,)."""
        self._set(self.layout.state(vector))

    def loaded(self, state: Mapping[str, NDArray[Any]]) -> Any:
        """Return the estimator with these arrays. Raises UserError: they are another's."""
        expected = {name: array.shape for name, array in self._arrays().items()}
        found = {name: array.shape for name, array in state.items()}
        if found != expected:
            raise UserError("the arrays are of another estimator", value=str(found), allowed=str(expected))
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
