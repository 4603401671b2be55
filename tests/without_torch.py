"""A plugin of pytest for an environment without torch, `-p without_torch`: what fails after it has asked for torch, or
for what comes with torch in the extra `dev`, is skipped.
"""

import re
import sys

import pytest

WANT = re.compile(r"(torch|onnx|onnxruntime|opacus|pandas)$")
SAID = re.compile(r"No module named '(torch|onnx|onnxruntime|opacus|pandas)\b|this needs torch|pip install '\.\[torch")


class Asked(list):
    def find_spec(self, name, path=None, target=None):
        if WANT.match(name):
            self.append(name)


sys.meta_path.insert(0, asked := Asked())


def skip_for_want(report, path):
    said = f"{report.longrepr}{getattr(report, 'capstdout', '')}{getattr(report, 'capstderr', '')}"
    if report.failed and (asked or SAID.search(said)):
        report.outcome, report.longrepr = "skipped", (str(path), 0, "Skipped: needs torch")
    return report


def pytest_runtest_logstart():
    asked.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return skip_for_want((yield), item.path)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    asked.clear()
    return skip_for_want((yield), collector.path)
