"""The interface of a learning method: it makes the next model from local rounds and from mixing.

A subclass overrides what differs from `plain`. Its functions are pure and elementwise: they return new values and look
at no other coordinate, so the same lines serve a tile of a vector (d,) in a node and the rows (nodes, d) of a
simulation, and an exchange that is refused leaves no trace. They must be deterministic, because an exchange on the disk
is computed again after a crash.

`like` converts numbers to the type of a vector; a number of the node is a Python float in a node, and a column (nodes,
1) where rows are computed together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from p2pfl.specs import Catalog, Entry

Array = Any
"""A numpy array (d,), a tile of it, or rows (nodes, d); in `gradient` a torch tensor, or numpy in a task without torch.
"""
Number = Any
"""A float, or a column (nodes, 1) of float64."""
Vectors = Mapping[str, Array]

METHODS: Catalog[Entry] = Catalog("method")

CONSERVATIVE, ROBUST = "conservative", "robust"
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A finished local round: `steps` at `learning_rate`, on `samples` n; `rho` raises the weight of nodes with fewer
    rounds.

    `loss` is the mean over the steps and `moved` the length of their change: NaN unless the method `needs_loss`.
    `terms` are the node's terms before the round.
    """

    steps: Number
    learning_rate: Number
    samples: Number
    rho: Number
    loss: Number = math.nan
    moved: Number = math.nan
    terms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class New:
    """The result of a round. `change` by channel is added to what the node exchanges, `kept` replaces vectors of the
    node. Vectors that are not named stay as they were.
    """

    change: Vectors
    kept: Vectors = field(default_factory=dict)


class TrainingKeys(Protocol):
    """The part of `[training]` that a method may contradict."""

    @property
    def optimizer(self) -> str: ...
    @property
    def momentum(self) -> float: ...
    @property
    def speed_correction(self) -> float: ...
    @property
    def least_rate(self) -> float: ...


class NodeVectors(Protocol):
    """A node as its method sees it: `samples` n, `channels` what it exchanges, `kept` its own vectors, by name.

    `given` is what `begin` returned for the round that ends now; it is zero where the round used the loss's own
    gradients.
    """

    @property
    def samples(self) -> Number: ...
    @property
    def channels(self) -> Vectors: ...
    @property
    def kept(self) -> Vectors: ...
    @property
    def given(self) -> Vectors: ...
    def sum_of_edges(self, name: str, channel: str = MODEL) -> Array:
        """Sum a kept vector over all edges, in the order of the neighbors."""
        ...


class Method:
    """The base class is `plain`: each local round is added to the model, and mixing moves it.

    `channels` are the vectors that neighbors exchange, each as long as the model, in one message. The first is the
    model, the others begin at zero. `kept` are vectors of the node that survive a restart and change only at a commit.
    `kept_edges` are vectors of each edge, as long as all channels; both ends drop them when the edge is reset.
    """

    meaning: str = ""
    """A sentence for people that describes a method of your own; `source` is the paper."""
    source: str = ""
    profiles: frozenset[str] = frozenset({CONSERVATIVE, ROBUST})
    """The profiles in which the method is valid."""
    unfit: str = ""
    """Why it is not valid in the other profiles, as a clause; empty for the usual reason."""
    channels: tuple[str, ...] = (MODEL,)
    kept: tuple[str, ...] = ()
    kept_edges: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    """Names of the vectors that `begin` returns for a round."""
    no_terms: tuple[float, ...] = ()
    """The `terms` of a node that has not trained yet; their number never changes."""
    needs_company = False
    """True if a round without a neighbor is trained without `gradient`; in others `begin` sees only edges to present
    neighbors.
    """
    needs_loss = False
    """True if `trained` or `terms` use `Round.loss`, `moved` or `terms`."""
    every_parameter = False
    """True to call `gradient`, with zeros, even for parameters on which the loss does not depend."""

    is_users = False
    """True if the method is the user's, so that the engine checks its results on a neighbor's terms. The catalog sets
    this.
    """
    spec: str = "plain"
    """The spec of the method, in its canonical spelling. The catalog sets this and `code`."""
    code: str = "plain"
    """The method's name without its parameters, and its code if it is from a file: vectors kept by other code are
    dropped.
    """

    def prepare(self, training: TrainingKeys) -> None:
        """Check the training; called once, before anything else.

        Raises ValueError: the method contradicts the federation's training; the reason is shown to the user.
        """

    def first(self, name: str, model: Array) -> Array:
        """Return the value of a vector of `kept` until the first commit, for a node's `model` (d,): zero."""
        return np.zeros_like(model)

    def begin(self, node: NodeVectors) -> Vectors:
        """Return the vectors that `gradient` gets besides `anchor`, by the names in `given`."""
        return {}

    def gradient(self, g: Array, w: Array, start: Vectors) -> Array:
        """Compute the gradient of one step, from the loss's gradient `g` at the parameters `w`, in their shape.

        `start["anchor"]` is the model that the round began with; the rest is what `begin` returned.
        """
        return g

    def trained(self, change: Array, node: NodeVectors, round: Round) -> New:
        """Compute the result of a local round that moved the model by `change`."""
        return New({MODEL: change * like(change, round.rho)})

    def terms(self, round: Round) -> tuple[float, ...]:
        """Return nonnegative numbers that the node's messages carry after this round."""
        return self.no_terms

    def valid(self, terms: tuple[float, ...]) -> bool:
        """Return True if a neighbor's terms are valid; others are refused before anything is applied."""
        return True

    def agree(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
        """Compute the terms of one exchange, for both ends. To agree again must change nothing: a node believes its
        neighbor only if `agree(ours, agreed) == agreed`.
        """
        return ours

    def heard(self, ours: tuple[float, ...], agreed: tuple[float, ...]) -> tuple[float, ...]:
        """Return the node's terms after an exchange on the `agreed` ones; before it they were `ours`."""
        return ours

    def moves(self, terms: tuple[float, ...]) -> bool:
        """Return True if an exchange on these terms changes what its edge keeps."""
        return bool(self.kept_edges)

    def moved(self, edge: Vectors, move: Array, terms: tuple[Number, ...]) -> Vectors:
        """Return the vectors that the edge keeps after an exchange that moved n times the channels by `move`. At the
        other end `move` has the same bits with the opposite sign.
        """
        return {}


def like(vector: Array, number: Number) -> Any:
    """Round `number` to the vector's type: float64 must not widen a float32."""
    return np.asarray(number, dtype=vector.dtype) if isinstance(number, np.ndarray) else vector.dtype.type(number)


def overrides(method: Method, name: str) -> bool:
    """Return True if a method overrides this function, so that the others cost nothing."""
    return getattr(type(method), name) is not getattr(Method, name)
