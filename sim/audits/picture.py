"""Pictures of rebuilt rows beside the private rows that are closest to them, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from sim.audits.reconstruction import Guess
from topologies.plots import DARK, new_figure, save, shown

MOST_GUESSES = 6
SIZE = 0.78
"""The size of a small picture, in inches."""
LEFT = 1.7

Values = NDArray[np.floating[Any]]


def side_of(shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape in which inputs of this shape are shown: (h, w), or (h, w, 3); None if they are no pictures."""
    shape = tuple(shape)
    if len(shape) == 1:
        side = math.isqrt(shape[0])
        return (side, side) if side * side == shape[0] and side > 2 else None
    if len(shape) == 2:
        return shape
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[1:] if shape[0] == 1 else (*shape[1:], 3)
    return None


def require_picture(shape: Sequence[int]) -> None:
    """Refuse inputs that cannot be shown. Raises UserError: they are no pictures."""
    if side_of(shape) is None:
        allowed = "a task on pictures: (h, w), (1, h, w), (3, h, w), or flat and square"
        raise UserError("the inputs are no pictures", key="--picture", value=str(tuple(shape)), allowed=allowed)


def draw(guesses: Mapping[str, Sequence[Guess]], truth: Values, path: Path) -> None:
    """Draw for each layer a line of rebuilt rows above a line of the nearest private rows of `truth` (n, ...).

    Raises UserError: they are no pictures.
    """
    require_picture(truth.shape[1:])
    layers = {name: list(found)[:MOST_GUESSES] for name, found in guesses.items() if found}
    columns = max(len(found) for found in layers.values())
    height = len(layers) * (2 * SIZE + 0.5)
    figure = new_figure(LEFT + columns * SIZE, height)
    figure.get_layout_engine().set(h_pad=0.02, w_pad=0.02, hspace=0.0, wspace=0.0)
    parts = figure.subfigures(len(layers), 1, squeeze=False)[:, 0]
    for part, (name, found) in zip(parts, layers.items(), strict=True):
        part.suptitle(shown(name), fontsize=9, color=DARK, x=0.01, ha="left", fontweight="bold")
        axes = part.subplots(2, columns, squeeze=False)
        for column in range(columns):
            guess = found[column] if column < len(found) else None
            _show(axes[0][column], None if guess is None else guess.inputs, truth)
            _show(axes[1][column], None if guess is None else truth[guess.match.row], truth)
            if guess is not None:
                axes[0][column].set_title(f"{guess.match.psnr_db:.0f} dB", fontsize=7, color=DARK, pad=2)
        for line, text in enumerate(("rebuilt", "nearest private")):
            axes[line][0].set_ylabel(text, fontsize=7, color=DARK, rotation=0, ha="right", va="center")
    save(figure, path)


def _show(axes: Any, values: Values | None, truth: Values) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    if values is None:
        return
    seen = side_of(truth.shape[1:]) or ()
    inside = np.clip(np.nan_to_num(values), truth.min(), truth.max())
    image = inside.transpose(1, 2, 0) if len(seen) == 3 else inside.reshape(seen)
    span = float(truth.max() - truth.min()) or 1.0
    axes.imshow((image - truth.min()) / span, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
