"""A federation as a Python object: described by keywords or by a file, run in this process, simulated, or saved.

    from p2pfl import Federation, Task

    federation = Federation(task=Task(model=make_model, data=make_data), nodes=8, topology="ring", rounds=40)
    report = federation.run()
    print(report.accuracy.min)

Every setting of a federation file is a keyword of the same name, with the same default and the same check.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pfl.config.charter import compacted
from p2pfl.config.load import federation_from, load_config
from p2pfl.config.model import GOSSIP, NODE, TRAINING, Compute, FederationConfig
from p2pfl.config.tables import Mistakes, unknown_keys
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import UserError
from p2pfl.learn.task import LearnerFactory, Task
from p2pfl.specs import Kind, whole

if TYPE_CHECKING:
    from p2pfl.node.learner_runner import RoundState
    from p2pfl.reporting.measures import Point
    from p2pfl.reporting.report import Report

WHERE = "Federation"
"""The name used in error messages instead of a file."""
MOST_NODES = 64
OF_NODES = {"node.device": "device", "node.precision": "precision"}
"""The keys of node files that are keyword arguments here."""
OF_A_TASK = "task"
"""The name given to a task object without one."""


class Federation:
    """Nodes that learn one model together.

    `task` is a `Task`, or the name of a task as in a federation file, with `options` for its other keys. `nodes` is
    their number, or a list of names. `topology` is the graph (`p2pfl topology list`), `edge` has settings for single
    edges: dictionaries with `between` and `compressor`. `method` and `rule` may be a class or a function in your
    program. `privacy` is a dictionary with the keys of `[privacy]`. `device` and `precision` say on what and in which
    precision nodes train, as in a node file: one value for all, or a dictionary by node. All other keywords are those
    of `[training]` and `[gossip]`.

    Raises UserError: a keyword is unknown or has an impossible value, or the graph is not connected.
    """

    def __init__(
        self,
        *,
        task: Task | LearnerFactory | str = "digits",
        nodes: int | Sequence[str] = 8,
        topology: str = "ring",
        name: str = "federation",
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        edge: Sequence[Mapping[str, Any]] = (),
        device: str | Mapping[str, str] = "cpu",
        precision: str | Mapping[str, str] = "float32",
        privacy: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        _check_shapes(task, options, edge, privacy)
        given = None if isinstance(task, str) else task
        called = task if isinstance(task, str) else getattr(task, "name", "") or OF_A_TASK
        head = {"name": name, "seed": _plain(seed), "topology": topology}
        own_keys = {key: _plain(value) for key, value in (options or {}).items() if value is not None}
        document: dict[str, Any] = {"federation": head, "task": {**own_keys, "name": called}}
        document |= _tables(settings)
        if privacy is not None:
            document["privacy"] = {key: _plain(value) for key, value in privacy.items() if value is not None}
        document["node"] = _members(_plain(nodes))
        document["edge"] = [dict(table) for table in edge]
        mistakes = Mistakes(Path(WHERE))
        config = federation_from(document, mistakes)
        if mistakes.errors:
            raise self.in_keywords(mistakes.errors[0])
        self._config = replace(config, task=replace(config.task, given=given))
        names = [member.name for member in self._config.members]
        devices, exactness = _by_node("device", device, names), _by_node("precision", precision, names)
        self._compute = {name: Compute(device=devices[name], precision=exactness[name]) for name in names}
        self._objects = {key: settings[key] for key in ("method", "rule") if settings.get(key) is not None}

    @property
    def config(self) -> FederationConfig:
        """Return the configuration that a federation file would contain. Raises UserError: a given class has been
        redefined since.
        """
        for key, value in self._objects.items():
            _spec(key, value)
        return self._config

    @staticmethod
    def in_keywords(mistake: UserError) -> UserError:
        """Name a mistake by its keyword instead of its table and key, unless it is in a file."""
        if Path(str(mistake.file)).name == WHERE:
            mistake.file = WHERE
            for table in ("federation.", "training.", "gossip."):
                mistake.key = mistake.key and mistake.key.removeprefix(table)
            mistake.key = {"node": "nodes", "task.name": "task"}.get(mistake.key or "", mistake.key)
        return mistake

    def run(
        self,
        *,
        on_progress: Callable[[Point], None] | None = None,
        on_round: Callable[[RoundState], Any] | None = None,
        checkpoints: Path | str | None = None,
        checkpoint_every: int = 10,
        checkpoints_kept: int = 3,
        references: bool = False,
    ) -> Report:
        """Run all nodes in this process, and return the report; this also works in a notebook.

        They communicate over sockets on this machine. All nodes train in turn in one thread. `on_progress` is called
        with the current figures, at most five times a second, from another thread; without it, a terminal shows them in
        a line on stderr, and a notebook with a bar. `on_round` is called with a node's state after each local round, in
        the training thread. In the folder `checkpoints`, each node gets a folder with model files, written every
        `checkpoint_every` rounds and at its end; the newest `checkpoints_kept` are kept. `references` adds to the
        report what each node would have learned alone, and what one model would have learned from all data; that takes
        about as long as the run. Ctrl-C cancels once the current local round is over. Nothing else is left on disk.

        Raises UserError: the task or its data are wrong, or there are more than 64 nodes: simulate those;
        LearningError: the task failed, or at some node no round gave a finite model.
        """
        from p2pfl.console.output import ProgressView, point_in_words, watched  # noqa: PLC0415 - as below
        from p2pfl.fleet.one_process import run_together  # noqa: PLC0415 - who simulates needs no network
        from p2pfl.reporting.measures import measures_of  # noqa: PLC0415 - as above

        wishes: dict[str, Any] = {
            "compute": self._compute,
            "on_round": on_round,
            "checkpoints": None if checkpoints is None else Path(checkpoints),
            "checkpoint_every": _read("checkpoint_every", checkpoint_every, whole(1)),
            "checkpoints_kept": _read("checkpoints_kept", checkpoints_kept, whole(1)),
            "references": references,
        }
        if (many := len(self.config.members)) > MOST_NODES:
            text = "too many nodes for one process: simulate them (sim.simulate)"
            raise UserError(text, file=WHERE, key="nodes", value=many, allowed=f"2 to {MOST_NODES}")
        try:
            with ProgressView(quiet=on_progress is not None or not watched()) as view:
                training = self.config.training

                def show(point: Point) -> None:
                    done = point.time_s if training.trained_rounds is None else point.rounds and point.rounds.mean
                    part = (done or 0.0) / (training.trained_rounds or training.time_s or math.inf)
                    view.show(point_in_words(point, measures_of([point])), part=part)

                return run_together(self.config, on_progress=on_progress or show, **wishes)
        except UserError as error:
            if self._compute and (error.key or "") in OF_NODES:
                error.file, error.key = WHERE, OF_NODES[error.key or ""]
            raise self.in_keywords(error) from error.__cause__

    def save(self, folder: Path | str) -> Path:
        """Write a new folder with the federation file, and a key and a node file for each node; return its path.

        `p2pfl launch FOLDER` then runs it as processes on this machine; for other machines, change the addresses. Paths
        in `options`, and settings in node files of an older folder, are not copied. Raises UserError: the folder
        exists, or the task is an object that a file cannot name.
        """
        from p2pfl.node.folders import save  # noqa: PLC0415 - as above

        try:
            return save(self.config, Path(folder), compute=self._compute)
        except UserError as error:
            raise self.in_keywords(error) from error.__cause__


def load_federation(path: Path | str) -> Federation:
    """Load a federation from its file or folder. Raises UserError: the first mistake in the file."""
    federation = Federation.__new__(Federation)
    # new keys: no charter is valid
    config = replace(compacted(load_config(path)), admin=(), edition=None, charter=b"")
    federation._config, federation._objects = config, {}  # noqa: SLF001 - of this module
    federation._compute = {}  # noqa: SLF001 - node files say it
    return federation


def _tables(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Sort keyword arguments into the tables of a federation file; None means that a keyword was not given."""
    tables: dict[str, dict[str, Any]] = {"training": {}, "gossip": {"share_frozen": False}}
    for key, value in settings.items():
        table = "gossip" if key in GOSSIP else "training"
        if key not in GOSSIP and key not in TRAINING:
            raise _unknown(key, value)
        if value is not None:
            tables[table][key] = _spec(key, value) if key in ("method", "rule") else _plain(value)
    return tables


