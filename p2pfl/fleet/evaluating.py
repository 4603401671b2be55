"""The models of all nodes of a federation, each tested on its node's own test rows, by a secure sum over the nodes.

With all nodes' folders on this machine, one program does it; else each machine does its nodes' part and waits for the
others. Nobody sees another node's figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2pfl.config.charter import compacted
from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import PUBLIC
from p2pfl.errors import UserError
from p2pfl.features import import_declared
from p2pfl.fleet.one_process import sum_together
from p2pfl.fleet.process import arrived
from p2pfl.learn.figures import WITHIN, Pooled, pooled, predictions_of, row_sums
from p2pfl.learn.interface import of_torch
from p2pfl.learn.metrics import LOSS, Measure
from p2pfl.learn.table.schema import KEYS, make_schema
from p2pfl.node.assembly import load_identity
from p2pfl.node.folders import newest_here
from p2pfl.node.outcomes import Learned, read_learned
from p2pfl.reporting.report import SecureSum

EVERYWHERE = "the folders of all nodes, or --node NAME on each node's machine, at about the same time"


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationScore:
    """Figures over the test rows of `nodes`. `main` is the task's main measure; `classes` are names, if it has any."""

    federation: str
    nodes: tuple[str, ...]
    main: Measure
    classes: tuple[str, ...]
    figures: Pooled
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """What one node adds, and what is the same at all nodes."""

    arrays: Mapping[str, Any]
    main: Measure
    classes: tuple[str, ...]
    warnings: Sequence[str]


def evaluate_here(folder: Path, *, finetune: int | None = None) -> FederationScore:
    """Test all nodes, whose folders are on this machine.

    Raises UserError: some are not here, have no model or no test rows, or the sum was refused.
    """
    federation = newest_here(load_config(folder))
    _refuse_private(federation)
    names = [member.name for member in federation.present]
    lacking = [name for name in names if not node_file(federation, name).is_file()]
    if lacking:
        text = f"not on this machine: {', '.join(lacking)}"
        raise UserError(text, file=federation.path, key="--federation", allowed=EVERYWHERE)
    own = {name: _own(federation, name, finetune) for name in names}
    among = replace(compacted(federation), admin=(), signed=None)  # the keys of this sum are made for it
    try:
        total = sum_together(among, lambda node: own[node.name].arrays, "memory", **_terms())
    except UserError as error:
        raise _placed(error, federation) from error
    first = own[names[0]]
    warnings = [f"{name}: {text}" for name, one in own.items() for text in one.warnings]
    return _score(federation, total, first, warnings)


def evaluate_with_others(
    folder: Path, name: str, *, finetune: int | None = None, on_wait: Callable[[], object] = lambda: None
) -> FederationScore:
    """Test this node, and wait for the others to do the same on their machines; `on_wait` is called before.

    Raises UserError: as above, or the node runs; StorageError.
    """
    federation = arrived(load_config(folder), name)
    _refuse_private(federation)
    node = load_node(node_file(federation, name), federation, name)
    identity, own = load_identity(federation, node), _own(federation, name, finetune)
    (sum_at_node,) = import_declared("NODE_SUM")
    label = f"evaluate {own.main.name}"
    on_wait()
    try:
        total = asyncio.run(sum_at_node(federation, node, identity, own.arrays, label=label, **_terms()))
    except UserError as error:
        raise _placed(error, federation) from error
    return _score(federation, total, own, own.warnings)


def _terms() -> dict[str, Any]:
    return {"within": WITHIN, "resolution": 1, "least": 3, "colluders": 1}


def _score(federation: FederationConfig, total: SecureSum, own: _Own, warnings: Sequence[str]) -> FederationScore:
    return FederationScore(
        federation=federation.name,
        nodes=total.members,
        main=own.main,
        classes=own.classes,
        figures=pooled(total.sums),
        warnings=warnings,
    )


def _own(federation: FederationConfig, name: str, finetune: int | None) -> _Own:
    """Test one node. Raises UserError: it has no model, or no test rows."""
    learned = read_learned(federation.path.parent, federation=federation.path, node=name)
    if finetune:
        learned = learned.finetune(finetune)
    score = learned.learner.evaluate(learned.vector, "test")
    if score is None or not score.samples:
        text = f"{name} has no test rows, so that it adds nothing to what is known of the models"
        allowed = "rows held out at every node, such as holdout = 0.2 in [task] of a csv task"
        raise UserError(text, file=federation.path, key="--federation", allowed=allowed)
    measures: Sequence[Measure] = getattr(learned.learner, "measures", None) or (LOSS,)
    predictions, torch = None, of_torch(learned.learner)
    judged: Any = learned.learner if torch is None else torch.task  # what has the metrics
    predict = getattr(learned.learner, "predictions", None)
    if predict is not None and (found := predict(learned.vector)) is not None:
        predictions = predictions_of(judged.metrics, *found, labels=bool(getattr(learned.learner, "labels", False)))
    arrays = row_sums(score, measures[0], predictions)
    return _Own(arrays=arrays, main=measures[0], classes=_classes(learned), warnings=learned.warnings)


def _classes(learned: Learned) -> tuple[str, ...]:
    found = learned.preprocessing.get("schema", {})
    schema = make_schema({key: found[key] for key in KEYS if key in found}, prefix="") if found else None
    return () if schema is None else schema.classes or ()


def _refuse_private(federation: FederationConfig) -> None:
    privacy = federation.privacy
    if privacy is not None and privacy.test_set != PUBLIC:
        text = "withheld under [privacy]: sums over all nodes' test rows are computed from rows without noise"
        allowed = '`p2pfl score` on a table of your own, or test_set = "public" if it is nobody\'s private data'
        raise UserError(text, file=federation.path, key="--federation", allowed=allowed)


def _placed(error: UserError, federation: FederationConfig) -> UserError:
    if error.file in ("Federation.sum", "Node.sum"):
        error.file, error.key = str(federation.path), "--federation"
    return error
