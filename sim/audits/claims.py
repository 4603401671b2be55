"""Audit the claims of `[privacy]`: does each layer that promises something keep its promise?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from p2pfl.config.sections import RECORD
from p2pfl.learn.privacy import Plan
from p2pfl.learn.privacy.accounting import Spend, epsilon_of
from sim.audits.canary import Canary, Reuse, canary, reuse
from sim.audits.layers import Layer
from sim.audits.low_bits import low_bits
from sim.audits.mechanism import Subject, checks
from sim.audits.scene import Scene

if TYPE_CHECKING:
    from sim.audits.found import AuditFound
    from sim.audits.killed_nodes import KilledLives

Live: TypeAlias = "Callable[[str, float], KilledLives]"
"""Runs real nodes that are killed and restarted, for a unit and a clip."""
LEARNER, REAL = "learner", "real nodes"


@dataclass(slots=True, kw_only=True)
class AuditClaims:
    """Checks the claims for the victim of `scene` and adds the results to `found`; `tries` is how often the canary is
    sent.
    """

    scene: Scene
    found: AuditFound
    tries: int
    on_progress: Callable[[str], None]
    _lived: set[str] = field(default_factory=set)

    def canary(self, layer: Layer, plan: Plan) -> None:
        """Use a canary to check how much of a row the noise lets through, also in its last bits, and whether the noise
        repeats.
        """
        self.on_progress(f"canary: {layer.name}")
        how: dict[str, Any] = {"unit": plan.unit, "clip": plan.clip}
        tried: dict[str, Any] = how | {"delta": plan.delta, "chain": self._is_chain(layer)}
        noise = self._check_twice(layer, lambda more: canary(**tried, tries=more * self.tries), "the canary proves")
        self._check_twice(layer, lambda more: low_bits(**tried, tries=more * self.tries // 6), "its last bits prove")
        proven = {layer.name: self._of_the_run(plan, noise)}
        self.found.add("epsilon proven by the canary, at least", LEARNER, "", proven)
        self._refuse_reuse(layer, reuse(**how))

    def _check_twice(self, layer: Layer, attempt: Callable[[int], Canary], what: str) -> Canary:
        """Repeat a failed check once and use the second result: one failure in twenty may be bad luck."""
        found = attempt(1)
        if not found.holds:
            found = attempt(2)
        if not found.holds:
            text = f"of one step at noise 1 {what} epsilon {found.proven:.3g}, where {found.claimed:.3g} is claimed"
            self.found.mistakes.append(f"{layer.name}: {text}")
        return found

    def steps(self, layer: Layer, plan: Plan) -> None:
        """Check the learner's steps by the models that result."""
        rows: tuple[Any, Any] = self.scene.rows()  # of some tasks, dictionaries of tensors
        inputs, targets = rows
        if not (isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor)):
            self.found.note("steps: left out, they are measured where inputs and targets are tensors")
            return
        self.on_progress(f"steps: {layer.name}")
        subject = Subject(task=self.scene.task, rows=(inputs, targets), samples=len(targets), plan=plan)
        for check in checks(subject):
            self.found.add(check.name, LEARNER, "", {layer.name: check.value})
            if check.mistake:
                self.found.mistakes.append(f"{layer.name}: {check.mistake}")

    def restart(self, layer: Layer, plan: Plan, live: Live) -> None:
        """Check real nodes that are killed and restarted; a layer that is only an example is checked only if no other
        was.
        """
        if plan.unit in self._lived or (layer.is_example and self._lived):
            return
        self._lived.add(plan.unit)
        self.on_progress(f"killed and started again: {layer.name}")
        found = live(plan.unit, plan.clip)
        self._refuse_reuse(layer, found.reuse)
        if found.paid < found.trained:
            text = f"a real node has taken {found.trained} steps, and its ledger has {found.paid}"
            self.found.mistakes.append(f"{layer.name}: {text}")
        alike = {layer.name: found.reuse.correlation}
        self.found.add("chance after a restart, correlation with that before", REAL, "", alike)

    def _refuse_reuse(self, layer: Layer, reuse: Reuse) -> None:
        if reuse.is_reused:
            text = f"{' and '.join(reuse.pair)} have the same chance (correlation {reuse.correlation:.2f})"
            self.found.mistakes.append(f"{layer.name}: {text}")

    def _is_chain(self, layer: Layer) -> bool:
        """True if the victim's per-row gradients are computed layer by layer."""
        private = self.scene.learner(layer.federation, self.scene.victim).private
        ways = None if private is None else private.row_gradients
        return ways is None or ways.how == "layer by layer"

    def _of_the_run(self, plan: Plan, canary: Canary) -> float:
        """Return the epsilon of the whole run if its noise were no more than the canary allows."""
        if not np.isfinite(canary.noise_at_most):
            return 0.0
        spend = plan.spend(len(self.scene.data[self.scene.victim].train))
        steps = plan.rounds * (spend.steps if plan.unit == RECORD else 1)
        return epsilon_of((Spend(plan.noise * canary.noise_at_most, spend.rate, steps),), plan.delta, plan.accountant)
