"""What a report says of a figure that nodes have one each of."""

from __future__ import annotations

import math

import pytest

from p2pfl.reporting import Statistic, spread


@pytest.mark.parametrize("values", [[math.nan, 1.0, 2.0], [1.0, math.nan, 2.0], [1.0, 2.0, math.nan]])
def test_one_loss_that_is_no_number_makes_no_figure_whatever_the_order_of_the_nodes(values):
    found = spread(values)
    assert all(math.isnan(figure) for figure in (found.mean, found.min, found.max))
    assert not found.is_finite


def test_nodes_without_a_value_are_left_out():
    assert spread([None, 1.0, 3.0]) == Statistic(mean=2.0, min=1.0, max=3.0)
    assert spread([None, None]) is None
