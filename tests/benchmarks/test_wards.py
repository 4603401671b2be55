"""Five wards learn behind NAT and a proxy; what they leave is counted. Sites differ, the test is common."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from internet_in_a_box import why_not

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rivals" / "wards.py"


@pytest.fixture
def wards(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(SCRIPT.parent), *sys.path])
    yield importlib.import_module("wards")
    sys.modules.pop("wards")


def test_a_model_has_25_million_numbers_and_sites_have_other_kinds_and_volumes(wards):
    pytest.importorskip("torch")
    assert abs(sum(p.numel() for p in wards.make_model().parameters()) / 1e6 - 25) < 1
    (one, kinds), (other, others) = wards.volumes(0, 64), wards.volumes(1, 64)
    assert one.shape == (64, 1, 16, 16, 16)
    assert np.bincount(kinds).argmax() != np.bincount(others).argmax()
    assert other.mean() > one.mean()
    assert [wards.entropy(np.array(each)) for each in ([7] * 256, [3, 0, 3])] == [8, 1]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(why_not("tinyproxy") is not None, reason=str(why_not("tinyproxy")))
def test_all_sites_do_their_rounds_and_relay_and_proxy_see_ciphertext(tmp_path):
    words = [sys.executable, SCRIPT, "--rounds", "2", "--wide", "64", "--kill-every", "0", "--work", tmp_path / "w"]
    told = json.loads(subprocess.run(words, check=True, capture_output=True, timeout=300).stdout)
    assert all(row["rounds"] >= 1 and row["held_models_of"] for row in told["sites"].values())
    assert all(told["bits_per_byte"][name]["bits_per_byte"] > 7.999 for name in ("hub", "site5"))
