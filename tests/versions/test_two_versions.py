"""A federation of real processes is upgraded node by node, and one node goes back; nothing is lost.

The old code comes out of git's history: the commit with which version 9 of the protocol began, the last one before
relays, TLS and proxies, the first one with them, and the last one in which `train` had no bound.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from old_code import BEFORE_RELAYS, FIRST_OF_9, FIRST_RELAYS, ONLY_MIXES, ROOT, TRAINS_ON, command, take_out, why_not
from ports import free_ports
from pushes_kit import pushes

from p2pfl.compress import make_compressor
from p2pfl.config.load import load_config
from p2pfl.engine.changes import ReplyWasApplied, redo
from p2pfl.engine.state import Codecs
from p2pfl.methods import Method
from p2pfl.node.assembly import replay
from p2pfl.storage import peek

DEADLINE_S = 200.0
SLOW = {"takes-no-part", "neighbor-lost", "relay-lost"}
"""The alarms about who has been away for long."""
PARTS = 4
LAST = 100
"""The rounds that move models; after that all wait for the file `go`."""

PUSHES = pushes(LAST, 0.05)


class Ward:
    """One federation on this machine. Each node runs the code of `trees` that it was started with last."""

    def __init__(self, folder, trees):
        self.folder, self.trees = folder / "ward", trees
        self.running, self.logs, self._count = {}, {}, 0

    def new(self, version, *options):
        """Make the federation with that version, as it was made when the version was new."""
        port = free_ports(PARTS)[0]
        words = ("new", self.folder, "--nodes", PARTS, "--topology", "hypercube", "--base-port", port, *options)
        # elsewhere than in this checkout: `python -m` would find today's code here first
        elsewhere = self.folder.parent
        subprocess.run(command(*words), env=self._env(version), cwd=elsewhere, check=True, capture_output=True)
        (self.folder / "pushes.py").write_text(PUSHES, encoding="utf-8")
        file = self.folder / "federation.toml"
        text = file.read_text(encoding="utf-8")
        values = {"rounds": LAST, "linger_s": 30.0, "method": "plain", "compressor": "q4"}
        for key, value in values.items():
            text, times = re.subn(rf"(?m)^(# )?{key} = .*$", f"{key} = {json.dumps(value)}", text, count=1)
            assert times == 1
        text, times = re.subn(r'(?m)^name = "task.py:task".*$', 'name = "pushes.py:task"', text, count=1)
        assert times == 1
        file.write_text(text, encoding="utf-8")

    def start(self, version, *nodes):
        for node in nodes:
            self._count += 1
            ends = [self.folder.parent / f"node{node}.{self._count}.{end}" for end in ("out", "err")]
            words = command("run", self.folder, "--node", f"node{node}", "--format", "json", "-v")
            with ends[0].open("w") as out, ends[1].open("w") as err:
                process = subprocess.Popen(words, env=self._env(version), stdout=out, stderr=err, cwd=self.folder)
            self.running[node], self.logs[node] = process, ends

    def start_relay(self, version, port):
        """Start the relay, in place of the one that runs."""
        if "relay" in self.running:
            before = self.running.pop("relay")
            before.kill()
            before.wait(DEADLINE_S)
        ends = [self.folder.parent / f"relay-{version}.{end}" for end in ("out", "err")]
        words = command("relay", "--listen", f"127.0.0.1:{port}", "--token", self.folder / "relay.token")
        with ends[0].open("a") as out, ends[1].open("a") as err:
            self.running["relay"] = subprocess.Popen(words, env=self._env(version), stdout=out, stderr=err)
        self.logs["relay"] = ends

    def stop(self, node, *, with_signal=signal.SIGTERM):
        self.running[node].send_signal(with_signal)
        code = self.running[node].wait(DEADLINE_S)
        assert code == (130 if with_signal == signal.SIGTERM else -with_signal), self.log(node)

    def change(self, version, node, **how):
        """Stop a node, and start it with another version on the same folder."""
        self.stop(node, **how)
        self.start(version, node)
        self.until(lambda: "resuming after round" in self.log(node))

    def log(self, node):
        return self.logs[node][1].read_text(encoding="utf-8")

    def rounds(self, node):
        whole = self.logs[node][0].read_text(encoding="utf-8").rpartition("\n")[0]
        return json.loads(whole.splitlines()[-1])["rounds"] if whole else 0

    def go_on(self, rounds):
        """Wait until all have done so many rounds more than the slowest has now, or wait for `go`."""
        least = min(LAST - 5, rounds + min(self.rounds(node) for node in range(PARTS)))
        self.until(lambda: min(self.rounds(node) for node in range(PARTS)) >= least)

    def until(self, condition):
        end = time.monotonic() + DEADLINE_S
        while not condition():
            for node, process in self.running.items():
                assert process.poll() is None, self.log(node)
            assert time.monotonic() < end, [self.log(node) for node in range(PARTS)]
            time.sleep(0.05)

    def result(self, node):
        return json.loads((self.folder / f"node{node}" / "state" / "result.json").read_text(encoding="utf-8"))

    def _env(self, version):
        return {**os.environ, "PYTHONPATH": str(self.trees[version]), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def ward(tmp_path, request):
    commit = request.param
    if (reason := why_not(commit)) is not None:
        pytest.skip(f"needs the code of the version before: {reason}")
    made = Ward(tmp_path, {"old": take_out(commit, tmp_path / "old"), "new": ROOT})
    yield made
    for process in made.running.values():
        if process.poll() is None:
            process.kill()
            process.wait(DEADLINE_S)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ward", [FIRST_OF_9, BEFORE_RELAYS], indirect=True, ids=["first of 9", "before relays"])
def test_nodes_are_upgraded_one_by_one_and_one_goes_back_while_all_learn(ward):
    ward.new("old")
    ward.start("old", *range(PARTS))
    ward.go_on(3)
    ward.change("new", 0)
    ward.go_on(3)
    ward.change("new", 3, with_signal=signal.SIGKILL)
    ward.go_on(3)
    ward.change("old", 0)
    ward.go_on(3)
    for node in (0, 1, 2):
        ward.change("new", node)
        ward.go_on(3)
    ward.change("old", 1, with_signal=signal.SIGKILL)
    ward.go_on(3)
    check_the_end(ward)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ward", [FIRST_RELAYS], indirect=True, ids=["first relays"])
def test_a_relay_and_its_members_may_have_different_versions(ward):
    (port,) = free_ports(1)
    ward.new("old", "--relay", f"ws://127.0.0.1:{port}")
    ward.start_relay("old", port)
    ward.start("old", 0, 3)
    ward.start("new", 1, 2)
    ward.go_on(5)
    ward.start_relay("new", port)
    ward.go_on(5)
    ward.change("new", 0)
    ward.go_on(5)
    ward.start_relay("old", port)
    ward.go_on(5)
    check_the_end(ward)


@pytest.mark.long
@pytest.mark.skipif(
    why_not(ONLY_MIXES) is not None, reason=f"needs the code of the version before: {why_not(ONLY_MIXES)}"
)
def test_a_version_before_refuses_closing_rounds_that_train_in_one_sentence_and_agrees_without(tmp_path):
    old, ward = take_out(ONLY_MIXES, tmp_path / "old"), tmp_path / "ward"
    made = subprocess.run(
        command("new", ward, "--task", "digits"), cwd=ROOT, capture_output=True, check=False, text=True
    )
    assert made.returncode == 0, made.stderr
    told = {}
    for name, code in (("old", old), ("new", ROOT)):
        places = {"old": "federation_id", "new": "charter"}
        script = f"from p2pfl.config.load import load_config; from p2pfl.config.{places[name]} import federation_id\n"
        script += f"print(federation_id(load_config({str(ward)!r})).hex())"
        environment = {**os.environ, "PYTHONPATH": str(code)}
        told[name] = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=True, text=True
        ).stdout
    assert told["old"] == told["new"]
    file = ward / "federation.toml"
    file.write_text(
        file.read_text(encoding="utf-8").replace('# closing = "mix"', 'closing = "train"'), encoding="utf-8"
    )
    refused = subprocess.run(
        command("run", ward, "--node", "node0"),
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(old)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert refused.returncode == 2
    assert "training.closing" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ward", [TRAINS_ON], indirect=True, ids=["trains on"])
def test_beside_slow_nodes_one_of_before_trains_on_and_one_of_today_fifteen_rounds_more(ward):
    ward.new("old")
    file, task = ward.folder / "federation.toml", ward.folder / "pushes.py"
    file.write_text(file.read_text(encoding="utf-8").replace(f"rounds = {LAST}", "rounds = 20"), encoding="utf-8")
    pause = "time.sleep(0.02 if self.node < 2 else 0.5)"
    task.write_text(task.read_text(encoding="utf-8").replace("time.sleep(0.05)", pause), encoding="utf-8")
    (ward.folder / "go").touch()
    ward.start("old", 0, 2)
    ward.start("new", 1, 3)
    for node in range(PARTS):
        assert ward.running[node].wait(DEADLINE_S) == 0, ward.log(node)
    results = [ward.result(node) for node in range(PARTS)]
    assert all(result["finished"] for result in results)
    assert results[0]["rounds_beyond"] > 20
    assert 0 < results[1]["rounds_beyond"] <= 15
    assert max(result["rounds_beyond"] for result in results[2:]) <= 2
    assert {kind for result in results for kind in result["alarms"]} <= SLOW


def check_the_end(ward):
    """Let all nodes end; check that none had a reason to complain."""
    (ward.folder / "go").touch()
    for node in range(PARTS):
        assert ward.running[node].wait(DEADLINE_S) == 0, ward.log(node)
    for node in range(PARTS):
        result = ward.result(node)
        assert result["finished"]
        assert result["alarms"].keys() <= SLOW, "on a busy machine a start takes seconds"
        assert [neighbor["resyncs"] for neighbor in result["neighbors"]] == [0, 0]
        assert [neighbor["faults"] for neighbor in result["neighbors"]] == [{}, {}]
        assert "Traceback" not in ward.log(node)
    check_nothing_is_lost(ward.folder)


def check_nothing_is_lost(folder):
    """Both ends of each edge hold the same bits, and the weighted sum of all models is that of the beginning."""
    federation = load_config(folder)
    codecs = Codecs(make_compressor(federation.gossip.compressor))
    states = [replay(peek(folder / member.name / "state")) for member in federation.members]
    for low, high in federation.edges:
        ours, theirs = states[low].edges[high], states[high].edges[low]
        if ours.record.pending is not None and theirs.record.seq == ours.record.pending.seq:
            applied = ReplyWasApplied(peer=high, reply=theirs.record.reply, chain=theirs.record.chain)
            redo(states[low], applied, codecs=codecs, method=Method())
        assert ours.record.seq == theirs.record.seq > 0
        assert ours.record.chain == theirs.record.chain
        np.testing.assert_array_equal(ours.own, theirs.peer)
        np.testing.assert_array_equal(ours.peer, theirs.own)
    counts = [10.0 * (index + 1) for index in range(PARTS)]
    begun = [np.random.default_rng([7, index]).standard_normal(24).astype(np.float32) for index in range(PARTS)]
    wanted = sum(n * x.astype(np.float64) for n, x in zip(counts, begun, strict=True))
    found = sum(n * state.model.astype(np.float64) for n, state in zip(counts, states, strict=True))
    np.testing.assert_allclose(found, wanted, atol=0.02)
