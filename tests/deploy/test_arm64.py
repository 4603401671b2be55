"""A board with an arm64 processor, emulated: Debian's Python in a folder, and what `p2pfl deploy push` sends there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import distributions

import numpy as np
import pytest

from p2pfl import Federation

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

DEBIAN = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main"
APT = "apt-get -y -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oAPT::Sandbox::User=root -oDir=. "
APT += "-oDir::State::status=status -oAPT::Update::Error-Mode=any --no-install-recommends --download-only "
BOARD = """#!/bin/sh
case "$*" in *--probe*) cat >/dev/null; echo probe aarch64 3.11 2.36 4000000 ;; *) tar -x -C "${0%/*}" -f - ;; esac
"""
COMPUTE = """
import hashlib, json, platform
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

stream = lambda size, word=b"": np.frombuffer(hashlib.shake_256(word).digest(size), np.uint8).copy()
digest = lambda *parts: [hashlib.sha256(part).hexdigest() for part in parts]
even, wild = (stream(280_004).view("<u4") / 2.0**31 - 1).astype("f4"), stream(280_004, b"wild").view("<f4")
heavy = even * even * even * even * even
vectors = {"even": even, "heavy": heavy, "short": heavy[:7], "subnormal": even * np.float32(1e-38)}
vectors |= {"any bits": np.where(np.isfinite(wild), wild, 0), "ties": np.rint(even * 1000) / 2}
exact = {}
for spec in (*EXAMPLES, "rotate+q8", "random-k:0.1+q4", "top-k:0.1+sign", "top-k:0.3+q2+zstd"):
    for name, vector in vectors.items():
        payload = (codec := make_compressor(spec)).encode(vector, chance=2**60 + 3)
        exact[f"{spec} {name}"] = digest(payload, codec.decode(payload, len(vector)))
models = even[:70_000].reshape(10, -1)
exact |= {"noise": digest(gaussians(200_000, stream)), "trimmed mean": digest(TrimmedMean(2)(models))}
pair = models[0, :1200].reshape(200, 6), (stream(200) % 3).astype(np.int64)
gradient = make_gradient(SimpleNamespace(classes=["a", "b", "c"], outputs=3), None)
task = Task(name="mine", model=lambda: None, data=lambda _: (pair, None), layers=(6, 3), gradient=gradient)
place = NodeContext(node=0, nodes=2, name="a", seed=1, base_dir=None)
learner = LinearLearner(task, place, TrainingConfig(learning_rate=0.1))
exact["first values"] = digest(vector := learner.initial())
for number in range(20):
    vector = learner.train(RoundStart(vector, {}, None), number).vector
near = {"geometric median": GeometricMedian(2)(models).tolist(), "linear": vector.tolist()}
print(json.dumps([platform.machine(), exact, near]))
"""


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """Of this machine and of the board: a function that runs Python there, and the federation's folder."""
    if missing := [name for name in ("qemu-aarch64-static", "apt-get", "dpkg") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    place, ward = tmp_path_factory.mktemp("arm64"), tmp_path_factory.mktemp("arm64") / "ward"
    call = partial(subprocess.run, cwd=place, capture_output=True, text=True, check=False, timeout=300)
    for folder in ("etc/apt", "var/lib/apt", "var/cache/apt"):
        (place / folder).mkdir(parents=True)
    (place / "etc/apt/sources.list").write_text(f"deb {DEBIAN}\n", encoding="ascii")
    (place / "status").touch()
    for words in "update", "install python3.11 libstdc++6":
        if (done := call([*APT.split(), *words.split()])).returncode:
            pytest.skip(f"Debian has no packages for arm64: {done.stderr[-300:]}")
    for package in (place / "var/cache/apt/archives").glob("*.deb"):
        call(["dpkg", "-x", package, "root"]).check_returncode()
    Federation(task="quadratic", nodes=2, topology="path", rounds=5).save(ward)
    same = {f"{each.name}=={each.version}\n" for each in distributions() if each.name in ("numpy", "backports.zstd")}
    (ward / "requirements.txt").write_text("".join(same), encoding="ascii")
    (place / "ssh").write_text(BOARD, encoding="ascii")
    (place / "ssh").chmod(0o755)
    push = [sys.executable, "-m", "p2pfl", "deploy", "push", ward, "node1=pi@board", "--torch", "none"]
    done = call(push, env=os.environ | {"PATH": f"{place}:{os.environ['PATH']}"})
    if "pip cannot get" in done.stderr:
        pytest.skip(f"there are no packages for aarch64: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    for wheel in (place / "bundle/wheels").iterdir():
        zipfile.ZipFile(wheel).extractall(place / "site")
    python = ["qemu-aarch64-static", "-L", "root", "root/usr/bin/python3.11"]
    environment = os.environ | {"PYTHONPATH": str(place / "site")}
    yield [
        (lambda *words: call([sys.executable, *words]), ward),
        (lambda *words: call([*python, *words], env=environment), place / "federation"),
    ]
    shutil.rmtree(place)


def test_codecs_noise_and_first_values_are_the_same_bits_and_what_is_trained_is_near(board):
    """Exponentials and products of matrices are rounded otherwise on other processors: what they enter is near."""
    done = [run("-c", COMPUTE) for run, _ in board]
    assert [one.returncode for one in done] == [0, 0], done[1].stderr
    (_, here, near), (machine, there, near_there) = (json.loads(one.stdout) for one in done)
    assert (machine, len(here)) == ("aarch64", len(there))
    assert [name for name in here if here[name] != there[name]] == []
    for name, values in near.items():
        np.testing.assert_allclose(near_there[name], values, rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_node_here_and_one_on_the_board_learn_together_to_the_end(board):
    nodes = [(*each, name) for each, name in zip(board, ("node0", "node1"), strict=True)]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda each: each[0]("-m", "p2pfl", "run", each[1], "--node", each[2]), nodes))
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    both = [json.loads((folder / name / "state/result.json").read_text("utf-8")) for _, folder, name in nodes]
    assert [result["finished"] for result in both] == [True, True]
    assert min(result["neighbors"][0]["exchanges"] for result in both) >= 5
    assert both[0]["test_loss"] == pytest.approx(both[1]["test_loss"], rel=1e-6)
