"""The defences that an audit compares: none, lossy compression, and each unit of privacy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import UNITS, PrivacyConfig
from p2pfl.errors import UserError
from p2pfl.learn.privacy import Plan, plan_of
from sim.audits.scene import Scene

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
    """List the layers: none, compression, and each unit of privacy, as the federation promises it or, as an example, at
    epsilon 8.
    """
    plain = replace(scene.federation, gossip=replace(scene.federation.gossip, compressor="none"))
    own = scene.federation.gossip.compressor
    compressor = EXAMPLE_COMPRESSOR if own == "none" else own
    squeezed = replace(plain, gossip=replace(plain.gossip, compressor=compressor))
    bare = [Layer(name="no layer", federation=plain), Layer(name=compressor, federation=squeezed)]
    return bare + [_private(scene, plain, unit) for unit in UNITS]


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
