"""Reconstruction of a node's rows by its neighbors, from a few rounds that they have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from p2pfl.config.model import FederationConfig
from p2pfl.learn.evaluation import loss_of
from p2pfl.learn.methods import method_of
from p2pfl.learn.params import TensorPlace
from p2pfl.learn.trainer import TorchLearner
from sim.audits.inversion import InversionSettings, invert, labels_of
from sim.audits.observation import Observation, RoundSeen
from sim.audits.rank_one import first_layer, rank_one
from sim.audits.recovered_gradient import gradient_of
from sim.audits.similarity import RECOGNIZABLE_DB, Match, best_match, matched, span_of

Values = NDArray[np.floating[Any]]
MOST_ROWS = 8
"""The number of rows that an attack guesses together."""
MOST_OTHERS = 200


@dataclass(frozen=True, slots=True)
class Guess:
    """One rebuilt row: `inputs` (...) from round `number`, with the private row that it is closest to."""

    number: int
    inputs: Values
    match: Match


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """All guesses of one attack. `missing` says why there are none."""

    guesses: tuple[Guess, ...] = ()
    missing: str = ""

    @property
    def psnr_db(self) -> float | None:
        """The median over the guesses."""
        return median(one.match.psnr_db for one in self.guesses) if self.guesses else None

    def share(self, least_db: float) -> float | None:
        """Return the share of guesses that are at least this close."""
        return sum(one.match.psnr_db >= least_db for one in self.guesses) / len(self.guesses) if self.guesses else None


@dataclass(frozen=True, kw_only=True)
class Rebuilder:
    """Rebuilds rows. `learner` is the victim's, for its model and its rows, which only the auditor has.

    `settings` are those of the inversion.
    """

    learner: TorchLearner
    federation: FederationConfig
    settings: InversionSettings = field(default_factory=InversionSettings)

    def exactly(self, observed: Observation, rounds: int) -> Rebuilt:
        """Rebuild rows by rank one, from rounds of one step on one row."""
        layer = first_layer(self.learner.model.module, self.learner.model.flat.places)
        if isinstance(layer, str):
            return Rebuilt(missing=layer)
        shape, found = self._inputs.shape[1:], list[Guess]()
        for seen in observed.rounds()[:rounds]:
            rebuilt = rank_one(self._gradient(seen), layer)
            if rebuilt is not None:
                inputs = rebuilt.inputs.reshape(shape)
                found.append(Guess(seen.number, inputs, best_match(inputs, self._inputs, self._span)))
        return Rebuilt(tuple(found), "" if found else "no round was seen")

    def by_inversion(self, observed: Observation, rounds: int, *, rows: int = 1, steps: int = 1) -> Rebuilt:
        """Rebuild rows by inversion, from rounds of `steps` steps on `rows` rows each.

        Of larger rounds the first MOST_ROWS rows are guessed, as if their rounds had been one step.
        """
        reason = self.why_not
        if reason:
            return Rebuilt(missing=reason)
        unrolled, guessed = (steps, rows * steps) if rows * steps <= MOST_ROWS else (1, min(rows * steps, MOST_ROWS))
        found = list[Guess]()
        for seen in observed.rounds()[:rounds]:
            gradient = self._gradient(seen, steps)
            bias = last_bias(self.learner.model.module, self.learner.model.flat.places)
            labels = labels_of(gradient[bias], guessed) if bias is not None else np.zeros(guessed, np.int64)
            inverted = invert(
                self.learner.model.module,
                self.learner.model.flat.places,
                seen.start,
                gradient,
                loss=loss_of(self.learner.task),
                shape=tuple(self._inputs.shape[1:]),
                labels=labels,
                bounds=(float(self._inputs.min()), float(self._inputs.max())),
                steps=unrolled,
                learning_rate=self.federation.training.learning_rate,
                settings=replace(self.settings, seed=self.settings.seed + seen.number),
            )
            matches = matched(inverted.inputs, self._inputs, self._span)
            found += [Guess(seen.number, *one) for one in zip(inverted.inputs, matches, strict=False)]
        return Rebuilt(tuple(found), "" if found else "no round was seen")

    @property
    def why_not(self) -> str:
        """Say why there is nothing to invert; empty where there is."""
        inputs, _ = self.learner.train_set.rows(torch.arange(1))
        if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
            return "the inputs are no real numbers (text, categories, raw bytes)"
        if not self.learner.labels:
            return "the task is not to tell classes"
        if last_bias(self.learner.model.module, self.learner.model.flat.places) is None:
            return "the last layer has no bias that is shared, from which labels could be read"
        return ""

    def recognizable_db(self, others: Values) -> float:
        """Return the PSNR (dB) from which a guess shows a private row.

        It is closer than 19 of 20 rows of `others` (n, ...) come to the private row that is most like them, and close
        enough to recognize a picture.
        """
        near = [best_match(row, self._inputs, self._span).psnr_db for row in others[:MOST_OTHERS]]
        return max(RECOGNIZABLE_DB, float(np.quantile(near, 0.95)))

    def row(self, number: int) -> Values:
        """Return the private inputs of one row."""
        found: Values = self._inputs[number]
        return found

    @property
    def _inputs(self) -> Values:
        inputs, _ = self.learner.train_set.rows(torch.arange(len(self.learner.train_set)))
        found: Values = inputs.numpy()
        return found

    @property
    def _span(self) -> float:
        return span_of(self._inputs)

    def _gradient(self, seen: RoundSeen, steps: int = 1) -> Values:
        return gradient_of(
            seen, self.federation.training, method_of(self.federation), samples=self.learner.samples, steps=steps
        )


def last_bias(module: nn.Module, places: Sequence[TensorPlace]) -> slice | None:
    """Find the bias of the last linear layer in a vector."""
    names = {place.name: place.part for place in places}
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return names.get(f"{linear[-1]}.bias" if linear[-1] else "bias") if linear else None
