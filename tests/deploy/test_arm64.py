"""A board with an arm64 processor, emulated: it computes the bits that this machine does, and both learn together.

It is Debian's Python for arm64 in a folder, and what `p2pfl deploy push` sends such a board.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pytest

from p2pfl import Federation

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian bookworm main\n"
SSH = """#!/bin/sh
# The board: answers as one, and keeps what it is sent.
case "$*" in *--probe*) cat >/dev/null; echo probe aarch64 3.11 2.36 4000000 ;; *) tar -x -C "${0%/*}" -f - ;; esac
"""
COMPUTE = """
import hashlib, json, platform
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from p2pfl.aggregate.rules import GeometricMedian, TrimmedMean
from p2pfl.compress.chains import EXAMPLES, make_compressor
from p2pfl.config.model import TrainingConfig
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.linear import LinearLearner
from p2pfl.learn.privacy.noise import gaussians
from p2pfl.learn.table.networks import make_gradient
from p2pfl.learn.task import NodeContext, Task

stream = lambda word, size: np.frombuffer(hashlib.shake_256(word).digest(size), np.uint8).copy()
digest = lambda *parts: [hashlib.sha256(part).hexdigest() for part in parts]
even = (stream(b"even", 280_004).view("<u4") / 2.0**31 - 1).astype(np.float32)
cubes = even * even * even
wild = stream(b"wild", 280_004).view("<f4")  # any bits: subnormal, huge
vectors = {"even": even, "heavy": cubes * cubes * cubes, "tiny": even * np.float32(1e-38), "short": cubes[:7]}
vectors |= {"wild": np.where(np.isfinite(wild), wild, 0), "ties": np.rint(even * 1000) / 2}
exact = {}
chains = ("rotate+q8", "random-k:0.1+q4", "top-k:0.1+sign", "top-k:0.3+q2+zstd")
for spec in (*EXAMPLES, *chains):
    codec = make_compressor(spec)
    for name, vector in vectors.items():
        payload = codec.encode(vector, chance=2**60 + 3)
        exact[f"{spec} {name}"] = digest(payload, codec.decode(payload, len(vector)))
offset = iter(range(10**9))
exact["privacy's noise"] = digest(gaussians(200_000, lambda size: stream(b"%d" % next(offset), size)))
exact["normal"] = digest(np.random.Generator(np.random.PCG64(5)).standard_normal(1_000_000))
models = even[:70_000].reshape(10, -1)
exact["trimmed mean"] = digest(TrimmedMean(2)(models))
near = {"geometric median": GeometricMedian(2)(models).tolist()}
x, y = models[0, :1200].reshape(200, 6), (stream(b"labels", 200) % 3).astype(np.int64)
gradient = make_gradient(SimpleNamespace(classes=["a", "b", "c"], outputs=3), None)
task = Task(name="mine", model=lambda: None, data=lambda _: ((x, y), None), layers=(6, 3), gradient=gradient)
place = NodeContext(node=0, nodes=2, name="a", seed=1, base_dir=Path())
learner = LinearLearner(task, place, TrainingConfig(learning_rate=0.1))
vector = learner.initial()
exact["a linear model's first values"] = digest(vector)
for number in range(20):
    vector = learner.train(RoundStart(vector, {}, None), number).vector
near["a linear model"] = vector.tolist()
print(json.dumps([platform.machine(), exact, near]))
"""


def call(*command, **environment):
    words, environment = [str(word) for word in command], os.environ | environment
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=500, env=environment)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A federation's folder here, that of the board, and the words and the environment for Python on the board."""
    if missing := [name for name in ("qemu-aarch64-static", "apt-get", "dpkg") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    place = tmp_path_factory.mktemp("arm64")
    for folder in ("lists/partial", "cache/archives/partial", "root", "site", "bin"):
        (place / folder).mkdir(parents=True)
    (place / "status").touch()
    (place / "sources").write_text(SOURCE, encoding="ascii")
    own = {"State": "", "State::Lists": "lists", "State::status": "status", "Cache": "cache", "Etc::SourceList": "sources"}
    options = [f"-oDir::{key}={place / name}" for key, name in own.items()] + ["-oDir::Etc::SourceParts=/dev/null"]
    options += [f"-oAPT::{word}" for word in ("Architecture=arm64", "Architectures=arm64", "Sandbox::User=root")]
    wanted = ("--no-install-recommends", "--download-only", "install", "python3.11", "libstdc++6")
    for words in ("update", "-oAPT::Update::Error-Mode=any"), ("-y", *wanted):
        if (done := call("apt-get", *options, *words)).returncode:
            pytest.skip(f"Debian's packages for arm64 cannot be had: {done.stderr.strip()[-200:]}")
    for package in (place / "cache/archives").glob("*.deb"):
        assert call("dpkg", "-x", package, place / "root").returncode == 0
    ward = place / "ward"
    Federation(task="quadratic", nodes=2, topology="path", rounds=5).save(ward)
    with (ward / "requirements.txt").open("w") as file:
        for name in ("numpy", "backports.zstd"):  # the same rounding, and the same frames
            try:
                file.write(f"{name}=={version(name)}\n")
            except PackageNotFoundError:
                continue
    (place / "bin/ssh").write_text(SSH, encoding="ascii")
    (place / "bin/ssh").chmod(0o755)
    push = [sys.executable, "-m", "p2pfl", "deploy", "push", ward, "node1=pi@board", "--torch", "none"]
    done = call(*push, PATH=f"{place / 'bin'}:{os.environ['PATH']}")
    if "pip cannot get" in done.stderr:
        pytest.skip(f"packages for aarch64 cannot be had: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    for wheel in (place / "bin/bundle/wheels").iterdir():
        zipfile.ZipFile(wheel).extractall(place / "site")
    python = ["qemu-aarch64-static", "-L", place / "root", place / "root/usr/bin/python3.11"]
    yield ward, place / "bin/federation", python, {"PYTHONPATH": str(place / "site")}
    shutil.rmtree(place)


def test_codecs_noise_and_first_values_are_the_same_bits_and_what_is_trained_is_near(board):
    """numpy's exp and products round otherwise on other processors, so what they enter is only near."""
    _, _, python, environment = board
    done = [call(sys.executable, "-c", COMPUTE), call(*python, "-c", COMPUTE, **environment)]
    assert [one.returncode for one in done] == [0, 0], done[1].stderr
    (_, here, near), (machine, there, near_there) = (json.loads(one.stdout) for one in done)
    assert machine == "aarch64"
    assert len(here) > 130
    assert [name for name in here if here[name] != there[name]] == []
    for name, values in near.items():
        np.testing.assert_allclose(near_there[name], values, rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_node_here_and_one_on_the_board_learn_together_to_the_end(board):
    ward, sent, python, environment = board
    run = ["-m", "p2pfl", "run", "--format", "json"]
    with subprocess.Popen([sys.executable, *run, ward, "--node", "node0"], stdout=subprocess.PIPE, text=True) as here:
        there = call(*python, *run, sent, "--node", "node1", **environment)
        assert there.returncode == 0, there.stderr
        last = json.loads(here.communicate(timeout=100)[0].splitlines()[-1])
    assert here.returncode == 0
    results = [json.loads((folder / "state/result.json").read_text()) for folder in (ward / "node0", sent / "node1")]
    assert [result["finished"] for result in results] == [True, True]
    assert min(result["neighbors"][0]["exchanges"] for result in results) >= 5
    assert results[0]["test_loss"] == pytest.approx(results[1]["test_loss"], rel=1e-5)
    assert last["rounds"] >= 5
