"""A simulator job: its federation, its world, and the run itself, in whichever process runs it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from p2pfl.config.model import FederationConfig, GossipConfig, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.partition import parse_partition
from p2pfl.reporting.report import Report
from sim.federations import describe, own_tables
from sim.privacy import refuse_broken
from sim.sweeps.fingerprint import identify
from sim.sweeps.model import EXCLUSIVE, NONE, Job, Options
from sim.worlds.check import check_world
from sim.worlds.model import LiarSpec, WorldSpec
from sim.worlds.world import read_world

DESCRIBED = ("nodes", "topology", "rounds", "partition", "rule", "compressor", "privacy")
"""Options that shape the whole federation; each of the others replaces a single setting."""


def build(job: Job) -> tuple[FederationConfig, WorldSpec]:
    """Build and check everything that a run needs. Raises UserError if the run is impossible."""
    options = job.options
    if "clock" in options and not options.get("arrays"):
        raise UserError("is for arrays alone", key="clock", value=options["clock"], allowed="with arrays = true")
    if "partition" in options:
        parse_partition(options["partition"])
    try:
        federation = _with_settings(_described(options, job.seed), options)
        world = _world(options, federation)
        if options.get("arrays"):
            from sim.arrays.setting import refuse  # noqa: PLC0415 - checking other sweeps takes no torch

            refuse(federation, world, options.get("clock", "apart"))
    except UserError as error:
        # a sweep has no command-line options, but the same names
        error.key = error.key and error.key.removeprefix("--")
        raise
    return federation, world


def run(job: Job) -> Report:
    """Run a job and return its report.

    References are omitted unless the sweep asks for them: they cost more than the run itself, and no sweep table shows
    them. Raises UserError if files or software, here or on another machine, differ from those with which the sweep
    began.
    """
    if (found := identify(job.options, job.seed)) != job.identity:
        different = ", ".join(sorted(name for name in found if found[name] != job.identity.get(name)))
        text = f"not what the sweep began with: {different}"
        raise UserError(text, allowed="the same files and software on every machine, until the sweep ends")
    import torch  # noqa: PLC0415 - checking a sweep takes no torch

    from sim.simulation import simulate  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    federation, world = build(job)
    how = {"arrays": job.options.get("arrays", False), "clock": job.options.get("clock")}
    wanted = job.options.get("references", False) and not how["arrays"]
    data = None if job.options.get("base", NONE) == NONE else own_tables(federation)
    how |= {"references": wanted, "alone": wanted}
    return simulate(federation, world=world, data=data, on_progress=lambda _: None, **how)


def _described(options: Options, seed: int) -> FederationConfig:
    base = options.get("base", NONE)
    given = {name: options[name] for name in DESCRIBED if name in options}
    return describe(file=None if base == NONE else Path(base), seed=seed, **given)


def _with_settings(federation: FederationConfig, options: Options) -> FederationConfig:
    """Apply the settings; setting one of an exclusive pair turns off the other."""
    training = {field.name: options[field.name] for field in fields(TrainingConfig) if field.name in options}
    gossip = {field.name: options[field.name] for field in fields(GossipConfig) if field.name in options}
    for pair in EXCLUSIVE:
        for one, other in (pair, pair[::-1]):
            if one in options:
                training[other] = None
    training_config, gossip_config = replace(federation.training, **training), replace(federation.gossip, **gossip)
    return refuse_broken(replace(federation, training=training_config, gossip=gossip_config))


def _world(options: Options, federation: FederationConfig) -> WorldSpec:
    path = options.get("world", NONE)
    world = WorldSpec() if path == NONE else read_world(path, federation)
    world = replace(world, liars=_liars(options, world.liars))
    for mistake in check_world(world, len(federation.members)):
        raise mistake
    return world


def _liars(options: Options, of_the_world: LiarSpec | None) -> LiarSpec | None:
    """Return the liars. Options override the world file; liars that do not lie count as none."""
    if options.get("byzantine") == 0 or options.get("attack") == NONE:
        return None
    if "byzantine" in options:
        attack = options.get("attack") or (of_the_world and of_the_world.attack)
        if not attack:
            raise UserError(
                "liars with no attack", key="attack", allowed="an attack, as sign-flip, in [sweep] or [axes]"
            )
        return LiarSpec(attack=attack, count=options["byzantine"])
    if "attack" in options:
        if of_the_world is None:
            text = "an attack without liars"
            raise UserError(text, key="byzantine", allowed="a number in [sweep] or [axes], or [liars] in the world")
        return replace(of_the_world, attack=options["attack"])
    return of_the_world
