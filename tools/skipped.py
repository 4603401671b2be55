"""Say which tests no run of `.ci/run` has carried out, and why: `python tools/skipped.py FOLDER [FILE_OR_FOLDER...]`.

FOLDER has the reports of pytest's runs (`--junitxml`). Exit code 1: one of the named tests was skipped, or none of them
was there. The last line counts each test once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

PASSED, FAILED = "passed", "failed"


def outcomes(folder: Path) -> dict[str, str]:
    """Return for each test PASSED, FAILED or why it was skipped. A run beats a skip, and a failure beats both.

    A file that was skipped as a whole counts as one test, unless another run has carried it out.
    """
    results: dict[str, str] = {}
    for report in sorted(folder.glob("*.xml")):
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own pytest
            name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
            skip = case.find("skipped")
            if skip is not None:
                results.setdefault(name, (skip.text or "").partition(": ")[2].removesuffix("')"))
            elif case.find("failure") is not None or case.find("error") is not None:
                results[name] = FAILED
            elif results.get(name) != FAILED:
                results[name] = PASSED
    ran = tuple(name for name, outcome in results.items() if outcome in {PASSED, FAILED})
    return {
        name: outcome
        for name, outcome in results.items()
        if outcome in {PASSED, FAILED} or not any(test.startswith(f"{name}.") for test in ran)
    }


def main(folder: str, *named: str) -> int:
    """Print the skipped tests, what is wrong with the named ones, and the counts."""
    results = outcomes(Path(folder))
    skipped = sorted(name for name, outcome in results.items() if outcome not in {PASSED, FAILED})
    for name in skipped:
        print(f"skipped: {name}: {results[name]}")
    faults = []
    for path in named:
        start = path.removesuffix(".py").replace("/", ".") + "."
        if any(f"{name}.".startswith(start) for name in skipped):
            faults.append(f"{path} must run here, and tests of it were skipped")
        elif not any(name.startswith(start) for name in results):
            faults.append(f"{path} must run here, and no test of it was there")
    print("\n".join(faults))
    passed, failed = (list(results.values()).count(outcome) for outcome in (PASSED, FAILED))
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
