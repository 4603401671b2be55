"""The same seed gives the same run, event by event and bit by bit: in any process, under any hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from digest_script import SEEDS, digests
from drawn_worlds import draw
from oracle import checked

from sim import simulate, value_digest

SCRIPT = Path(__file__).with_name("digest_script.py")


@pytest.fixture(scope="module")
def here():
    return digests()


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 2])
def test_another_process_with_another_hash_seed_and_other_threads_does_the_same_run(number, here):
    one = subprocess.run(
        [sys.executable, str(SCRIPT)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "PYTHONHASHSEED": str(number), "OMP_NUM_THREADS": str(number)},
    )
    assert json.loads(one.stdout) == here


@pytest.mark.long
def test_a_run_leaves_nothing_behind_that_the_next_one_would_see(here):
    assert digests(last=3) == here[-3:]


@pytest.mark.long
def test_all_these_runs_differ(here):
    both = [digest for one in here for digest in one]
    assert len(set(both)) == len(both)


@pytest.mark.long
def test_checking_and_looking_closer_change_no_event_of_the_trace():
    """Who looks more often sees the same run: same digests, a longer history."""
    federation, world = draw(SEEDS[0])
    seldom = replace(world, evaluate_every_s=5.0)
    plain = simulate(federation, world=seldom, references=False)
    assert plain.digest == checked(federation, world=seldom).digest
    often = simulate(federation, world=replace(world, evaluate_every_s=0.5), references=False)
    assert len(often.history) > len(plain.history)
    for key in ("digest", "value_digest", "messages_sent", "bytes_sent", "virtual_time_s", "staleness", "rounds"):
        assert getattr(plain, key) == getattr(often, key)


@pytest.mark.parametrize("place", [(0, 0), (2, 4), (1, 2)])
def test_one_bit_of_one_model_or_variate_is_another_value_digest(place):
    models, variates = (np.arange(15, dtype=np.float32).reshape(3, 5) for _ in range(2))
    digest = value_digest(models, variates)
    for rows in (models, variates):
        before = rows[place]
        rows[place] = np.nextafter(before, np.float32(100))
        assert value_digest(models, variates) != digest
        rows[place] = before
    assert value_digest(models, variates) == digest
    assert value_digest(models, None) != digest
