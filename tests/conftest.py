"""What holds for all tests."""

import gc
import os
import signal
from typing import NamedTuple

# Threads of the linear algebra on top of busy processes make small matrices many times slower. Before numpy is there.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


# A shell that starts the suite in the background has it ignore Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import faces  # noqa: F401 - tests import names from packages
import pytest
from hypothesis import HealthCheck, settings

from p2pfl.cli.main import main

# Modules and collected tests are kept: a search for garbage among them finds nothing, and takes a tenth of the time.
gc.disable()

# No test asserts a time: examples of a property have no deadline, and may be slow to come by.
# `make test` looks at a few examples of each property, `make test-all` at more: `--hypothesis-profile=thorough`.
THOROUGH = settings(settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=THOROUGH)
settings.register_profile("few", parent=THOROUGH, max_examples=12)
settings.load_profile("few")


def pytest_collection_finish() -> None:
    """Thousands of collected tests live as long as the process: no later collection of garbage looks through them."""
    gc.collect()
    gc.freeze()
    gc.enable()


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def p2pfl(capsys, tmp_path, monkeypatch):
    """The command line as a user has it, in the test's folder: arguments in; exit code, stdout and stderr out."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def p2pfl(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        return Outcome(caught.value.code, *capsys.readouterr())

    yield p2pfl
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _whole_core(monkeypatch):
    """What this machine leaves a test's process is not what its strangers are charged."""
    monkeypatch.setattr("p2pfl.net.limits.core_share", lambda: lambda: 1.0)
