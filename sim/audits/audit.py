"""Every attack on one federation, without and with each layer, within a time limit: the table of `p2pfl audit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import PUBLIC
from p2pfl.errors import LearningError
from p2pfl.learn.batches import batch_sizes
from p2pfl.learn.privacy.draws import Seeded
from sim.audits.claims import REAL, AuditClaims, Live
from sim.audits.found import AuditFound, Value
from sim.audits.inversion import InversionSettings
from sim.audits.layers import Layer, layers_of
from sim.audits.observation import Observation
from sim.audits.reconstruction import Rebuilder, Rebuilt
from sim.audits.scene import Scene
from sim.audits.shadows import attack_members
from sim.audits.simulated import observe_simulated
from sim.audits.told import figures_told

ObserveReal = Callable[[FederationConfig, int], Observation]

ATTACKS: Mapping[str, str] = {
    "rank-one": "inputs, exactly, from rounds of one step on one row",
    "inversion": "inputs, by gradient inversion, from rounds of one row and from those that are configured",
    "membership": "which rows were trained on, by likelihood ratio",
    "told": "which figures about private rows a real node reveals besides its model",
    "canary": "whether the noise is what it claims to be, never the same twice, and hides the last bits too",
    "steps": "whether steps draw rows, clip them, add noise and are paid for as promised, measured from outside",
    "restart": "whether noise repeats, and every step is paid for, when real nodes are killed and restarted",
}
SUMS = "sums"
"""The attack on secure sums, which is no attack on rows: `sim.audits.sums`."""
NOT_RUN = "no time"
SIMULATOR = "simulator"
LISTENED = 2
"""The number of rounds in which the audit records what nodes send."""


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


class Auditor:
    """Runs the attacks. `observe_real` runs real nodes, and `live` also kills them; if they are None, only the
    simulator is used.
    """

    def __init__(
        self,
        scene: Scene,
        *,
        attacks: Sequence[str] = tuple(ATTACKS),
        effort: Effort | None = None,
        observe_real: ObserveReal | None = None,
        live: Live | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.scene, self.attacks, self.effort = scene, attacks, effort or Effort()
        self.observe_real, self.live, self.on_progress = observe_real, live, on_progress
        self.layers = layers_of(scene)
        self._began = time.monotonic()
        self.found = AuditFound(
            node=scene.name,
            samples=len(scene.data[scene.victim].train),
            layers=[layer.name for layer in self.layers],
            notes=list(scene.notes),
        )
        for layer in self.layers:
            if layer.missing:
                self.found.note(f"{layer.name}: {layer.missing}")
            elif layer.is_example:
                self.found.note(f"{layer.name}: an example, the federation does not promise this")

    @property
    def left_s(self) -> float:
        return self.effort.budget_s - (time.monotonic() - self._began)

    def run(self) -> AuditFound:
        """Run the audit. Raises UserError if a layer's settings are wrong, LearningError if the task failed."""
        self._try_claims()
        if "told" in self.attacks and self.observe_real is not None:
            self._listen(self.observe_real)
        if {"rank-one", "inversion"} & set(self.attacks):
            self._rebuild()
        self._measure()
        if "membership" in self.attacks:
            self._ask_for_members()
        if self.left_s <= 0:
            self.found.note(
                f"the {self.effort.budget_s:g} s ran out before all attacks were tried: --budget-s, or fewer --attacks"
            )
        self.found.seconds = time.monotonic() - self._began
        return self.found

    def _try_claims(self) -> None:
        """Check the claims first: an audit that runs out of time before this says least."""
        claims = AuditClaims(scene=self.scene, found=self.found, tries=self.effort.tries, on_progress=self.on_progress)
        for layer in self.layers:
            if layer.plan is None or layer.missing:
                continue
            for name, tried in (("canary", claims.canary), ("steps", claims.steps)):
                if name in self.attacks and self.left_s > 0:
                    tried(layer, layer.plan)
            if "restart" in self.attacks and self.live is not None and self.left_s > 0:
                claims.restart(layer, layer.plan, self.live)

    # -- what is rebuilt ----------------------------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """Rebuild rows from a few rounds with one row each, in the simulator and with real nodes."""
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
        settings = InversionSettings(iterations=self.effort.iterations, seed=self.scene.federation.seed)
        return Rebuilder(learner=self.scene.learner(bare, self.scene.victim), federation=bare, settings=settings)

    def _simulated(self, federation: FederationConfig) -> Observation:
        chance = Seeded(federation.seed)
        return observe_simulated(federation, self.scene.learners(federation, chance), self.scene.victim)

    def _real(self, federation: FederationConfig) -> Observation:
        if self.observe_real is None:
            raise AssertionError("real nodes were not requested")
        return self.observe_real(federation, self.scene.victim)

    def _listen(self, observe_real: ObserveReal) -> None:
        """Listen to real nodes that train for the configured rounds."""
        figures: dict[str, Value] = {}
        for layer in self.layers:
            if layer.missing or self.left_s <= 0:
                continue
            self.on_progress(f"what is told: {layer.name}")
            observed = observe_real(layer.copy(rounds=LISTENED, evaluate_every=1), self.scene.victim)
            figures[layer.name] = ", ".join(self._private_figures(observed, layer)) or "nothing"
        self.found.add("figures told of private rows", REAL, "", figures)

    def _private_figures(self, observed: Observation, layer: Layer) -> list[str]:
        """List the figures about private rows that a node reveals; note a mistake if the layer promises privacy."""
        privacy = layer.federation.privacy
        figures = figures_told(observed.vitals, public_test=privacy is not None and privacy.test_set == PUBLIC)
        if figures and privacy is not None:
            self.found.mistakes.append(f"{layer.name}: a node tells its neighbors {', '.join(figures)} of private rows")
        return figures

    def _add_rebuilt(self, attack: str, place: str, rebuilt: Mapping[str, Rebuilt]) -> None:
        """Add the median PSNR, and the share of rows that are recognizable."""
        if not rebuilt:
            return
        missing = {one.missing for one in rebuilt.values() if one.missing}
        if len(missing) == 1 and all(one.missing for one in rebuilt.values()):
            self.found.note(f"{attack}: left out, {missing.pop()}")
            return
        least = self._recognizable_db
        self.found.add(attack, place, "dB", {name: one.psnr_db for name, one in rebuilt.items()})
        self.found.add(attack, place, "recognizable", {name: one.share(least) for name, one in rebuilt.items()})
        self.found.note(
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
                self.found.note(f"{layer.name}: {error}")
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
            self.found.add("as configured, inversion of the first round", SIMULATOR, "dB", rebuilt)
        self.found.add("epsilon promised", "", "", promised)
        self.found.add("accuracy, mean", SIMULATOR, "", mean)
        self.found.add("accuracy, worst node", SIMULATOR, "", worst)

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
                self.found.note(f"membership, {layer.name}: {found}")
                continue
            aucs[layer.name], rates[layer.name] = found.auc, found.tpr
        self.found.add("membership, AUC (0.5 is a guess)", SIMULATOR, "", aucs)
        self.found.add("membership, found where 1% are wronged", SIMULATOR, "", rates)
