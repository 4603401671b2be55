"""Every attack on one federation, without and with each layer, within a time limit: the table of `p2pfl audit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import MEMBER, PUBLIC, RECORD, PrivacyConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.interface import batch_sizes
from p2pfl.learn.privacy import Plan, plan_of
from p2pfl.learn.privacy.accounting import Spend, epsilon_of
from p2pfl.learn.privacy.gradients import LayerChain
from p2pfl.learn.privacy.noise import Seeded
from p2pfl.reporting.vitals import Vitals
from sim.audits.membership import attack_members, canary, label_changes, name_labels, reuse
from sim.audits.reconstruction import InversionSettings, Rebuilder, Rebuilt
from sim.audits.scene import Observation, Scene, observe_real, observe_simulated

Observe = Callable[[FederationConfig, int], Observation]

DIFFERENCES = "differences"
ATTACKS: Mapping[str, str] = {
    "rank-one": "inputs, exactly, from rounds of one step on one row",
    "inversion": "inputs, by gradient inversion, from rounds of one row and from those that are configured",
    "membership": "which rows were trained on, by likelihood ratio",
    "told": "which figures about private rows a real node reveals besides its model",
    "canary": "whether the noise is what it claims to be, and never the same twice",
    DIFFERENCES: "which labels a node's rows have, by its change, or by sums of hidden models that differ by its group",
}
GONE = ("steps", "restart")
"""Attacks on the mechanism alone, which are with the tests now: `tests/sim/audits/test_planted.py`."""
SUMS = "sums"
"""The attack on secure sums, which is no attack on rows: `sim.audits.sums`."""
NOT_RUN = "no time"
SIMULATOR, LEARNER, REAL = "simulator", "learner", "real nodes"
LISTENED = 2
"""The number of rounds in which the audit records what nodes send."""
HIDDEN_ALONE = "hidden alone"
"""The column of what sums would tell without groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much work an audit does, within `budget_s` in all."""

    budget_s: float = 300.0
    rounds: int = 6
    iterations: int = 200
    shadows: int = 8
    tries: int = 600


QUICK = Effort(budget_s=60.0, rounds=3, iterations=100, tries=300)
LONG = ("membership",)
"""Attacks that a quick audit leaves out unless they are named."""


# -- the findings ------------------------------------------------------------------------------------------------------

Value = float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackRow:
    """One row of the table: an attack's results in a `place`, by layer name."""

    attack: str
    place: str
    unit: str
    values: dict[str, Value]


@dataclass(slots=True, kw_only=True)
class AuditFindings:
    node: str
    samples: int
    layers: list[str]
    rows: list[AttackRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    """Signs that a mechanism that does what it claims would not show."""

    def add(self, attack: str, place: str, unit: str, values: Mapping[str, Value]) -> None:
        """Add figures by layer to the row for that attack, or to a new row."""
        if not values:
            return
        for row in self.rows:
            if (row.attack, row.place, row.unit) == (attack, place, unit):
                row.values.update(values)
                return
        full = {name: values.get(name) for name in self.layers}
        self.rows.append(AttackRow(attack=attack, place=place, unit=unit, values=full))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "samples": self.samples,
            "layers": self.layers,
            "rows": [asdict(row) for row in self.rows],
            "notes": self.notes,
            "mistakes": self.mistakes,
        }


def figures_told(sent: Sequence[object], *, public_test: bool = False) -> list[str]:
    """Return the names of figures in rows of vitals that were computed from private rows without noise, in alphabetical
    order.

    With `public_test` the common test set is nobody's private data, so scores on it are not secret.
    """
    rows = [row for row in sent if isinstance(row, Vitals)]
    names = {"loss of a local round"} if any(row.loss is not None for row in rows) else set[str]()
    if not public_test:
        names |= {"accuracy"} if any(row.accuracy is not None for row in rows) else set()
        names |= {"metrics"} if any(value is not None for row in rows for value in row.metrics) else set()
    return sorted(names)