def _unknown(key: str, value: Any) -> UserError:
    """Suggest a keyword with a similar name."""
    mistakes = Mistakes(Path(WHERE))
    known = [*inspect.signature(Federation.__init__).parameters][1:-1]
    unknown_keys({key: value}, "", [*known, *TRAINING, *GOSSIP], mistakes)
    return Federation.in_keywords(mistakes.errors[0])


def _impossible(key: str, value: Any, allowed: str) -> UserError:
    return UserError("impossible value", file=WHERE, key=key, value=value, allowed=allowed)


def _check_shapes(task: Any, options: Any, edge: Any, privacy: Any) -> None:
    """Refuse arguments that cannot be written to a document."""
    if not isinstance(task, str | Task | LearnerFactory):
        raise UserError("not a task", file=WHERE, key="task", value=task, allowed="a p2pfl.Task, or the name of one")
    if not (options is None or isinstance(options, Mapping)) or (options and "name" in options):
        raise _impossible("options", options, "a dictionary of the task's own keys, without name")
    if not isinstance(edge, list | tuple) or not all(isinstance(table, Mapping) for table in edge):
        raise _impossible("edge", edge, "a list of dictionaries with between and compressor")
    if not (privacy is None or isinstance(privacy, Mapping)):
        allowed = "a dictionary of the keys of [privacy], such as {'epsilon': 8.0, 'delta': 1e-5}"
        raise _impossible("privacy", privacy, allowed)


