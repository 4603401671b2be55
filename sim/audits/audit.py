"""Every attack on one federation, without and with each layer, within a time: the table of `p2pfl audit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from p2pfl.config.model import FederationConfig
from p2pfl.config.privacy import PUBLIC, RECORD
from p2pfl.errors import LearningError
from p2pfl.learn.privacy.accounting import Spend, epsilon_of
from p2pfl.learn.privacy.chance import Seeded
from p2pfl.learn.samples import batch_sizes
from sim.audits.canary import Canary, canary, reuse
from sim.audits.inversion import Settings
from sim.audits.layers import Layer, layers_of
from sim.audits.observation import Observation
from sim.audits.reconstruction import Guess, Rebuilder, Rebuilt
from sim.audits.scene import Scene
from sim.audits.shadows import attack_members
from sim.audits.simulated import observe_simulated
from sim.audits.told import figures_told

Value = float | str | None
ObserveReal = Callable[[FederationConfig, int], Observation]

ATTACKS: Mapping[str, str] = {
    "rank-one": "inputs, exactly, from rounds of one step on one row",
    "inversion": "inputs, by gradient inversion, from rounds of one row and from those that are configured",
    "membership": "which rows were trained on, by likelihood ratio",
    "told": "which figures of private rows a real node tells beside its model",
    "canary": "whether the noise is what it claims to be, and never the same twice",
}
NOT_RUN = "no time"
SIMULATOR, REAL = "simulator", "real nodes"
LISTENED = 2
"""Rounds in which it is heard what nodes tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried, within `budget_s` for all together."""

    budget_s: float = 300.0
    rounds: int = 6
    iterations: int = 200
    shadows: int = 8
    tries: int = 600


QUICK = Effort(budget_s=60.0, rounds=3, iterations=100, tries=300)
LONG = ("membership",)
"""Attacks that a quick audit leaves out unless they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what an attack, carried out in a `place`, found against each layer, by its name."""

    attack: str
    place: str
    unit: str
    values: dict[str, Value]


@dataclass(slots=True, kw_only=True)
class Audit:
    """What was found. `guesses` are those by inversion of what a real node has sent, by layer, for the picture."""

    node: str
    samples: int
    layers: list[str]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    """What a mechanism that does what it claims would not have shown."""
    guesses: dict[str, tuple[Guess, ...]] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "samples": self.samples,
            "layers": self.layers,
            "rows": [asdict(row) for row in self.rows],
            "notes": self.notes,
            "mistakes": self.mistakes,
            "seconds": round(self.seconds, 1),
        }


class Auditor:
    """`observe_real` runs real nodes; None: only the simulator is asked."""

    def __init__(
        self,
        scene: Scene,
        *,
        attacks: Sequence[str] = tuple(ATTACKS),
        effort: Effort | None = None,
        observe_real: ObserveReal | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.scene, self.attacks, self.effort = scene, attacks, effort or Effort()
        self.observe_real, self.on_progress = observe_real, on_progress
        self.layers = layers_of(scene)
        self._began = time.monotonic()
        self.found = Audit(
            node=scene.name,
            samples=len(scene.data[scene.victim].train),
            layers=[layer.name for layer in self.layers],
            notes=list(scene.notes),
        )
        for layer in self.layers:
            if layer.missing:
                self._note(f"{layer.name}: {layer.missing}")
            elif layer.is_example:
                self._note(f"{layer.name}: an example, the federation does not promise this")

    @property
    def left_s(self) -> float:
        return self.effort.budget_s - (time.monotonic() - self._began)

    def run(self) -> Audit:
        """Raises UserError: a layer's settings are wrong; LearningError: the task failed."""
        if {"rank-one", "inversion"} & set(self.attacks):
            self._rebuild()
        if "told" in self.attacks and self.observe_real is not None:
            self._listen(self.observe_real)
        if "canary" in self.attacks:
            self._try_noise()
        self._measure()
        if "membership" in self.attacks:
            self._ask_for_members()
        if self.left_s <= 0:
            self._note(f"the {self.effort.budget_s:g} s were over before all was tried: --budget-s, or fewer --attacks")
        self.found.seconds = time.monotonic() - self._began
        return self.found

    # -- what is rebuilt ----------------------------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """From a few rounds of one row each, in the simulator and by real nodes."""
        rounds, places = self.effort.rounds, {SIMULATOR: self._simulated}
        if self.observe_real is not None:
            places[REAL] = self._real
        for place, observe in places.items():
            exact, inverted = dict[str, Rebuilt](), dict[str, Rebuilt]()
            for layer in self.layers:
                if layer.missing or self.left_s <= 0:
                    continue
                self.on_progress(f"{place}: {layer.name}")
                copied = layer.copy(rounds=rounds, local_steps=1, local_epochs=None, batch_size=1)
                observed = observe(copied)
                rebuilder = self._rebuilder(copied)
                if "rank-one" in self.attacks:
                    exact[layer.name] = rebuilder.exactly(observed, rounds)
                if "inversion" in self.attacks:
                    inverted[layer.name] = rebuilder.by_inversion(observed, rounds)
            self._add_rebuilt("one row a step, rank one", place, exact)
            self._add_rebuilt("one row a step, inversion", place, inverted)
            if inverted:
                self.found.guesses = {name: one.guesses for name, one in inverted.items()}

    def _rebuilder(self, federation: FederationConfig) -> Rebuilder:
        bare = replace(federation, privacy=None)
        settings = Settings(iterations=self.effort.iterations, seed=self.scene.federation.seed)
        return Rebuilder(learner=self.scene.learner(bare, self.scene.victim), federation=bare, settings=settings)

    def _simulated(self, federation: FederationConfig) -> Observation:
        chance = Seeded(federation.seed)
        return observe_simulated(federation, self.scene.learners(federation, chance), self.scene.victim)

    def _real(self, federation: FederationConfig) -> Observation:
        if self.observe_real is None:
            raise AssertionError("no real nodes were asked for")
        return self.observe_real(federation, self.scene.victim)

    def _listen(self, observe_real: ObserveReal) -> None:
        """To real nodes in rounds as configured."""
        told: dict[str, Value] = {}
        for layer in self.layers:
            if layer.missing or self.left_s <= 0:
                continue
            self.on_progress(f"what is told: {layer.name}")
            observed = observe_real(layer.copy(rounds=LISTENED, evaluate_every=1), self.scene.victim)
            told[layer.name] = ", ".join(self._private_figures(observed, layer)) or "nothing"
        self._add("figures told of private rows", REAL, "", told)

    def _private_figures(self, observed: Observation, layer: Layer) -> list[str]:
        """What may not be told; where nothing is promised, what is told."""
        privacy = layer.federation.privacy
        told = figures_told(observed.told, public_test=privacy is not None and privacy.test_set == PUBLIC)
        if told and privacy is not None:
            self.found.mistakes.append(f"{layer.name}: a node tells its neighbors {', '.join(told)} of private rows")
        return told

    def _add_rebuilt(self, attack: str, place: str, found: Mapping[str, Rebuilt]) -> None:
        """The median of PSNR, and the share that can be recognized."""
        if not found:
            return
        missing = {one.missing for one in found.values() if one.missing}
        if len(missing) == 1 and all(one.missing for one in found.values()):
            self._note(f"{attack}: left out, {missing.pop()}")
            return
        least = self._recognizable_db
        self._add(attack, place, "dB", {name: one.psnr_db for name, one in found.items()})
        self._add(attack, place, "recognizable", {name: one.share(least) for name, one in found.items()})
        self._note(
            f"in brackets: how many were recognizable, {least:.1f} dB or more: 19 of 20 rows of others are farther"
        )

    # -- what a whole run gives ---------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """One run of each layer as configured: accuracy, and the inversion of its first round."""
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
                self._note(f"{layer.name}: {error}")
                continue
            scores = [learner.evaluate(model, "test") for learner, model in zip(learners, observed.models, strict=True)]
            values = [one.accuracy for one in scores if one is not None and one.accuracy is not None]
            if values:
                mean[layer.name], worst[layer.name] = sum(values) / len(values), min(values)
            if "inversion" in self.attacks:
                rebuilder = self._rebuilder(layer.federation)
                sizes = batch_sizes(layer.federation.training, self.found.samples)
                found = rebuilder.by_inversion(observed, 1, rows=sizes[0], steps=len(sizes))
                rebuilt[layer.name] = found.psnr_db
        if any(value is not None for value in rebuilt.values()):
            self._add("as configured, inversion of the first round", SIMULATOR, "dB", rebuilt)
        self._add("epsilon promised", "", "", promised)
        self._add("accuracy, mean", SIMULATOR, "", mean)
        self._add("accuracy, worst node", SIMULATOR, "", worst)

    @cached_property
    def _recognizable_db(self) -> float:
        others = [self.scene.data[index].train for index in range(len(self.scene.data)) if index != self.scene.victim]
        inputs = np.concatenate([np.asarray(one.rows(torch.arange(len(one)))[0]) for one in others])
        return self._rebuilder(self.layers[0].federation).recognizable_db(inputs)

    def _ask_for_members(self) -> None:
        aucs, rates = dict[str, Value](), dict[str, Value]()
        todo = [layer for layer in self.layers if not layer.missing]
        for number, layer in enumerate(todo):
            limit_s = self.left_s / (len(todo) - number)
            found = (
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
            if isinstance(found, str):
                aucs[layer.name] = rates[layer.name] = NOT_RUN
                self._note(f"membership, {layer.name}: {found}")
                continue
            aucs[layer.name], rates[layer.name] = found.auc, found.tpr
        self._add("membership, AUC (0.5 is a guess)", SIMULATOR, "", aucs)
        self._add("membership, found where 1% are wronged", SIMULATOR, "", rates)

    # -- the noise ----------------------------------------------------------------------------------------------------

    def _try_noise(self) -> None:
        proven: dict[str, Value] = {}
        for layer in self.layers:
            plan = layer.plan
            if plan is None or self.left_s <= 0:
                continue
            self.on_progress(f"canary: {layer.name}")
            how: dict[str, Any] = {"unit": plan.unit, "clip": plan.clip}
            tried: dict[str, Any] = how | {"delta": plan.delta, "chain": self._is_chain(layer)}
            found = canary(**tried, tries=self.effort.tries)
            if not found.holds:  # one in twenty may be bad luck
                found = canary(**tried, tries=2 * self.effort.tries)
            proven[layer.name] = self._of_the_run(layer, found)
            if not found.holds:
                self.found.mistakes.append(
                    f"{layer.name}: of one step at noise 1 the canary proves epsilon {found.proven:.3g}, where "
                    f"{found.claimed:.3g} is claimed"
                )
            again = reuse(**how)
            if again.is_reused:
                pair, correlation = " and ".join(again.pair), again.correlation
                self.found.mistakes.append(f"{layer.name}: {pair} have the same noise (correlation {correlation:.2f})")
        self._add("epsilon proven by the canary, at least", "learner", "", proven)

    def _is_chain(self, layer: Layer) -> bool:
        """Whether the victim's gradients of rows are computed layer by layer."""
        ways = getattr(self.scene.learner(layer.federation, self.scene.victim), "_row_gradients", None)
        return ways is None or getattr(ways, "how", "") == "layer by layer"

    def _of_the_run(self, layer: Layer, found: Canary) -> Value:
        """Of the whole run, if its noise too were what the canary allows at most."""
        plan = layer.plan
        if plan is None or not np.isfinite(found.noise_at_most):
            return 0.0
        spend = plan.spend(self.found.samples)
        steps = plan.rounds * (spend.steps if plan.unit == RECORD else 1)
        return epsilon_of((Spend(plan.noise * found.noise_at_most, spend.rate, steps),), plan.delta, plan.accountant)

    # -- the table ----------------------------------------------------------------------------------------------------

    def _add(self, attack: str, place: str, unit: str, values: Mapping[str, Value]) -> None:
        if values:
            full = {layer.name: values.get(layer.name) for layer in self.layers}
            self.found.rows.append(Row(attack=attack, place=place, unit=unit, values=full))

    def _note(self, text: str) -> None:
        if text not in self.found.notes:
            self.found.notes.append(text)
