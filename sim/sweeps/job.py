"""One run of a sweep: its options, the hash of all that its result depends on, and the run itself, in any process.

A report under that hash need not be computed again. It covers options, seed, the contents of every file that the
options lead to, and the software. Left out are the folders of the files, and what a task's own code imports or reads
beyond the files that the federation file names.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from p2pfl.config.load import NODE_FILE_NAME, federation_file
from p2pfl.config.model import GOSSIP, TRAINING, FederationConfig, GossipConfig, TrainingConfig
from p2pfl.config.tables import Kinds, choice, flag, read_document, text
from p2pfl.errors import P2PFLError, UserError
from p2pfl.learn.task import parse_partition
from p2pfl.reporting.report import Report
from p2pfl.specs import whole
from sim.attacks import ALLOWED_ATTACKS, file_of
from sim.federations import describe, own_tables, refuse_beside_sums, refuse_broken
from sim.progress import how_it_died, silent
from sim.worlds.model import LiarSpec, WorldSpec
from sim.worlds.settling import check_world
from sim.worlds.world import read_world
from topologies.errors import TopologyError
from topologies.families import parse
from topologies.files.content import is_file

Options: TypeAlias = Mapping[str, Any]
"""Values by names from `OPTIONS`; paths are absolute."""

OWN: Kinds = {
    "base": text(),
    "world": text(),
    "nodes": whole(2),
    "topology": text(),
    "partition": text(),
    "privacy": text(),
    "byzantine": whole(0),
    "attack": text(),
    "references": flag(),
    "arrays": flag(),
    "clock": choice("apart", "in-step"),
}
OPTIONS: Kinds = {**OWN, **TRAINING, **GOSSIP}

FILES = ("base", "world")
NONE = "none"
"""The value for the built-in digits (`base`), the default world (`world`), or no liars (`attack`)."""
EXCLUSIVE = (("rounds", "time_s"), ("local_steps", "local_epochs"))
"""Pairs of options of which a run may have only one."""
DESCRIBED = ("nodes", "topology", "rounds", "partition", "rule", "compressor", "method", "privacy")
"""Options that shape the whole federation; each of the others replaces a single setting."""
PACKAGES = ("p2pfl", "sim", "topologies")
KEY_DIGITS = 32
SELDOM_S = 1e9
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run. `identity` is everything that its result depends on, `key` the hash of that."""

    options: Options
    seed: int
    identity: Mapping[str, Any] = field(repr=False)
    key: str


