"""What `make` does with an environment that is there already, and which torch it takes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = ("env", "-u", "MAKELEVEL", "-u", "MAKEFLAGS", "-u", "TORCH")
"""Without the options and variables of the make that may run these tests."""
PIP = """#!/bin/sh
case "$*" in *" --index-url "*) echo of-cpu-index; exit {reached};; *" pip "*) echo of-pip;; esac
"""


@pytest.fixture
def make(tmp_path, run, tool):
    """Make the environment for a choice of torch in a folder of its own, without installing anything into it."""
    shutil.copy(ROOT / "Makefile", tmp_path)

    def make(choice):
        target = f".venv/.torch-{choice}"
        outcome = run(*PLAIN, tool("make"), "-C", tmp_path, target, f"TORCH={choice}", f"PYTHON={sys.executable}")
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


@pytest.fixture
def demo(tmp_path, run, tool):
    """Install what the demo needs by a pip that only says where torch comes from; give what make says."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    bin_folder, machine = tmp_path / ".venv/bin", tmp_path / "machine"
    bin_folder.mkdir(parents=True)
    machine.mkdir()
    for name in ("env", "cat", "touch", "test"):
        (machine / name).symlink_to(tool(name))

    def demo(*words, system="Linux", reached=True, programs=()):
        for folder, name, text in (
            (bin_folder, "python", PIP.format(reached=int(not reached))),
            (machine, "uname", f"#!/bin/sh\necho {system}\n"),
            *((machine, program, "#!/bin/sh\n") for program in programs),
        ):
            (folder / name).write_text(text, encoding="ascii")
            (folder / name).chmod(0o755)
        choice = next((word.partition("=")[2] for word in words if word.startswith("TORCH=")), "auto")
        (tmp_path / f".venv/.torch-{choice}").touch()
        words = ("-C", tmp_path, f".venv/.for-demo-{choice}", f"PYTHON={sys.executable}", "NVIDIA_SIGNS=", *words)
        outcome = run(*PLAIN, f"PATH={machine}", tool("make"), *words)
        said = [line for line in outcome.out.splitlines() if not line.startswith((".venv/", "make"))]
        return outcome.code, said

    return demo


NO_SIGN = "There is no sign of an NVIDIA GPU here: torch for the CPU (TORCH=default takes pip's choice)"


def test_without_a_sign_of_an_nvidia_gpu_torch_is_for_the_cpu_and_one_line_says_so(demo):
    assert demo() == (0, [NO_SIGN, "of-cpu-index", "of-pip"])


def test_where_the_index_of_cpu_builds_is_out_of_reach_pip_chooses_unless_cpu_was_asked_for(demo):
    index = "https://download.pytorch.org/whl/cpu"
    goes_on = f"That was not to be had from {index}: going on with pip's choice of torch"
    assert demo(reached=False) == (0, [NO_SIGN, "of-cpu-index", goes_on, "of-pip"])
    assert demo("TORCH=cpu", reached=False) == (2, ["of-cpu-index"])


@pytest.mark.parametrize(
    ("words", "machine"),
    [
        ((f"NVIDIA_SIGNS=/nowhere {sys.executable}",), {}),
        ((), {"programs": ["nvidia-smi"]}),
        ((), {"system": "Darwin"}),
        (("TORCH=default",), {}),
    ],
    ids=["driver", "nvidia-smi", "macOS", "asked for"],
)
def test_with_a_sign_of_a_gpu_elsewhere_than_on_linux_and_on_demand_pip_chooses(demo, words, machine):
    assert demo(*words, **machine) == (0, ["of-pip"])
