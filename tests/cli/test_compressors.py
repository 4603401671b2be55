"""`p2pfl compressors` says what each stage does and what a chain costs, as the compressors themselves say it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest

from p2pfl.compress import EXAMPLES, STAGES, make_compressor


def rows_of(outcome):
    return json.loads(outcome.out)["compressors"]


def test_without_a_spec_every_stage_of_the_grammar_is_explained(p2pfl):
    stages = json.loads(p2pfl("compressors", "--format", "json").out)["stages"]
    told = {row["stage"].partition(":")[0] for row in stages}
    assert {*STAGES, "none"} <= told
    assert all(row["does"] and row["from"] and make_compressor(row["example"]) for row in stages)
    assert len(stages) == len(STAGES) + 2


@pytest.mark.parametrize("spec", EXAMPLES)
def test_the_bytes_shown_are_those_of_a_payload_or_no_less(p2pfl, spec):
    (row,) = rows_of(p2pfl("compressors", spec, "--parameters", "1000", "--format", "json"))
    vector = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    payload = len(make_compressor(spec).encode(vector, chance=1))
    assert row["compressor"] == spec
    assert payload == row["message_bytes"] if row["exact"] else payload <= row["message_bytes"]
    assert row["bits_per_parameter"] == pytest.approx(8 * row["message_bytes"] / 1000)
    assert row["times_smaller"] == pytest.approx(4000 / row["message_bytes"])


def test_delta_and_gamma_are_those_of_the_size(p2pfl):
    few, many = (
        rows_of(p2pfl("compressors", "top-k:100", "--parameters", n, "--format", "json"))[0] for n in (200, 2000)
    )
    assert (few["delta"], many["delta"]) == (pytest.approx(0.5), pytest.approx(0.05))
    assert (few["gamma"], many["gamma"]) == (1.0, pytest.approx(0.25))


def test_only_what_was_asked_for_is_shown_in_its_canonical_spelling(p2pfl):
    outcome = p2pfl("compressors", "top-k:.050+q8", "q4", "--format", "csv")
    assert [row["compressor"] for row in csv.DictReader(io.StringIO(outcome.out))] == ["top-k:0.05+q8", "q4"]


def test_a_size_that_values_decide_is_said_to_be_a_bound(p2pfl):
    lines = p2pfl("compressors", "q8", "q8+zstd").out.splitlines()
    (bound,) = [line for line in lines if "q8+zstd" in line]
    (exact,) = [line for line in lines if "q8 " in line]
    assert "at most" in bound
    assert "at least" in bound
    assert " at " not in exact


def test_every_wrong_spec_is_told_and_nothing_is_shown(p2pfl):
    outcome = p2pfl("compressors", "q3", "q4", "q8+q4", "top-k:9", "--parameters", "8")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("error: SPEC: ") == 3
    assert "(found 'top-k:9')" in outcome.err


@pytest.mark.parametrize("arguments", [["--help"], ["q4"]])
def test_torch_is_not_imported(arguments):
    program = (
        "import sys\n"
        "from p2pfl.cli.main import cli\n"
        f"cli.main(['compressors', *{arguments!r}], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
