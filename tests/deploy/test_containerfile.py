"""The Containerfile: its steps run as a script below an empty folder; and, where engines are, three containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from ports import free_ports

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def steps(deploy):
    """Each instruction as (name, rest)."""
    text = (deploy / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line and not line.startswith("#")]


def test_it_copies_what_a_wheel_needs_and_no_more(steps):
    copied = {name for step, rest in steps if step == "COPY" for name in shlex.split(rest)[:-1]}
    assert copied == {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "NOTICE",
        "tools/metadata.py",
        "deploy/install.sh",
        "deploy/p2pfl@.service",
        "p2pfl",
        "topologies",
        "sim",
    }
    assert all((ROOT / name).exists() for name in copied)


def test_it_starts_a_node_of_the_mounted_federation_and_stops_it_by_ctrl_c(steps):
    (entry,) = [rest for step, rest in steps if step == "ENTRYPOINT"]
    assert entry == '["/opt/p2pfl/bin/p2pfl", "run", "/federation"]'
    assert ("STOPSIGNAL", "SIGINT") in steps
    assert ("VOLUME", "/federation") in steps


@pytest.mark.long
@pytest.mark.timeout(600)
def test_its_steps_give_a_node_that_knows_its_federation(steps, run, tmp_path, make_five_boards):
    """Without torch; `python` is the one that runs the tests, and the image's root is a folder."""
    root = tmp_path / "root"
    script = ["set -eu", "TORCH=", "TORCH_INDEX=", "VERSION=", f'python() {{ "{sys.executable}" "$@"; }}']
    for step, rest in steps:
        if step == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                where = root / target.strip("/") / (Path(source).name if target.endswith("/") else "")
                where.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, where)
        elif step == "RUN":
            script.append(re.sub(r"(?<![\w.])(/opt|/src)\b", rf"{root}\1", rest))
    (root / "opt").mkdir()
    done = subprocess.run(
        ["sh", "-c", "\n".join(script)], cwd="/", capture_output=True, text=True, timeout=500, check=False
    )
    no_index = [sys.executable, "-m", "pip", "download", "-d", tmp_path, "--no-deps", "hatchling"]
    if done.returncode != 0 and run(*no_index).code:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    command = root / "opt/p2pfl/bin/p2pfl"
    five = make_five_boards(root / "federation")
    assert "Run one node of a federation" in run(command, "run", "--help").out
    assert "no mistakes" in run(command, "check", five, env={"PYTHONPATH": ""}).out


def call(*words, may_fail=False):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        said = f"{words[0]}: {done.stderr[-2000:] or done.stdout[-2000:]}"
        pytest.skip(said) if may_fail else pytest.fail(said)
    return done.stdout


@pytest.fixture
def base(tool, tmp_path):
    """A folder with the root of a Debian that has the Python of the Containerfile's base."""
    tool("debootstrap")
    if os.geteuid():
        pytest.skip("only root may make a Debian in a folder")
    wanted = ("--variant=minbase", "--include=python3-venv,python-is-python3")
    call("debootstrap", *wanted, "trixie", tmp_path / "base", may_fail=True)
    return tmp_path / "base"


@pytest.fixture
def pip_options(base, tmp_path):
    """Mounts from which pip in the image takes what it needs, since only this machine's pip knows how to get it."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needs = about["project"]["dependencies"] + about["project"]["optional-dependencies"]["lan"]
    needs = [need.partition(";")[0] for need in needs + about["build-system"]["requires"]]
    version = call("chroot", base, "python", "-c", "import platform; print(platform.python_version())").strip()
    wanted = ("--only-binary", ":all:", "--python-version", version, "--dest", tmp_path / "wheels")
    call(sys.executable, "-m", "pip", "download", "--quiet", *wanted, *needs, may_fail=True)
    (tmp_path / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n", encoding="ascii")
    mounts = {"wheels": "/wheels", "pip.conf": "/etc/pip.conf"}
    return [f"--volume={tmp_path / source}:{target}:ro" for source, target in mounts.items()]


@pytest.fixture
def engine(tool):
    """Return a call of buildah, and the start of a command of podman, with one store of images."""
    buildah, podman, runtime = tool("buildah"), tool("podman"), tool("runc")
    with tempfile.TemporaryDirectory(prefix="store") as store:  # podman takes short paths only
        images = (f"--root={store}/root", f"--runroot={store}/run", "--storage-driver=vfs")
        # Also where root may raise no limit, and its groups of processes are of either version.
        start = (podman, *images, f"--runtime={runtime}", "--cgroup-manager=cgroupfs", "run", "--rm", "--network=host")
        limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")
        yield lambda *words: call(buildah, *images, *words).strip(), (*start, *limits)


@pytest.fixture
def ward(tmp_path):
    """A federation that needs no torch: trees, of three tables."""
    tables = tmp_path / "tables"
    tables.mkdir()
    for name, step in (("north", 7), ("south", 11), ("west", 13)):
        ages = [20 + step * number % 60 for number in range(90)]
        rows = [f"{age},{age % 7},{int(age > 50)}" for age in ages]
        (tables / f"{name}.csv").write_text("\n".join(["age,dose,outcome", *rows]) + "\n", encoding="ascii")
    options = ("--task", "csv", *sorted(tables.iterdir()), "--target", "outcome", "--base-port", free_ports(3)[0])
    call(sys.executable, "-m", "p2pfl", "new", tmp_path / "ward", *options)
    file = tmp_path / "ward/federation.toml"
    text = file.read_text("utf-8").replace('# model = "linear"', 'model = "trees"').replace("rounds = 40", "rounds = 5")
    file.write_text(text, encoding="utf-8")
    return (f"--volume={tmp_path / 'ward'}:/federation", f"--volume={tables}:{tables}:ro")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_three_containers_of_one_image_learn_to_the_end(engine, base, pip_options, ward, deploy):
    buildah, start = engine
    working = buildah("from", "scratch")
    buildah("add", "--quiet", working, base, "/")
    buildah("commit", "--quiet", "--rm", working, "base")
    options = ("--isolation=chroot", "--from=localhost/base", "--build-arg=TORCH=", "--build-arg=VERSION=v1.2.3+4-gabc")
    buildah("bud", *options, *pip_options, "-f", deploy / "Containerfile", "-t", "node", ROOT)
    assert call(*start, "--entrypoint=/opt/p2pfl/bin/p2pfl", "node", "--version") == "p2pfl 1.2.3+4.gabc\n"
    nodes = [
        subprocess.Popen([*start, *ward, "node", "--node", name, "--format", "json"], stdout=subprocess.PIPE)
        for name in ("north", "south", "west")
    ]
    last = [json.loads(node.communicate(timeout=300)[0].splitlines()[-1]) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0, 0]
    assert [line["phase"] for line in last] == ["finished"] * 3
    assert min(line["metrics"]["auc"] for line in last) > 0.9
