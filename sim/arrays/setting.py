"""The part of a federation and a world that arrays simulate, and the refusal of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.compress import Compressor, Fragments, make_compressor
from p2pfl.config.model import FederationConfig
from p2pfl.core.limits import PATIENCE_FLOOR_S
from p2pfl.core.rounds import LEAST_USUAL_WAIT_S
from p2pfl.errors import UserError
from p2pfl.learn.methods import method_of
from p2pfl.limits import PATIENCE_MULTIPLE, WAIT_BURST_S, WAIT_SHARE
from p2pfl.methods import MODEL, Array, Method, Number, Round, Vectors, overrides
from sim.attacks import Attack, parse_attack
from sim.learning.batching import ManyModels, rate_of
from sim.learning.nodes import TorchNodes, load_learners
from sim.worlds.model import WorldSpec
from topologies.families import kind
from topologies.family import GraphKind

Integers = NDArray[np.int64]
OF_FEDERATION = ("topology", "training", "gossip", "privacy")
"""Where the keys begin that a federation file has; those of the others are in a world file."""


def is_simulated(method: Method) -> bool:
    """Return True if arrays know the method: it exchanges the model alone, and keeps nothing at edges but flows."""
    if method.channels != (MODEL,) or method.needs_loss or len(method.given) > 1:
        return False
    return method.code == "variate" or not (method.kept_edges or method.no_terms)


class MethodMemory:
    """The memory of a method that remembers nothing."""

    changes = False
    """True if `commit` changes what rounds add."""

    def given(self, nodes: Integers) -> Tensor | None:
        """Return the vectors that the method gives to these nodes' rounds (b, d); None if it gives none."""
        del nodes
        return None

    def commit(self, nodes: Integers, rounds: Integers, models: Tensor, change: Tensor) -> Tensor:
        """Return what these rounds add to `models` (b, d), given what training changed (b, d)."""
        del nodes, rounds, models
        return change


