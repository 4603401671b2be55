"""Agreement with byzfl, where it is installed: in an environment of its own, see `benchmarks/robust/rules.py`.

It can be lent to this one: PYTHONPATH with a folder in which `byzfl` alone is a link to the installed package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from p2pfl.aggregate import NNM, Median, MoNNA, Neighborhood, TrimmedMean, make_rule

if importlib.util.find_spec("byzfl") is None:
    pytest.skip("byzfl is not installed: benchmarks/robust/rules.py says where it would be", allow_module_level=True)

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "robust" / "rules.py"
OURS = {"Median": Median, "TrMean": TrimmedMean, "MoNNA": MoNNA}
"""Our rules by byzfl's names."""
ALONE = (("Median", {}), ("TrMean", {"f": 3}), ("MoNNA", {"f": 3, "idx": 4}))
CASES = [(False, *case) for case in ALONE] + [(True, *case) for case in ALONE[:2]]


@pytest.fixture(scope="module")
def byzfl():
    """With stubs for what it imports and its rules do not use, which are taken away again."""
    spec = importlib.util.spec_from_file_location("benchmark_of_rules", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    stubs, before = benchmark.Stubs(), set(sys.modules)
    sys.meta_path.append(stubs)
    yield importlib.import_module("byzfl")
    sys.meta_path.remove(stubs)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in benchmark.STUBBED:
            del sys.modules[name]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ["float32", "float64", "tensor"])
@pytest.mark.parametrize("shape", [(8, 1), (11, 40), (20, 3000)], ids=str)
def test_values_agree_to_five_digits(byzfl, case, kind, shape):
    mixed, name, parameters = case
    vectors = np.random.default_rng(shape[1]).standard_normal(shape) + 0.5
    vectors[-3:] *= 8
    vectors = torch.from_numpy(vectors).float() if kind == "tensor" else vectors.astype(kind)
    theirs = getattr(byzfl, name)(**parameters)(byzfl.NNM(f=3)(vectors) if mixed else vectors)
    rule = OURS[name](**parameters)
    ours = (NNM(rule, 3) if mixed else rule)(vectors)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", ["byzfl:Krum,b=1", "byzfl:MultiKrum,b=2"])
def test_a_rule_of_byzfls_mixes_in_a_node(byzfl, spec):
    rows = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    around = Neighborhood(own=rows[0], others=list(rows[1:]), weights=np.full(8, 1 / 9), peers=tuple(range(8)))
    theirs = getattr(byzfl, spec[6:-4])(f=int(spec[-1]))(rows)
    np.testing.assert_allclose(make_rule(spec).mix(around).model, theirs, rtol=1e-5)
