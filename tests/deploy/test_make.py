"""What `make` does with an environment that is there already."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def make(tmp_path, run, tool):
    """Make the environment for a choice of torch in a folder of its own, without installing anything into it."""
    shutil.copy(ROOT / "Makefile", tmp_path)

    def make(choice):
        target = f".venv/.torch-{choice}"
        outcome = run(tool("make"), "-C", tmp_path, target, f"TORCH={choice}", f"PYTHON={sys.executable}")
        assert outcome.code == 0, outcome.err
        assert (tmp_path / ".venv/torch-choice").read_text(encoding="ascii") == f"{choice}\n"
        return tmp_path / ".venv"

    return make


@pytest.fixture
def torch(tmp_path):
    """Stands for a torch that somebody has put into an environment that make did not make."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".venv/torch").touch()
    return tmp_path / ".venv/torch"


def test_with_torch_none_an_environment_that_make_did_not_make_is_kept(make, torch):
    make("none")
    assert torch.exists()


@pytest.mark.long
def test_an_environment_that_holds_another_choice_begins_anew(make, torch):
    (torch.parent / "torch-choice").write_text("cpu\n", encoding="ascii")
    assert (make("none") / "bin/python").exists()
    assert not torch.exists()
