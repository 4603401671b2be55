"""The interface of a learning method: it makes the next model from local rounds and from mixing.

A subclass overrides what differs from `plain`. Its functions are pure and elementwise: they return new values, and each
coordinate depends on no other. So the same code works on a tile of a vector (d,) in a node and on the rows (nodes, d)
of a simulation, and a refused exchange leaves no trace. They must be deterministic, because an exchange on disk is
computed again after a crash.

`like` converts numbers to a vector's dtype. A per-node number is a Python float in a node, and a column (nodes, 1) if
rows are computed together.

`make_method` makes a method from `training.method`, for instance `variate:beta=0.1`:

    NAME[:key=value,...] | module:object[,key=value,...] | file.py:object[,key=value,...]
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from p2pfl.errors import LearningError, P2PFLError, UserError
from p2pfl.limits import MOST_TERMS
from p2pfl.plugins import FAILURES, describe_failure, find_object
from p2pfl.specs import Catalog, Entry, Parameter, number, read_parameters

Array = Any
"""A numpy array (d,), a tile of it, or rows (nodes, d); in `gradient`, a torch tensor, or a numpy array if the task
does not use torch.
"""
Number = Any
"""A float, or a column (nodes, 1) of float64."""
Vectors = Mapping[str, Array]
TrainingKeys = Any
"""The keys of `[training]` as attributes, such as `optimizer`, `momentum`, `local_epochs`, `speed_correction`."""

METHODS: Catalog[Entry] = Catalog("method", Entry)

CONSERVATIVE, ROBUST = "conservative", "robust"
MODEL, FLOW, CORRECTION = "model", "flow", "correction"
KEY = "training.method"
CODE_DIGITS = 16
TAKEN = frozenset({MODEL, "anchor", "own", "peer", "local", "kept", "pending", "reply"})
"""Names that already have another meaning in a round, or in the files of a state."""
_UNFIT = {
    ROBUST: "this method needs exchanges that move models, and under a robust rule none do",
    CONSERVATIVE: "this method is for robust rules only",
}


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


@METHODS.add(
    name="plain",
    aliases=("fedavg", "sgd", "none", "dsgd"),
    means="local steps and mixing, nothing else",
    source="Lian et al., arXiv 1705.09056",
)
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


@METHODS.add(
    name="variate",
    aliases=("scaffold", "controlvariate"),
    means="each gradient is corrected by the movement due to mixing so far: for data that differ between nodes",
    parameters=(Parameter("beta", number(0, 1e30, above=True), "how strongly flows correct a gradient"),),
    source="after SCAFFOLD (arXiv 1910.06378) and K-GT (arXiv 2301.01313)",
)
class Variate(Method):
    """`variate:beta=0.1`: a control variate computed from the flows of mixing, for heterogeneous data.

    The variate of node i is C_i = -(beta/n_i) sum_j S_ij, added to each gradient. S_ij, the *flow* of an edge, is the
    sum over its exchanges of D/a, where n times the model moved by D, and a = rho eta H (learning rate times steps) is
    the larger of both ends' values. Its two ends differ only in sign, so sum_i n_i C_i is zero whatever else a node has
    lost; flows from absent neighbors do not count. The idea comes from SCAFFOLD (Karimireddy et al., arXiv 1910.06378)
    and K-GT (Liu et al., arXiv 2301.01313), without a second vector on the wire.

    The drift a is the only term; it is 0 before a node has trained.
    """

    profiles = frozenset({CONSERVATIVE})
    kept_edges = (FLOW,)
    needs_anchor = False
    given = (CORRECTION,)
    no_terms = (0.0,)
    needs_company = True
    every_parameter = True
    least_drift = 1e-9
    """The smallest drift accepted from a neighbor, unless the round's own is larger: else the variate would explode."""

    def __init__(self, beta: float = 0.1) -> None:
        self.beta = beta
        self.momentum = 0.0

    def reach(self, steps: int) -> float:
        """Return how far so many steps of SGD go along one gradient, in steps without momentum."""
        return sum((1.0 - self.momentum**step) / (1.0 - self.momentum) for step in range(1, steps + 1))

    def prepare(self, training: TrainingKeys) -> None:
        self.momentum = training.momentum
        self.least_drift = max(type(self).least_drift, 0.5 * training.least_rate / training.speed_correction)

    def begin(self, node: NodeVectors) -> Vectors:
        total = node.sum_of_edges(FLOW)
        total *= like(total, -self.beta / node.samples)
        return {CORRECTION: total}

    def gradient(self, g: Array, w: Array, start: Vectors) -> Array:
        return g + start[CORRECTION]

    def terms(self, round: Round) -> tuple[float, ...]:
        return (round.learning_rate * round.steps * round.rho,)

    def valid(self, terms: tuple[float, ...]) -> bool:
        return not 0.0 < terms[0] < self.least_drift

    def agree(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
        return (max(ours[0], theirs[0]),)

    def moves(self, terms: tuple[float, ...]) -> bool:
        """Return True if either end has trained: otherwise none of the disagreement that flows comes from training."""
        return terms[0] > 0.0

    def moved(self, edge: Vectors, move: Array, terms: tuple[Number, ...]) -> Vectors:
        return {FLOW: edge[FLOW] + move * like(move, 1.0 / terms[0])}


@contextmanager
def own_failures(what: str) -> Iterator[None]:
    """Turn a failure of `what`, which may be the user's code, into a one-line error.

    Raises LearningError: `what` failed; the error says where.
    """
    try:
        yield
    except P2PFLError:
        raise
    except FAILURES as error:
        raise LearningError(f"{what} failed: {describe_failure(error)}") from error


def overrides(method: Method, name: str) -> bool:
    """Return True if a method overrides this function; functions that are not overridden need not be called."""
    return getattr(type(method), name) is not getattr(Method, name)


# -- as it is written, and what it makes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMethod:
    """A parsed spec; `str` gives its canonical spelling."""

    name: str
    """A name in METHODS, or `module:object`, or `file.py:object`."""
    parameters: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def is_object(self) -> bool:
        """Return True if the method is the user's own, and must be imported."""
        return self.name not in METHODS

    def __str__(self) -> str:
        values = ",".join(f"{key}={value!r}" for key, value in self.parameters.items())
        return self.name + ("," if self.is_object else ":") * bool(values) + values


def allowed() -> str:
    """Describe all methods."""
    known = ", ".join(entry.shown for entry in METHODS.values())
    return f"{known}; or your own: module:object,key=1 or file.py:object,key=1"


def parse_method(text: str) -> ParsedMethod:
    """Parse a method's spec. Raises ValueError, which names the wrong word, what is wrong and what is allowed."""
    if own := METHODS.own(text):
        return ParsedMethod(name=own[0], parameters=read_parameters(*own, None))
    entry, values = METHODS.read(text)
    return ParsedMethod(name=entry.name, parameters=values)


def from_here(spec: str) -> str:
    """Make a file's path in a spec absolute, relative to the working folder: a federation file may be elsewhere."""
    place, colon, rest = spec.partition(".py:")
    return f"{Path(place).absolute()}.py:{rest}" if colon else spec


def make_method(
    spec: str, training: TrainingKeys, *, profile: str | None = CONSERVATIVE, folder: Path | None = None
) -> Method:
    """Make the method for a spec, ready to use. A path to a `file.py` is relative to `folder`; without a `profile`, the
    profile is not checked.

    Raises UserError: the spec is wrong, or the method is invalid in this profile or with these training settings.
    """
    try:
        parsed = parse_method(spec)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec, allowed=allowed()) from None
    made = _from_user(parsed, folder or Path()) if parsed.is_object else METHODS[parsed.name].make(parsed.parameters)
    _check(made, str(parsed))
    made.spec, made.is_users = str(parsed), parsed.is_object
    made.code = f"{parsed.name}@{_digest(made)}" if parsed.is_object else parsed.name
    if profile is not None and profile not in made.profiles:
        raise UserError(made.unfit or _UNFIT[profile], key=KEY, value=spec, allowed=_methods_for(profile))
    try:
        made.prepare(training)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec) from None
    except FAILURES as error:
        raise UserError(f"the method failed: {describe_failure(error)}", key=KEY, value=spec) from error
    return made


