"""The picture has what was rebuilt beside the private rows, and is refused where there is nothing to see."""

import numpy as np
import pytest

from p2pfl.errors import UserError
from sim.audits.reconstruction import Guess, best_match, draw, require_picture, side_of


@pytest.mark.parametrize(
    ("shape", "side"),
    [((64,), (8, 8)), ((1, 8, 6), (8, 6)), ((3, 8, 6), (8, 6, 3)), ((8, 6), (8, 6)), ((5,), None), ((2, 8, 6), None)],
)
def test_inputs_are_seen_in_their_shape(shape, side):
    assert side_of(shape) == side


@pytest.mark.long
@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), (3, 8, 8)])
def test_guesses_of_each_layer_are_drawn(shape, tmp_path):
    truth = np.random.default_rng(0).random((6, *shape), dtype=np.float32)
    guesses = {
        "no layer": [Guess(number, truth[number], best_match(truth[number], truth, 1.0)) for number in range(3)],
        "noise": [Guess(0, np.full(shape, np.nan), best_match(np.zeros(shape), truth, 1.0))],
        "nothing": [],
    }

    draw(guesses, truth, tmp_path / "rebuilt.png")

    assert (tmp_path / "rebuilt.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_picture_is_refused():
    with pytest.raises(UserError, match="the inputs are not pictures"):
        require_picture((5,))
