"""The interface of a learning method: it makes the next model from local rounds and from mixing.

A subclass overrides what differs from `plain`. Its functions are pure and elementwise: they return new values, and each
coordinate depends on no other. So the same code works on a tile of a vector (d,) in a node and on the rows (nodes, d)
of a simulation, and a refused exchange leaves no trace. They must be deterministic, because an exchange on disk is
computed again after a crash.

`like` converts numbers to a vector's dtype. A per-node number is a Python float in a node, and a column (nodes, 1) if
rows are computed together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from p2pfl.specs import Catalog, Entry

Array = Any
"""A numpy array (d,), a tile of it, or rows (nodes, d); in `gradient`, a torch tensor, or a numpy array if the task
does not use torch.
"""
Number = Any
"""A float, or a column (nodes, 1) of float64."""
Vectors = Mapping[str, Array]

METHODS: Catalog[Entry] = Catalog("method")

CONSERVATIVE, ROBUST = "conservative", "robust"
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A finished local round of `steps` at `learning_rate`, on n = `samples`. `rho` raises the weight of nodes with
    fewer rounds.

    `loss` is the mean over the steps and `moved` the norm of their change; both are NaN unless the method `needs_loss`.
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
    """The result of a round. `change` is added to what the node exchanges, by channel; `kept` replaces the node's own
    vectors. Vectors that are not named do not change.
    """

    change: Vectors
    kept: Vectors = field(default_factory=dict)


class TrainingKeys(Protocol):
    """The part of `[training]` that a method may be incompatible with."""

    @property
    def optimizer(self) -> str: ...
    @property
    def momentum(self) -> float: ...
    @property
    def local_epochs(self) -> int | None: ...
    @property
    def speed_correction(self) -> float: ...
    @property
    def least_rate(self) -> float: ...


class NodeVectors(Protocol):
    """A node as its method sees it: `samples` is n, `channels` are the vectors it exchanges, `kept` its own vectors, by
    name.

    `given` is what `begin` returned for the round that is ending; it is zero if the round used the loss's own
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
        """Sum a kept vector over all edges, in the order of neighbors."""
        ...


class Method:
    """The base class is `plain`: each local round is added to the model, and mixing moves it.

    `channels` are the vectors that neighbors exchange, each as long as the model, in one message. The first is the
    model, the others start at zero. `kept` are the node's own vectors, which survive a restart and change only at a
    commit. `kept_edges` are vectors for each edge, as long as all channels; both ends drop them when the edge is reset.
    """

    meaning: str = ""
    """A sentence that describes your own method to people; `source` is the paper."""
    source: str = ""
    profiles: frozenset[str] = frozenset({CONSERVATIVE, ROBUST})
    """The profiles in which the method is valid."""
    unfit: str = ""
    """The reason why it is not valid in the other profiles, as a clause; empty means the usual reason."""
    channels: tuple[str, ...] = (MODEL,)
    kept: tuple[str, ...] = ()
    kept_edges: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    """The names of the vectors that `begin` returns for a round."""
    no_terms: tuple[float, ...] = ()
    """The `terms` of a node that has not trained yet; the number of terms never changes."""
    needs_company = False
    """True if a round without a neighbor is trained without `gradient`; in other rounds, `begin` sees only edges to
    connected neighbors.
    """
    needs_loss = False
    """True if `trained` or `terms` use `Round.loss`, `moved` or `terms`."""
    every_parameter = False
    """True if `gradient` is also called, with zeros, for parameters on which the loss does not depend."""

    needs_anchor = True
    """False if `gradient` does not read `start["anchor"]`, which then need not be on the device that trains. A user's
    method always gets it: it may have inherited this from one of ours.
    """

    is_users = False
    """True if the method is the user's own, so that the engine checks its results for a neighbor's terms. The catalog
    sets this.
    """
    spec: str = "plain"
    """The spec of the method, in its canonical spelling. The catalog sets this and `code`."""
    code: str = "plain"
    """The method's name without parameters, and its code if it comes from a file: vectors kept by different code are
    dropped.
    """

    def prepare(self, training: TrainingKeys) -> None:
        """Check the training settings; called once, before anything else.

        Raises ValueError: the method is incompatible with the federation's training settings; the user sees the reason.
        """

    def first(self, name: str, model: Array) -> Array:
        """Return the value of a `kept` vector until the first commit, for a node with this `model` (d,). The default is
        zero.
        """
        return np.zeros_like(model)

    def begin(self, node: NodeVectors) -> Vectors:
        """Return the vectors that `gradient` receives in addition to `anchor`, by the names in `given`."""
        return {}

    def gradient(self, g: Array, w: Array, start: Vectors) -> Array:
        """Compute the gradient for one step from the loss's gradient `g` at the parameters `w`, in their shape.

        `start["anchor"]` is the model at the beginning of the round; the rest is what `begin` returned.
        """
        return g

    def trained(self, change: Array, node: NodeVectors, round: Round) -> New:
        """Compute the result of a local round that moved the model by `change`."""
        return New({MODEL: change * like(change, round.rho)})

    def terms(self, round: Round) -> tuple[float, ...]:
        """Return the nonnegative numbers that the node's messages contain after this round."""
        return self.no_terms

    def valid(self, terms: tuple[float, ...]) -> bool:
        """Return True if a neighbor's terms are valid; invalid terms are refused before anything is applied."""
        return True

    def agree(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
        """Compute the terms of one exchange, for both ends. Agreeing again must change nothing: a node accepts its
        neighbor's result only if `agree(ours, agreed) == agreed`.
        """
        return ours

    def heard(self, ours: tuple[float, ...], agreed: tuple[float, ...]) -> tuple[float, ...]:
        """Return the node's terms after an exchange with the `agreed` terms; before it they were `ours`."""
        return ours

    def moves(self, terms: tuple[float, ...]) -> bool:
        """Return True if an exchange with these terms changes what the edge keeps."""
        return bool(self.kept_edges)

    def moved(self, edge: Vectors, move: Array, terms: tuple[Number, ...]) -> Vectors:
        """Return the vectors that the edge keeps after an exchange that moved n times the channels by `move`. At the
        other end `move` has the same bits with the opposite sign.
        """
        return {}


def like(vector: Array, number: Number) -> Any:
    """Round `number` to the vector's dtype, because float64 must not widen a float32."""
    return np.asarray(number, dtype=vector.dtype) if isinstance(number, np.ndarray) else vector.dtype.type(number)


def overrides(method: Method, name: str) -> bool:
    """Return True if a method overrides this function; functions that are not overridden need not be called."""
    return getattr(type(method), name) is not getattr(Method, name)