RunJob: TypeAlias = Callable[[Job], Report]
"""Runs a job and returns its report. It must be importable by name in another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """A report as JSON, or the reason why there is none, in one line; `trace` helps to find a bug."""

    report: bytes | None = None
    reason: str | None = None
    trace: str | None = None


def make_job(options: Options, seed: int) -> Job:
    identity = identify(options, seed)
    words = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    key = hashlib.sha256(words.encode("ascii")).hexdigest()[:KEY_DIGITS]
    return Job(options=options, seed=seed, identity=identity, key=key)


def perform(run_job: RunJob, job: Job) -> RunOutcome:
    """Perform a job; whatever goes wrong in the run affects only its outcome."""
    try:
        report = run_job(job)
        report.sweep = {"key": job.key, "identity": job.identity}
        return RunOutcome(report=report.to_bytes())
    except MemoryError:
        return RunOutcome(reason="needs more memory than there is")
    except SystemExit as left:
        return RunOutcome(reason=how_it_died(left.code if isinstance(left.code, int) else 1))
    except (P2PFLError, TopologyError) as error:
        return RunOutcome(reason=in_one_line(str(error)))
    except Exception as error:  # noqa: BLE001 - as the docstring says
        return RunOutcome(reason=in_one_line(f"{type(error).__name__}: {error}"), trace=traceback.format_exc())


def in_one_line(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


# -- the run ---------------------------------------------------------------------------------------------------------


def run(job: Job, every_s: float | None = None) -> Report:
    """Run a job and return its report; `every_s` is the virtual time between two tests, in place of the world's.

    References are omitted unless the sweep asks for them: they cost more than the run itself, and no sweep table shows
    them. Raises UserError if files or software, here or on another machine, differ from those with which the sweep
    began.
    """
    if (identity := identify(job.options, job.seed)) != job.identity:
        different = ", ".join(sorted(name for name in identity if identity[name] != job.identity.get(name)))
        words = f"not what the sweep began with: {different}"
        raise UserError(words, allowed="the same files and software on every machine, until the sweep ends")
    import torch  # noqa: PLC0415 - checking a sweep takes no torch

    from sim.simulation import simulate  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    federation, world = build(job)
    world = world if every_s is None else replace(world, evaluate_every_s=every_s)
    how = {"arrays": job.options.get("arrays", False), "clock": job.options.get("clock")}
    references = job.options.get("references", False)
    data = None if job.options.get("base", NONE) == NONE else own_tables(federation)
    how |= {"references": references, "alone": references}
    return simulate(federation, world=world, data=data, on_progress=silent, **how)


def run_seldom(job: Job) -> Report:
    """Run a job whose nodes are tested at the end alone: a third of a run would go into curves."""
    return run(job, SELDOM_S)


def build(job: Job) -> tuple[FederationConfig, WorldSpec]:
    """Build and check everything that a job needs. Raises UserError if the run is impossible."""
    options = job.options
    if "clock" in options and not options.get("arrays"):
        raise UserError("is for arrays alone", key="clock", value=options["clock"], allowed="with arrays = true")
    try:
        federation, world = build_run({**options, "seed": job.seed})
        arrays = options.get("arrays")
        if arrays:
            from sim.arrays.setting import refuse  # noqa: PLC0415 - checking other sweeps takes no torch

            refuse(federation, world, options.get("clock", "apart"))
        else:
            refuse_beside_sums(federation, world)
    except UserError as error:
        # a sweep has no command-line options, but the same names
        error.key = error.key and error.key.removeprefix("--")
        raise
    if options.get("references") and arrays:
        text, allowed = "are for runs without arrays", "without arrays = true"
        raise UserError(text, key="references", value=True, allowed=allowed)
    return federation, world


def build_run(options: Options) -> tuple[FederationConfig, WorldSpec]:
    """Build the federation and the world of `options` and a `seed`; what arrays cannot do is not looked at.

    Raises UserError for a mistake, DisconnectedGraph if the graph is not connected.
    """
    if "partition" in options:
        try:
            parse_partition(options["partition"])
        except UserError as error:
            error.key = "--partition"
            raise
    base, path = options.get("base", NONE), options.get("world", NONE)
    federation = describe(
        file=None if base == NONE else Path(base),
        seed=options.get("seed"),
        directed=bool(options.get("arrays")) and options.get("clock") == "in-step",
        **{name: options[name] for name in DESCRIBED if name in options},
    )
    federation = _with_settings(federation, options)
    world = WorldSpec() if path == NONE else read_world(path, federation)
    world = replace(world, liars=_liars(options, world.liars, len(federation.members)))
    for mistake in check_world(world, len(federation.members)):
        raise mistake
    return federation, world


def _with_settings(federation: FederationConfig, options: Options) -> FederationConfig:
    """Apply the settings; setting one of an exclusive pair turns off the other."""
    training = {field.name: options[field.name] for field in fields(TrainingConfig) if field.name in options}
    gossip = {field.name: options[field.name] for field in fields(GossipConfig) if field.name in options}
    for pair in EXCLUSIVE:
        for name, other in (pair, pair[::-1]):
            if name in options:
                training[other] = None
    training_config, gossip_config = replace(federation.training, **training), replace(federation.gossip, **gossip)
    return refuse_broken(replace(federation, training=training_config, gossip=gossip_config))


def _liars(options: Options, of_the_world: LiarSpec | None, nodes: int) -> LiarSpec | None:
    """Return the liars. Options override the world file; liars that do not lie count as none."""
    count, attack = options.get("byzantine"), options.get("attack")
    if count == 0 or attack == NONE:
        return None
    if count is None:
        if attack is not None and of_the_world is None:
            allowed = "with a number of byzantine nodes, or [liars] in the world"
            raise UserError("an attack without liars", key="--attack", value=attack, allowed=allowed)
        return of_the_world and replace(of_the_world, attack=attack or of_the_world.attack)
    if count >= nodes:
        allowed = f"0 to {nodes - 1}"
        raise UserError(f"not all of the {nodes} nodes can lie", key="--byzantine", value=count, allowed=allowed)
    attack = attack or (None if of_the_world is None else of_the_world.attack)
    if attack is None:
        raise UserError("liars with no attack", key="--byzantine", allowed="with an attack: " + ALLOWED_ATTACKS)
    return LiarSpec(count=count, attack=attack)


# -- what its result depends on --------------------------------------------------------------------------------------


def identify(options: Options, seed: int) -> dict[str, Any]:
    """Return all inputs of a run, as JSON would store them."""
    plain = dict(options)
    if plain.get("byzantine") == 0 or plain.get("attack") == NONE:
        plain |= {"byzantine": 0, "attack": NONE}  # the run is the same without liars that do not lie
    contents: dict[str, str] = {}
    for name in FILES:
        if (path := plain.pop(name, NONE)) != NONE:
            file = federation_file(Path(path))
            contents |= {f"{name}{part}": digest for part, digest in _document(file).items()}
            if name == "base":
                contents |= _own_data(file.parent)
    if isinstance(spec := plain.get("topology"), str):
        plain["topology"], graph = _graph(spec, Path())
        contents |= {f"topology{part}": digest for part, digest in graph.items()}
    if isinstance(attack := plain.get("attack"), str) and (path := file_of(attack)) is not None:
        plain["attack"] = attack.replace(str(path), "a file")
        contents["attack"] = _digest(path)
    return {"options": plain, "seed": seed, "contents": contents, "software": software()}


@cache
def software() -> dict[str, str]:
    """Return the version and a digest of the source: a changed line may change every result."""
    total = hashlib.sha256()
    for name, source in sorted(_source()):
        total.update(f"{name}\0{hashlib.sha256(source).hexdigest()}\n".encode())
    try:
        number = version("p2pfl-gossip")
    except PackageNotFoundError:
        number = "not installed"
    return {"version": number, "source": total.hexdigest()[:KEY_DIGITS]}


def _source() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = find_spec(package)
        for root in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in sorted(root.rglob("*.py")):
                yield f"{package}/{path.relative_to(root)}", path.read_bytes()


def _document(path: Path) -> dict[str, str]:
    """Return digests of a TOML file and of every file named by a value in it."""
    digests = {"": _digest(path)}
    with suppress(UserError):  # building the run reports what is wrong with it
        for key, words in _texts(read_document(path)):
            digests |= {f": {words}{part}": digest for part, digest in _files_of_value(key, words, path.parent).items()}
    return digests


def _own_data(folder: Path) -> dict[str, str]:
    """Digest what nodes whose folders are beside the federation file learn from."""
    contents = {}
    for path in sorted(folder.glob(f"*/{NODE_FILE_NAME}")):
        with suppress(UserError):  # as above
            data = read_document(path).get("data", {})
            contents[path.parent.name] = json.dumps(data, sort_keys=True, default=str)
            for key, words in _texts(data):
                digests = _files_of_value(key, words, path.parent)
                contents |= {f"{path.parent.name} {key}{part}": digest for part, digest in digests.items()}
    return contents


def _files_of_value(key: str, words: str, folder: Path) -> dict[str, str]:
    """Digest the files named by a value: a graph, a task's file (`task.py:object`), a table of speeds, task's data."""
    if key == "topology":
        return _graph(words, folder)[1]
    try:
        words = str(file_of(words) or words) if key == "attack" else words
        place = folder / Path(words.rpartition(":")[0] if ".py:" in words else words).expanduser()
        if place.is_dir() and (key == "path" or key.endswith("_path")):
            return {f"/{path.name}": _digest(path) for path in sorted(place.iterdir()) if path.is_file()}
        return {"": _digest(place)} if place.is_file() else {}
    except (OSError, ValueError, RuntimeError):
        return {}  # plain text, not a path


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield key, value
        case dict():
            for name in value:
                yield from _texts(value[name], name)
        case list():
            for each in value:
                yield from _texts(each, key)


def _graph(spec: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Return the spec without the folders of its files, and the digests of these files."""
    if is_file(spec):
        return "a file", {"": _digest(folder / spec)}
    try:
        labels = parse(spec).parameters.get("labels")
    except ValueError:
        return spec, {}
    return (spec.replace(str(labels), "a file"), {" labels": _digest(folder / labels)}) if labels else (spec, {})


def _digest(path: Path) -> str:
    try:
        stat = path.stat()
        return _digest_of(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        return f"unreadable: {error.strerror}"


@cache
def _digest_of(path: Path, _changed_ns: int, _size: int) -> str:
    """Digest a file; one that many runs share is read once."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