def _from_user(parsed: ParsedMethod, folder: Path) -> Method:
    loaded = find_object(parsed.name, folder, what="method", key=KEY, allowed=allowed())
    try:
        made = loaded(**parsed.parameters) if callable(loaded) else loaded
    except FAILURES as error:
        raise UserError(f"the method failed: {describe_failure(error)}", key=KEY, value=str(parsed)) from error
    if not isinstance(made, Method):
        text = f"{parsed.name} is not a method"
        raise UserError(text, key=KEY, value=type(made).__name__, allowed="a class derived from p2pfl.Method")
    return made


def _methods_for(profile: str) -> str:
    if profile == CONSERVATIVE:
        return "another method, or a robust rule"
    fitting = [name for name, entry in METHODS.items() if profile in getattr(entry.made, "profiles", ())]
    return f"{', '.join(fitting)}; or gossip.rule = mean"


def _check(method: Method, spec: str) -> None:
    """Refuse, at the start, what would make a user's method fail later."""
    for name in ("channels", "kept", "kept_edges", "given"):
        names = getattr(method, name)
        if not isinstance(names, tuple) or not all(isinstance(each, str) and each.isidentifier() for each in names):
            text = f"{name} of the method is not a tuple of names"
            raise UserError(text, key=KEY, value=repr(names), allowed='("a", "b")')
        if len(set(names)) < len(names) or (name != "channels" and TAKEN.intersection(names)):
            text = f"{name} of the method has a duplicate or reserved name"
            raise UserError(text, key=KEY, value=repr(names), allowed=f"others than {', '.join(sorted(TAKEN))}")
    if method.channels[:1] != (MODEL,):
        text = f"the first channel of a method is the model; this one has {method.channels}"
        raise UserError(text, key=KEY, value=spec, allowed=f'channels = ("{MODEL}", ...)')
    terms = method.no_terms
    few = isinstance(terms, tuple) and len(terms) <= MOST_TERMS
    if not few or not all(isinstance(term, float) and term >= 0 for term in terms):
        raise UserError("no_terms is not a tuple of numbers", key=KEY, value=repr(terms), allowed="(0.0,)")
    if not isinstance(method.profiles, frozenset) or not method.profiles <= {CONSERVATIVE, ROBUST}:
        allowed = f'frozenset({{"{CONSERVATIVE}", "{ROBUST}"}})'
        raise UserError("profiles of the method is not a set of profiles", key=KEY, value=spec, allowed=allowed)


def _digest(method: Method) -> str:
    """Hash the file that defines the method's class, and the names of what the method keeps and exchanges."""
    try:
        text = Path(inspect.getfile(type(method))).read_bytes()
    except (OSError, TypeError):
        text = type(method).__qualname__.encode()
    digest = hashlib.blake2b(text, digest_size=CODE_DIGITS // 2, person=b"p2pfl-method")
    digest.update(repr((method.channels, method.kept, method.kept_edges, len(method.no_terms))).encode())
    return digest.hexdigest()