class Flows(MethodMemory):
    """Control variates: `sums` (n, d) is what mixing has moved n times each model by, over the drift of a round.

    One vector a node does for one an edge: where nobody leaves and no edge is reset, a node's flows sum to that. The
    drift (n,) is learning rate times steps.
    """

    def __init__(self, setting: Setting, beta: float) -> None:
        self.sums = setting.initial.new_zeros(setting.nodes, setting.size)
        self.drift = setting.federation.training.learning_rate * setting.steps.astype(np.float64)
        self.factor = self.sums.new_tensor(-beta / setting.samples)

    def of_edges(self, ends: Integers) -> NDArray[np.float64]:
        """Return the larger drift of each edge's ends (m,)."""
        return np.maximum(self.drift[ends[:, 0]], self.drift[ends[:, 1]])

    def given(self, nodes: Integers) -> Tensor:
        rows = torch.as_tensor(nodes, device=self.sums.device)
        return self.sums.index_select(0, rows).mul_(self.factor[rows, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Some nodes as their method sees them: rows (b, d), and numbers as columns (b, 1)."""

    samples: Number
    channels: Vectors
    kept: Vectors
    given: Vectors = field(default_factory=dict)

    def sum_of_edges(self, name: str, channel: str = MODEL) -> Array:
        raise NotImplementedError(f"arrays keep no vectors of edges, and none called {name} for {channel}")


class Kept(MethodMemory):
    """The vectors that a method keeps at each node, moved by its own functions on rows."""

    changes = True

    def __init__(self, setting: Setting) -> None:
        self.method, self.steps, self.samples = setting.method, setting.steps[:, None], setting.samples[:, None]
        self.training, self.device = setting.federation.training, setting.device
        models = np.tile(setting.initial.cpu().numpy(), (setting.nodes, 1))
        self.vectors = {name: np.array(self.method.first(name, models)) for name in self.method.kept}

    def given(self, nodes: Integers) -> Tensor | None:
        begun = self.method.begin(self._seen(nodes, {}))
        return torch.from_numpy(begun[self.method.given[0]]).to(self.device) if self.method.given else None

    def commit(self, nodes: Integers, rounds: Integers, models: Tensor, change: Tensor) -> Tensor:
        rate = np.array([[rate_of(self.training, done)] for done in rounds.tolist()])
        ended = Round(steps=self.steps[nodes], learning_rate=rate, samples=self.samples[nodes], rho=1.0)
        seen = self._seen(nodes, {MODEL: models.cpu().numpy()})
        new = self.method.trained(change.cpu().numpy(), seen, ended)
        for name, vectors in new.kept.items():
            self.vectors[name][nodes] = vectors
        return torch.from_numpy(new.change[MODEL]).to(change.device)

    def _seen(self, nodes: Integers, channels: Vectors) -> Nodes:
        kept = {name: vectors[nodes] for name, vectors in self.vectors.items()}
        return Nodes(samples=self.samples[nodes], channels=channels, kept=kept)


def memory_of(setting: Setting) -> MethodMemory:
    """Return what the method remembers before the first round."""
    method = setting.method
    if method.code == "variate":
        return Flows(setting, method.beta)  # type: ignore[attr-defined]
    return Kept(setting) if method.kept or overrides(method, "trained") else MethodMemory()


EXACT = "without --arrays"
REAL = "real nodes (p2pfl launch, Federation.run)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A federation as arrays. `ends` (m, 2) are its edges, `factor` (m,) their mixing factors at staleness 0."""

    federation: FederationConfig
    world: WorldSpec
    learners: TorchNodes
    grouped: ManyModels
    method: Method
    compressor: Compressor | None
    samples: NDArray[np.float64]
    steps: NDArray[np.int64]
    ends: NDArray[np.int64]
    factor: NDArray[np.float64]
    device: torch.device
    attack: Attack | None
    liars: frozenset[int]

    @property
    def nodes(self) -> int:
        return len(self.samples)

    @property
    def rounds(self) -> int:
        """How many rounds are asked of a node: one at least."""
        return max(1, self.federation.training.rounds or 0)

    @property
    def size(self) -> int:
        """The number of values of the model."""
        return self.learners.prototype.size

    @property
    def initial(self) -> torch.Tensor:
        return torch.from_numpy(self.learners.prototype.initial()).to(self.device)

    def factors(self, ends: NDArray[np.int64], degree: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return gamma min(a_i, a_j) of these edges, where a_i = n_i / (degree_i + 1)."""
        gamma = self.federation.gossip.gamma
        if self.compressor is not None:
            gamma *= self.compressor.gamma(self.size)
        weight = self.samples / (degree + 1)
        return gamma * np.minimum(weight[ends[:, 0]], weight[ends[:, 1]])


def setting_of(
    federation: FederationConfig,
    world: WorldSpec,
    data: Mapping[str, Mapping[str, Any]] | None,
    *,
    clock: str,
    device: str | None,
) -> Setting:
    """Build the setting of a settled world. Raises UserError for what arrays cannot simulate, with what to use."""
    refuse(federation, world, clock)
    where, method = _device(device), method_of(federation)
    attack = None if world.liars is None else parse_attack(world.liars.attack)
    liars = frozenset(world.liars.nodes if world.liars else ())
    learners = load_learners(federation, data, poison=attack.poison if attack else None, liars=liars)
    if not isinstance(learners, TorchNodes) or isinstance(learners.pool, str) or not learners.shareable:
        why = "a torch model without state of its own (no batch-norm), on tensors, with all of it shared; or "
        why += EXACT
        raise UserError("arrays cannot train this task", file=federation.path, key="task", allowed=why)
    grouped = ManyModels(learners, learners.pool, method)
    compressor = make_compressor("none" if federation.hides else federation.gossip.compressor)
    ends = np.array(federation.edges, dtype=np.int64).reshape(-1, 2)
    setting = Setting(
        federation=federation,
        world=world,
        learners=learners,
        grouped=grouped,
        method=method,
        compressor=None if compressor.spec == "none" else compressor,
        samples=np.array(learners.counts, dtype=np.float64),
        steps=np.array([len(grouped.sizes[kind]) for kind in grouped.kinds], dtype=np.int64),
        ends=ends,
        factor=np.zeros(len(ends)),
        device=where,
        attack=attack,
        liars=liars,
    )
    degree = np.bincount(ends.ravel(), minlength=len(learners))
    setting.factor[:] = setting.factors(ends, degree)
    return setting


def refuse(federation: FederationConfig, world: WorldSpec, clock: str) -> None:
    """Raise UserError for the first thing in federation or world that arrays do not simulate."""
    for key, value, allowed in _refused(federation, world, clock):
        file = federation.path if key.partition(".")[0] in OF_FEDERATION else world.path
        raise UserError("arrays cannot simulate this", file=file, key=key, value=value, allowed=allowed)


def _refused(federation: FederationConfig, world: WorldSpec, clock: str) -> list[tuple[str, Any, str]]:
    """Return key, value and what is allowed for each thing that arrays do not simulate."""
    training, links = federation.training, world.links
    faults = {
        "crash": world.crashes,
        "churn": world.churn,
        "join": world.joins,
        "partition": world.partitions,
        "amend": world.amendments,
        "links.bandwidth": links.bandwidth,
        "slow.bandwidth": next((slow.bandwidth for slow in world.slow if slow.bandwidth is not None), None),
        "links.jitter_s": links.jitter_s,
        "links.loss": links.loss,
        "links.drop": links.drop,
        "links.duplication": links.duplication,
        "privacy": federation.privacy,
        "training.time_s": training.time_s,
        "training.stop": training.stop,
        "training.keep_optimizer": training.keep_optimizer,
        "gossip.edge_weights": federation.edge_weights,
        "gossip.edge_compressors": federation.edge_compressors,
    }
    plain = bool | int | float | str
    refused = [(key, value if isinstance(value, plain) else None, EXACT) for key, value in faults.items() if value]
    if not is_simulated(method_of(federation)):
        allowed = f"a method that exchanges the model alone, without terms, or variate; or {EXACT}"
        refused.append(("training.method", federation.method, allowed))
    if training.speed_correction != 1.0:
        refused.append(("training.speed_correction", training.speed_correction, f"1, or {EXACT}"))
    if federation.hides is not None:
        return [*refused, *_refused_in_sums(federation, world, clock)]
    return [*refused, *_refused_robust(federation, world, clock), *_refused_graphs(federation, clock)]


def _refused_in_sums(federation: FederationConfig, world: WorldSpec, clock: str) -> Iterator[tuple[str, Any, str]]:
    if world.liars is not None:
        yield "liars.attack", world.liars.attack, f"no liars where models are hidden; or {REAL}"
    if clock == "in-step":
        yield "clock", clock, "no clock: where models are hidden, all nodes go in step, in virtual time"
    if federation.training.closing == "train":
        yield "training.closing", "train", "mix: where models are hidden, there are no closing rounds"


def _refused_robust(federation: FederationConfig, world: WorldSpec, clock: str) -> Iterator[tuple[str, Any, str]]:
    fragments = isinstance(make_compressor(federation.gossip.compressor), Fragments)
    if clock == "in-step" and not (federation.schedule or fragments or is_directed(federation)):
        clock = ""
    still = f"--clock in-step, on one graph without fragments; or {EXACT}"
    if clock and federation.gossip.rule != "mean":
        yield "gossip.rule", federation.gossip.rule, f"mean; or {still}"
    if world.liars is not None:
        attack = parse_attack(world.liars.attack)
        if clock or attack.flood or attack.refused:
            yield "liars.attack", attack.spec, f"one that shows models, with {still}"
        elif federation.gossip.rule == "mean":
            yield "gossip.rule", "mean", f"a robust rule, where nodes lie; or {EXACT}"


def _refused_graphs(federation: FederationConfig, clock: str) -> Iterator[tuple[str, Any, str]]:
    compressor = make_compressor(federation.gossip.compressor)
    if isinstance(compressor, Fragments) and (clock == "apart" or compressor.inner.spec != "none"):
        yield "gossip.compressor", compressor.spec, f"fragment:N with --clock in-step, one with replicas, or {EXACT}"
    if is_directed(federation):
        if clock == "apart":
            yield "topology", federation.topology, "--clock in-step"
        if compressor.spec != "none":
            yield "gossip.compressor", compressor.spec, "none, where the graph is directed"
        if federation.method.partition(":")[0] == "variate":
            yield "training.method", federation.method, "plain or prox, where the graph is directed"
    elif federation.schedule and clock == "apart":
        yield "topology", federation.topology, "--clock in-step, or " + EXACT
    if clock == "apart" and federation.training.closing == "train":
        yield "training.closing", "train", "--clock in-step, or " + EXACT


def refuse_far(setting: Setting, latency_s: NDArray[np.float64], trains_s: NDArray[np.float64]) -> None:
    """Raise UserError if `p2pfl.core.rounds` would not wait, by patience or budget, in rounds of `trains_s` (n,)."""
    exchange_s = 2 * (latency_s + setting.world.compute.engine_s)
    around: list[list[float]] = [[] for _ in trains_s]
    if exchange_s.max() > LEAST_USUAL_WAIT_S or setting.rounds * np.ptp(exchange_s) > WAIT_BURST_S:
        for node, took_s in zip(setting.ends.ravel().tolist(), np.repeat(exchange_s, 2).tolist(), strict=True):
            around[node].append(took_s)
    for train_s, times_s in zip(trains_s.tolist(), map(sorted, around), strict=True):
        *others, far_s = times_s or [0.0]
        usual_s = PATIENCE_MULTIPLE * median_low(times_s or [0.0])
        most_s = min(setting.federation.gossip.max_wait_s, max(train_s, usual_s, LEAST_USUAL_WAIT_S))
        charged_s = far_s - max(others, default=0.0) - WAIT_SHARE * (train_s + far_s)
        spent = far_s > usual_s + PATIENCE_FLOOR_S and setting.rounds * charged_s > WAIT_BURST_S
        if far_s > most_s or spent:
            text = f"arrays have no patience: some rounds would not wait for an exchange of {far_s:.3g} s"
            raise UserError(text, file=setting.federation.path, key="links.latency_s", allowed=f"less, or {EXACT}")


def is_directed(federation: FederationConfig) -> bool:
    return kind(federation.topology) is GraphKind.DIRECTED


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or "cpu")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        raise UserError("no such device here", key="device", value=name, allowed=", ".join(there)) from None
    return device
