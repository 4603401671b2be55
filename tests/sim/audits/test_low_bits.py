"""The last bits of what leaves a node tell nothing that its noise does not cover."""

import pytest

from sim.audits.low_bits import low_bits


@pytest.mark.parametrize(("unit", "chain"), [("record", True), ("record", False), ("member", True)])
def test_the_last_bits_of_a_step_from_zero_weights_do_not_tell_of_a_row(unit, chain):
    found = low_bits(unit=unit, chain=chain, tries=60)

    assert found.proven == 0.0