# -- the defences ------------------------------------------------------------------------------------------------------

EXAMPLE_EPSILON = 8.0
EXAMPLE_DELTA = 1e-5
EXAMPLE_COMPRESSOR = "q4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One defence. `federation` is the copy with only this layer.

    `plan` is the victim's, None if nothing is promised. `missing` says why the layer does not exist here.
    """

    name: str
    federation: FederationConfig
    plan: Plan | None = None
    missing: str = ""
    is_example: bool = False
    """True if the federation promises something else, or nothing."""

    def copy(self, **training: object) -> FederationConfig:
        """Copy the federation with different training, keeping the noise of the victim's whole run."""
        federation = replace(self.federation, training=replace(self.federation.training, **training))  # type: ignore[arg-type]
        privacy = federation.privacy
        if privacy is None or self.plan is None:
            return federation
        return replace(federation, privacy=replace(privacy, epsilon=None, noise=self.plan.noise, rounds=None))


def layers_of(scene: Scene) -> list[Layer]:
    """List the layers: none, compression, and each unit of privacy, as promised or, as an example, at epsilon 8. Where
    models are hidden: gossip, and sums by groups and without.
    """
    plain = replace(scene.federation, gossip=replace(scene.federation.gossip, compressor="none"))
    if scene.hides is not None:
        hidden = Layer(name=f"hidden, {scene.hides.bits} bits", federation=replace(plain, hides=scene.hides))
        alone = replace(hidden, name=HIDDEN_ALONE, missing="if sums could differ by one member; for differences")
        return [Layer(name="gossip", federation=plain), hidden, alone]
    own = scene.federation.gossip.compressor
    compressor = EXAMPLE_COMPRESSOR if own == "none" else own
    squeezed = replace(plain, gossip=replace(plain.gossip, compressor=compressor))
    bare = [Layer(name="no layer", federation=plain), Layer(name=compressor, federation=squeezed)]
    return bare + [_private(scene, plain, unit) for unit in (RECORD, MEMBER)]


def _private(scene: Scene, plain: FederationConfig, unit: str) -> Layer:
    configured = scene.privacy
    samples = len(scene.data[scene.victim].train)
    if configured is None or configured.unit != unit:
        delta = min(EXAMPLE_DELTA, 0.1 / samples)
        clip = 1.0 if configured is None else configured.clip
        privacy = PrivacyConfig(unit=unit, epsilon=EXAMPLE_EPSILON, delta=delta, clip=clip)
    else:
        privacy = configured
    federation, name = replace(plain, privacy=privacy), f"{unit}, {_amount(privacy)}"
    try:
        plan = plan_of(federation, samples)
        scene.learner(federation, scene.victim)
    except UserError as error:
        return Layer(name=name, federation=plain, missing=str(error))
    return Layer(name=name, federation=federation, plan=plan, is_example=privacy is not configured)


def _amount(privacy: PrivacyConfig) -> str:
    return f"noise {privacy.noise:g}" if privacy.epsilon is None else f"epsilon {privacy.epsilon:g}"


# -- the audit ---------------------------------------------------------------------------------------------------------


