from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from p2pfl.learn.task import Task
from sim.learning.grouped import _hits
from sim.learning.stacked import losses_of

TASK = Task(model=lambda: None, data=lambda _: None)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("n", [1, 2, 14, 16, 17, 33, 100, 255, 256, 257, 300, 1024])
def test_the_mean_cross_entropy_of_each_model_has_the_bits_of_torchs_own(n, common):
    generator = torch.Generator().manual_seed(n)
    outputs = torch.randn(8, n, 7, generator=generator)
    targets = torch.randint(0, 7, (n,) if common else (8, n), generator=generator)
    expected = [functional.cross_entropy(outputs[row], targets if common else targets[row]) for row in range(8)]
    assert torch.equal(losses_of(TASK, outputs, targets, common=common), torch.stack(expected))


@pytest.mark.parametrize("shape", [(), (5,)])
def test_hits_are_those_of_argmax_also_where_outputs_are_equal_or_no_numbers(shape):
    generator = torch.Generator().manual_seed(1)
    for levels, broken in ((2, False), (10**6, False), (10**6, True)):
        outputs = torch.randint(0, levels, (6, 30, 4, *shape), generator=generator).float()
        if broken:
            outputs[0, 0] = torch.nan
        for targets in (torch.randint(0, 4, (6, 30, *shape), generator=generator), torch.full((30, *shape), -100)):
            expected = (outputs.argmax(dim=2) == targets).flatten(1).sum(dim=1)
            assert _hits(outputs, targets).tolist() == expected.tolist()
