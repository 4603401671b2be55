"""Turn options into a federation and its world. A mistake is named after the option that made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from p2pfl.config.model import FederationConfig
from p2pfl.errors import UserError
from p2pfl.learn.partition import parse_partition
from p2pfl.methods.spelling import allowed as allowed_methods
from p2pfl.methods.spelling import from_here
from p2pfl.specs import Kind
from sim.attacks import ALLOWED_ATTACKS, make_attack, with_absolute_path
from sim.federations import describe
from sim.privacy import KEY
from sim.worlds.check import check_world
from sim.worlds.model import RUN, LiarSpec, WorldSpec
from sim.worlds.world import read_world

RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command's options; None if an option was not given."""

    file: Path | None = None
    nodes: int | None = None
    topology: str | None = None
    rounds: int | None = None
    partition: str | None = None
    rule: str | None = None
    compressor: str | None = None
    method: str | None = None
    privacy: str | None = None
    byzantine: int | None = None
    attack: str | None = None
    world: str | None = None
    seed: int | None = None
    limit_s: float | None = None
    evaluate_every_s: float | None = None


def build(options: Options, *, directed: bool = False) -> tuple[FederationConfig, WorldSpec]:
    """Build what to simulate; `directed` lets a directed graph pass.

    Raises UserError for a wrong option or file, DisconnectedGraph if the graph is not connected.
    """
    if options.world == RANDOM and not Path(RANDOM).exists():
        allowed = "a file; `python tests/faults/many_worlds.py` of a checkout draws worlds"
        raise UserError("random worlds are gone", key="--world", value=RANDOM, allowed=allowed)
    federation = _describe(options, directed=directed)
    world = WorldSpec() if options.world is None else read_world(options.world, federation)
    world = replace(world, liars=_liars(options, world.liars, len(federation.members)))
    world = _with_times(options, world)
    for mistake in check_world(world, len(federation.members)):
        raise mistake
    return federation, world


def _with_times(options: Options, world: WorldSpec) -> WorldSpec:
    for name in ("limit_s", "evaluate_every_s"):
        value = getattr(options, name)
        if value is not None:
            with _naming_option("--" + name.replace("_", "-")):
                _check_time(value, RUN[name])
    limit_s, every_s = options.limit_s or world.limit_s, options.evaluate_every_s or world.evaluate_every_s
    return replace(world, limit_s=limit_s, evaluate_every_s=every_s)


def _check_time(value: float, kind: Kind) -> None:
    try:
        kind.read(value)
    except ValueError:
        raise UserError("no such time", value=value, allowed=kind.allowed) from None


def _describe(options: Options, *, directed: bool) -> FederationConfig:
    if options.partition is not None:
        with _naming_option("--partition"):
            parse_partition(options.partition)
    return describe(
        file=options.file,
        nodes=options.nodes,
        topology=options.topology,
        rounds=options.rounds,
        partition=options.partition,
        rule=options.rule,
        compressor=options.compressor,
        method=_own_method(options.method),
        privacy=options.privacy,
        seed=options.seed,
        directed=directed,
    )


def _own_method(spec: str | None) -> str | None:
    """Make the path to a user's own method absolute, relative to the working folder."""
    try:
        return None if spec is None else from_here(spec)
    except ValueError as error:
        raise UserError(str(error), key="--method", value=spec, allowed=allowed_methods()) from None


@contextmanager
def without_file(options: Options) -> Iterator[None]:
    """Name options instead of FEDERATION in errors: all of them if there is no file, otherwise only a compressor, which
    must fit the model.
    """
    try:
        yield
    except UserError as error:
        if error.key == "gossip.compressor" and options.compressor is not None:
            error.file, error.key = None, "--compressor"
        elif (error.key or "").startswith("privacy") and options.privacy is not None:
            error.file, error.key = None, f"{KEY} {error.key}".replace("privacy privacy.", "privacy ")
        elif options.file is None and error.key is not None:
            table, _, name = error.key.partition(".")
            if table in ("federation", "task", "training", "gossip") and name:
                error.file, error.key = None, f"--{name}" if hasattr(options, name) else name
        raise


@contextmanager
def _naming_option(key: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        error.key = key
        raise


def _liars(options: Options, of_the_world: LiarSpec | None, nodes: int) -> LiarSpec | None:
    """Return the liars. Options override the world file; `--byzantine 0` means no liars."""
    options = replace(options, attack=_own_attack(options.attack))
    if options.attack is not None and (options.byzantine == 0 or (options.byzantine is None and of_the_world is None)):
        text = "an attack without liars"
        raise UserError(text, key="--attack", value=options.attack, allowed="with --byzantine K, or [liars]")
    if options.byzantine is None:
        return of_the_world and replace(of_the_world, attack=options.attack or of_the_world.attack)
    if options.byzantine >= nodes:
        text = f"not all of the {nodes} nodes can lie"
        raise UserError(text, key="--byzantine", value=options.byzantine, allowed=f"0 to {nodes - 1}")
    attack = options.attack or (of_the_world and of_the_world.attack)
    if options.byzantine and attack is None:
        raise UserError("liars with no attack", key="--byzantine", allowed="with --attack: " + ALLOWED_ATTACKS)
    return LiarSpec(count=options.byzantine, attack=attack) if options.byzantine and attack else None


def _own_attack(attack: str | None) -> str | None:
    """Make the path to a user's own attack absolute, relative to the working folder."""
    if attack is None:
        return None
    with _naming_option("--attack"):
        try:
            make_attack(attack)
        except ValueError as error:
            raise UserError(str(error), value=attack, allowed=ALLOWED_ATTACKS) from None
    return with_absolute_path(attack, Path())