class Auditor:
    """Runs the attacks. `observe` runs real nodes; a test may have others."""

    def __init__(
        self,
        scene: Scene,
        *,
        attacks: Sequence[str] = tuple(ATTACKS),
        effort: Effort | None = None,
        colluders: int | None = None,
        observe: Observe = observe_real,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.scene, self.attacks, self.effort = scene, attacks, effort or Effort()
        self.observe, self.on_progress, self.colluders = observe, on_progress, colluders
        self.layers = [x for x in layers_of(scene) if x.name != HIDDEN_ALONE or DIFFERENCES in attacks]
        self._began = time.monotonic()
        self.findings = AuditFindings(
            node=scene.name,
            samples=len(scene.data[scene.victim].train),
            layers=[layer.name for layer in self.layers],
            notes=list(scene.notes),
        )
        for layer in self.layers:
            if layer.missing:
                self.findings.note(f"{layer.name}: {layer.missing}")
            elif layer.is_example:
                self.findings.note(f"{layer.name}: an example, the federation does not promise this")
            elif layer.federation.hides is not None:
                text = "attacked is the mean change of the node and one other, the least that a sum tells; simulated"
                self.findings.note(f"{layer.name}: {text}")

    @property
    def left_s(self) -> float:
        return self.effort.budget_s - (time.monotonic() - self._began)

    def run(self) -> AuditFindings:
        """Run the audit. Raises UserError if a layer's settings are wrong, LearningError if the task failed."""
        if "canary" in self.attacks:  # an audit that runs out of time before this says least
            self.try_canary()
        if DIFFERENCES in self.attacks:
            self._name_labels()
        if "told" in self.attacks:
            self._listen()
        if {"rank-one", "inversion"} & set(self.attacks):
            self._rebuild()
        self._measure()
        if "membership" in self.attacks:
            self._ask_for_members()
        if self.left_s <= 0:
            self.findings.note(
                f"the {self.effort.budget_s:g} s ran out before all attacks were tried: try fewer --attacks"
            )
        return self.findings

    # -- what is promised ---------------------------------------------------------------------------------------------

    def try_canary(self) -> None:
        """Use a canary to check how much of a row the noise of each layer lets through, and whether it repeats."""
        for layer in self.layers:
            if layer.plan is None or layer.missing or self.left_s <= 0:
                continue
            self.on_progress(f"canary: {layer.name}")
            plan = layer.plan
            how: dict[str, Any] = {"unit": plan.unit, "clip": plan.clip, "delta": plan.delta}
            how |= {"chain": self._is_chain(layer), "tries": self.effort.tries}
            proof = canary(**how)
            if not proof.holds:  # one failure in twenty is bad luck
                proof = canary(**how | {"tries": 2 * self.effort.tries})
            if not proof.holds:
                text = f"proves epsilon {proof.proven:.3g}, where {proof.claimed:.3g} is claimed"
                self.findings.mistakes.append(f"{layer.name}: of one step at noise 1 the canary {text}")
            alike = reuse(plan.unit, plan.clip)
            if alike.is_reused:
                text = f"{' and '.join(alike.pair)} have the same chance (correlation {alike.correlation:.2f})"
                self.findings.mistakes.append(f"{layer.name}: {text}")
            proven = {layer.name: self._of_the_run(plan, proof.noise_at_most)}
            self.findings.add("epsilon proven by the canary, at least", LEARNER, "", proven)

    def _is_chain(self, layer: Layer) -> bool:
        """True if the victim's per-row gradients are computed layer by layer."""
        private = self.scene.learner(layer.federation, self.scene.victim).private
        ways = None if private is None else private.row_gradients
        return ways is None or isinstance(ways, LayerChain)

    def _of_the_run(self, plan: Plan, noise_at_most: float) -> float:
        """Return the epsilon of the whole run if its noise were no more than the canary allows."""
        if not np.isfinite(noise_at_most):
            return 0.0
        spend = plan.spend(self.findings.samples)
        steps = plan.rounds * (spend.steps if plan.unit == RECORD else 1)
        return epsilon_of((Spend(plan.noise * noise_at_most, spend.rate, steps),), plan.delta, plan.accountant)

    # -- what is rebuilt ----------------------------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """Rebuild rows from a few rounds with one row each: in the simulator, where neighbors answer at once, and with
        real nodes, whose exchanges overlap with their rounds as timing has it.
        """
        rounds, places = self.effort.rounds, {SIMULATOR: self._simulated, REAL: self.observe}
        for place, observe in places.items():
            exact, inverted = dict[str, Rebuilt](), dict[str, Rebuilt]()
            for layer in self.layers:
                if layer.missing or self.left_s <= 0 or (place == REAL and layer.federation.hides):
                    continue
                self.on_progress(f"{place}: {layer.name}")
                copied = layer.copy(rounds=rounds, local_steps=1, local_epochs=None, batch_size=1)
                observed = observe(copied, self.scene.victim)
                rebuilder = self._rebuilder(copied)
                if "rank-one" in self.attacks:
                    exact[layer.name] = rebuilder.exactly(observed, rounds)
                if "inversion" in self.attacks:
                    inverted[layer.name] = rebuilder.by_inversion(observed, rounds)
            self._add_rebuilt("one row a step, rank one", place, exact)
            self._add_rebuilt("one row a step, inversion", place, inverted)

    def _simulated(self, federation: FederationConfig, victim: int) -> Observation:
        return observe_simulated(federation, self.scene.learners(federation, Seeded(federation.seed)), victim)

    def _rebuilder(self, federation: FederationConfig) -> Rebuilder:
        bare = replace(federation, privacy=None)
        settings = InversionSettings(iterations=self.effort.iterations, seed=self.scene.federation.seed)
        return Rebuilder(learner=self.scene.learner(bare, self.scene.victim), federation=bare, settings=settings)

    def _listen(self) -> None:
        """Listen to real nodes that train for the configured rounds."""
        figures: dict[str, Value] = {}
        for layer in self.layers:
            if layer.missing or layer.federation.hides or self.left_s <= 0:
                continue
            self.on_progress(f"what is told: {layer.name}")
            observed = self.observe(layer.copy(rounds=LISTENED, evaluate_every=1), self.scene.victim)
            figures[layer.name] = ", ".join(self._private_figures(observed, layer)) or "nothing"
        self.findings.add("figures told of private rows", REAL, "", figures)

    def _private_figures(self, observed: Observation, layer: Layer) -> list[str]:
        """List the figures about private rows that a node reveals; note a mistake if the layer promises privacy."""
        privacy = layer.federation.privacy
        figures = figures_told(observed.vitals, public_test=privacy is not None and privacy.test_set == PUBLIC)
        if figures and privacy is not None:
            self.findings.mistakes.append(
                f"{layer.name}: a node tells its neighbors {', '.join(figures)} of private rows"
            )
        return figures

    def _add_rebuilt(self, attack: str, place: str, rebuilt: Mapping[str, Rebuilt]) -> None:
        """Add the median PSNR, and the share of rows that are recognizable."""
        if not rebuilt:
            return
        missing = {result.missing for result in rebuilt.values() if result.missing}
        if len(missing) == 1 and all(result.missing for result in rebuilt.values()):
            self.findings.note(f"{attack}: left out, {missing.pop()}")
            return
        least = self._recognizable_db
        self.findings.add(attack, place, "dB", {name: result.psnr_db for name, result in rebuilt.items()})
        shares = {name: result.share(least) for name, result in rebuilt.items()}
        self.findings.add(attack, place, "recognizable", shares)
        self.findings.note(
            f"in brackets: how many were recognizable, {least:.1f} dB or more: 19 of 20 rows of others are farther"
        )

    # -- what a whole run gives ---------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Run each layer once as configured: note the accuracy, and invert its first round."""
        mean, worst, rebuilt, promised = (dict[str, Value]() for _ in range(4))
        for layer in self.layers:
            if layer.plan is not None:
                promised[layer.name] = layer.plan.epsilon
            if layer.missing or self.left_s <= 0:
                continue
            self.on_progress(f"as configured: {layer.name}")
            learners = self.scene.learners(layer.federation, Seeded(self.scene.federation.seed))
            try:
                observed = observe_simulated(layer.federation, learners, self.scene.victim)
            except LearningError as error:
                self.findings.note(f"{layer.name}: {error}")
                continue
            scores = [learner.evaluate(model, "test") for learner, model in zip(learners, observed.models, strict=True)]
            values = [score.accuracy for score in scores if score is not None and score.accuracy is not None]
            if values:
                mean[layer.name], worst[layer.name] = sum(values) / len(values), min(values)
            if "inversion" in self.attacks:
                rebuilder = self._rebuilder(layer.federation)
                sizes = batch_sizes(layer.federation.training, self.findings.samples)
                inverted = rebuilder.by_inversion(observed, 1, rows=sizes[0], steps=len(sizes))
                rebuilt[layer.name] = inverted.psnr_db
        if any(value is not None for value in rebuilt.values()):
            self.findings.add("as configured, inversion of the first round", SIMULATOR, "dB", rebuilt)
        self.findings.add("epsilon promised", "", "", promised)
        self.findings.add("accuracy, mean", SIMULATOR, "", mean)
        self.findings.add("accuracy, worst node", SIMULATOR, "", worst)

    @cached_property
    def _recognizable_db(self) -> float:
        others = [self.scene.data[index].train for index in range(len(self.scene.data)) if index != self.scene.victim]
        inputs = np.concatenate([np.asarray(samples.rows(torch.arange(len(samples)))[0]) for samples in others])
        return self._rebuilder(self.layers[0].federation).recognizable_db(inputs)

    def _name_labels(self) -> None:
        """Name labels by a node's own change in gossip, and by what groups of hidden models add to sums."""
        about, groups = "labels by differences", self.scene.groups
        for layer in self.layers:
            if layer.missing or self.left_s <= 0:
                continue
            self.on_progress(f"{about}: {layer.name}")
            copied, whole = layer.copy(rounds=self.effort.rounds), self.scene.whole
            if copied.hides is None:
                seen = label_changes(self.scene, copied)
            elif whole is None:
                seen = "not all members' data are on this machine"
            else:
                copied = replace(whole.federation, hides=copied.hides, training=copied.training)
                seen = label_changes(whole, copied, limit_s=self.left_s / 2)
            if isinstance(seen, str):
                self.findings.note(f"{about}, {layer.name}: left out, {seen}")
            elif copied.hides is None:
                self._add_labels(layer.name, name_labels(*seen, [{0}]))
            else:
                count = self.colluders or copied.hides.colluders
                self._add_labels(layer.name, name_labels(*seen, groups))
                self._add_labels(HIDDEN_ALONE, name_labels(*seen, [{member} for member in range(len(seen[1]))]))
                self._add_labels(layer.name, name_labels(*seen, groups, colluders=count), f", {count} colluding")
                text = (
                    "of sums of all members that differ by a group; colluding: its colluders take out their own parts"
                )
                self.findings.note(f"{about}: {text}")

    def _add_labels(self, layer: str, aucs: Mapping[str, float], how: str = "") -> None:
        for name, auc in aucs.items():
            self.findings.add(f"labels by {name}{how}, AUC", SIMULATOR, "", {layer: auc})

    def _ask_for_members(self) -> None:
        aucs, rates = dict[str, Value](), dict[str, Value]()
        todo = [layer for layer in self.layers if not layer.missing]
        for number, layer in enumerate(todo):
            limit_s = self.left_s / (len(todo) - number)
            outcome = (
                NOT_RUN
                if limit_s <= 0
                else attack_members(
                    self.scene,
                    layer.federation,
                    shadows=self.effort.shadows,
                    seed=self.scene.federation.seed,
                    limit_s=limit_s,
                    on_shadow=lambda count, name=layer.name: self.on_progress(f"membership: {name}, copy {count}"),  # type: ignore[misc]
                )
            )
            if isinstance(outcome, str):
                aucs[layer.name] = rates[layer.name] = NOT_RUN
                self.findings.note(f"membership, {layer.name}: {outcome}")
                continue
            aucs[layer.name], rates[layer.name] = outcome.auc, outcome.tpr
        self.findings.add("membership, AUC (0.5 is a guess)", SIMULATOR, "", aucs)
        self.findings.add("membership, found where 1% are wronged", SIMULATOR, "", rates)