def _read(key: str, value: Any, kind: Kind) -> Any:
    """Check a keyword argument."""
    try:
        return kind.read(_plain(value))
    except ValueError:
        raise _impossible(key, value, kind.allowed) from None


def _by_node(key: str, values: Any, names: Sequence[str]) -> dict[str, str]:
    """Return a setting for each node. `values` is one value for all, or a dictionary; nodes that are not in it get the
    default.
    """
    given = dict(values) if isinstance(values, Mapping) else dict.fromkeys(names, values)
    for name, value in given.items():
        if name not in names:
            raise UserError("no such node", file=WHERE, key=key, value=name, allowed=", ".join(names))
        _read(key, value, NODE[key])
    return dict.fromkeys(names, getattr(Compute(), key)) | given


def _plain(value: Any) -> Any:
    """Convert numpy numbers to Python's and tuples to lists, as they appear in a document."""
    return value.item() if isinstance(value, np.generic) else list(value) if isinstance(value, tuple) else value


def _spec(key: str, value: Any) -> str:
    """Return the spec `module:name` under which a class or function can be found again, even in a notebook."""
    if isinstance(value, str):
        return value
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", "<no name>")
    named = getattr(sys.modules.get(module or ""), qualified, None)
    if named is not value:
        raise UserError(
            "this cannot be found by its name" if named is None else "its name now belongs to another object",
            file=WHERE,
            key=key,
            value=value,
            allowed="a spec, or a class or function at the top level of a module or notebook",
        )
    return f"{module}:{qualified}"


def _members(nodes: int | Sequence[str]) -> list[dict[str, Any]]:
    if isinstance(nodes, bool) or not isinstance(nodes, int | list | tuple) or (isinstance(nodes, int) and nodes < 0):
        raise _impossible("nodes", nodes, "a whole number from 2, or a list of names")
    names = [f"node{index}" for index in range(nodes)] if isinstance(nodes, int) else list(nodes)
    seeds = (
        blake2b(str(index).encode(), digest_size=32, person=b"p2pfl-unused").digest() for index in range(len(names))
    )
    # `run` and `save` make keys of their own
    return [{"name": name, "key": public_text(Identity(seed).public)} for name, seed in zip(names, seeds, strict=True)]
