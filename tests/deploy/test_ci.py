"""`.ci/run`: what it fetches and runs where, and what it says of skipped tests."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIP = "<skipped>a.py:1: no browser</skipped>"
FAKE = """#!/bin/sh
case "$(basename "$0") $*" in id*) echo 0;; *" -c "*) echo python3;; *) echo "$(basename "$0") $*";; esac
case "$*" in *chromium*) exit 1;; esac
"""


@pytest.fixture
def skipped(tmp_path, run):
    """Say what was skipped in two runs of pytest; in the second, outcomes are those of the tests b.two and c.three."""
    cases = ("a.one", SKIP), ("b", SKIP), ("c.three", "<failure/>")
    for name, outcomes in ("all", cases), ("others", (("b.two", ""), ("c.three", ""))):
        tests = ((*test.rpartition(".")[::2], outcome) for test, outcome in outcomes)
        lines = (f'<testcase classname="{file}" name="{test}">{outcome}</testcase>' for file, test, outcome in tests)
        (tmp_path / f"{name}.xml").write_text(f"<testsuites>{''.join(lines)}</testsuites>", encoding="utf-8")
    return lambda *named: run(sys.executable, ROOT / "tools/skipped.py", tmp_path, *named)


@pytest.mark.parametrize(
    ("named", "faults"),
    [
        (("b.py", "c.py"), []),
        (("a.py",), ["a.py must run here, and tests of it were skipped"]),
        (("b.py", "x"), ["x must run here, and no test of it was there"]),
    ],
)
def test_a_test_counts_once_and_a_named_one_that_no_run_carries_out_is_a_failure(skipped, named, faults):
    outcome = skipped(*named)
    lines = ["skipped: a.one: no browser", *faults, "1 passed, 1 failed, 1 skipped"]
    assert (outcome.code, [line for line in outcome.out.splitlines() if line]) == (1 if faults else 0, lines)


@pytest.mark.parametrize(("ci", "fetches"), [("", False), ("true", True)])
def test_only_as_root_in_ci_programs_are_fetched_and_one_that_is_not_to_be_had_is_named(tmp_path, run, ci, fetches):
    (tmp_path / ".venv/beside/lib/python3/site-packages").mkdir(parents=True)
    for name in (".venv/bin/python", ".venv/beside/bin/python", "machine/make", "machine/apt-get", "machine/id"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FAKE, encoding="ascii")
        file.chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    outcome = run("env", f"CI={ci}", f"PATH={tmp_path}/machine:/usr/bin:/bin", "bash", tmp_path / ".ci/run")
    assert outcome.code == 0, outcome.err
    said = outcome.out.splitlines()
    assert [line for line in said if "could not" in line] == ["ci: could not install chromium"] * fetches
    assert ("apt-get install caddy chromium " in said[0]) is not fetches
    assert "make lint" in said
    assert said[-1].startswith("python tools/skipped.py /")
    assert said[-1].endswith(" tests/net/test_browser.py") is fetches


def test_what_it_names_exists():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    named = re.findall(r"tests/[\w./]+", script)
    assert "tests/adapt" in named
    assert [path for path in named if not (ROOT / path).exists()] == []
