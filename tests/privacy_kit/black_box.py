"""What can be done and seen from outside: commands, files, bytes on the wire, what a member opens of its sessions.

Nothing here imports p2pfl. Formats are those of docs/reference/protocol.md and protocol-sums.md.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import msgspec
import numpy as np
from scipy import stats

KIT = Path(__file__).parent
P2PFL = [sys.executable, "-m", "p2pfl"]
WAIT_S = 900.0
REQUEST, SIDE = 2, 12
PREFIX = struct.Struct("<2sBBHIQ")
TASK = '''"""Each entry of a row moves a weight of its own, so a row that is there shows in the model."""
import numpy as np
import torch
from p2pfl import Task

def data(node):
    rows = torch.from_numpy(np.load(node.path()))
    return (rows, torch.ones(len(rows))), None

def model():
    layer = torch.nn.Linear({width}, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    return torch.nn.Sequential(layer)

def loss(outputs, targets):
    return -(outputs.squeeze(1) * targets).mean()

task = Task(model=model, data=data, loss=loss)
'''


def environment(tap=None):
    """Give the variables of a command; `tap` is the file of what it opens of its sessions."""
    path = [str(KIT.parents[1])] if tap is None else [str(KIT / "tap"), str(KIT.parents[1])]
    own = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | own | ({} if tap is None else {"PRIVACY_KIT_TAP": str(tap)})


def p2pfl(*words):
    """Run a command to its end."""
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    command = [*P2PFL, *map(str, words)]
    return subprocess.run(command, env=environment(), **pipes, timeout=WAIT_S, check=False)


def well(*words):
    done = p2pfl(*words)
    if done.returncode:
        raise RuntimeError(f"p2pfl {' '.join(map(str, words))}: {done.stderr[-500:]}")
    return done.stdout


def wait_for(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.05)


class Ward:
    """A federation on this machine that `p2pfl new` makes, edited as a person would."""

    def __init__(self, folder, nodes, *words):
        self.folder, self.file = folder, folder / "federation.toml"
        self.names = [f"node{index}" for index in range(nodes)] if isinstance(nodes, int) else list(nodes)
        self.first_port = int(np.random.default_rng().integers(15_000, 30_000))
        well("new", folder, "--nodes", ",".join(self.names), "--base-port", self.first_port, *words)
        self.logs = folder.parent / f"{folder.name}-logs"
        self.logs.mkdir()

    def set(self, **values):
        text = self.file.read_text(encoding="utf-8")
        for key, value in values.items():
            text, times = re.subn(rf"(?m)^(# ?)?{key} = \S.*$", f"{key} = {json.dumps(value)}", text, count=1)
            text = text if times else text.replace("[training]\n", f"[training]\n{key} = {json.dumps(value)}\n")
        self.file.write_text(text, encoding="utf-8")

    def add(self, text, node=None):
        """Add lines to federation.toml, or to a node's file."""
        file = self.file if node is None else self.folder / node / "node.toml"
        file.write_text(f"{file.read_text(encoding='utf-8')}\n{text}\n", encoding="utf-8")

    def rows(self, tables, **training):
        """Give node k the k-th table, and all the model that shows rows."""
        (self.folder / "task.py").write_text(TASK.format(width=tables[0].shape[1]), encoding="utf-8")
        for name, table in zip(self.names, tables, strict=True):
            np.save(self.folder / name / "rows.npy", table.astype(np.float32))
            self.add('path = "rows.npy"', name)
        usual = {"local_steps": 1, "learning_rate": 1.0, "method": "plain", "closing_rounds": 1, "compressor": "none"}
        self.set(**usual | training)

    @contextmanager
    def running(self, taps=()):
        """All nodes; what those in `taps` open is kept. None outlives the block."""
        nodes = {}
        try:
            for name in self.names:
                words = "run", self.folder, "--node", name, "--format", "json", "-v"
                out, err, tap = (self.logs / f"{name}.{kind}" for kind in ("out", "err", "tap"))
                with out.open("wb") as out, err.open("wb") as err:
                    own = environment(tap if name in taps else None)
                    nodes[name] = subprocess.Popen([*P2PFL, *words], env=own, stdout=out, stderr=err)
            yield nodes
        finally:
            for process in nodes.values():
                process.kill()
                process.wait()

    def run(self, taps=()):
        """Let all nodes run to their end."""
        with self.running(taps) as nodes:
            for name, process in nodes.items():
                if process.wait(WAIT_S):
                    raise RuntimeError(f"{name}: {(self.logs / f'{name}.err').read_text()[-500:]}")

    def rounds(self, name):
        lines = (self.logs / f"{name}.out").read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
        return max((json.loads(line)["rounds"] for line in lines), default=0)

    def frames(self, name):
        return frames((self.logs / f"{name}.tap").read_bytes())

    def pages(self, name, *paths):
        """What the node's status page shows."""
        file = self.folder / name / "state" / "address.json"
        wait_for(file.exists, f"the page of {name}")
        place = json.loads(file.read_text(encoding="utf-8"))["status"]
        return [urlopen(f"http://{place}{path}", timeout=10).read() for path in paths]


class Frame(NamedTuple):
    stream: int
    type: int
    header: list
    body: bytes


def frames(content):
    """Read what a tapped node got; a Side has channel and message as its header."""
    offset, unfinished, found = 0, {}, []
    while offset + 12 <= len(content):
        stream, size = struct.unpack_from("<QI", content, offset)
        chunk = content[offset + 12 : offset + 12 + size]
        offset += 12 + size
        if stream in unfinished:
            frame, left = unfinished.pop(stream)
            frame, left = frame._replace(body=frame.body + chunk), left - size
        elif chunk[:2] == b"p2" and size >= PREFIX.size:
            _, _, kind, flags, header, body = PREFIX.unpack_from(chunk)
            start = PREFIX.size + header
            fields = msgspec.msgpack.decode(chunk[PREFIX.size : start])
            if kind == SIDE:
                fields = [fields[0], msgspec.msgpack.decode(fields[1])]
            frame, left = Frame(stream, kind, fields, chunk[start:]), 0 if flags else body - (size - start)
        else:
            continue  # a notice, a heartbeat
        if left > 0:
            unfinished[stream] = frame, left
        else:
            found.append(frame)
    return found


def models(got):
    """Give (version, weight, model) of all Requests by stream: the replica `h` of the compressor none."""
    found, last = defaultdict(list), {}
    for frame in got:
        if frame.type == REQUEST and frame.body:
            incarnation, number, version, _, weight = frame.header[:5]
            before = last.get(frame.stream, (None, None, 0.0))
            if before[:2] != (incarnation, number):
                replica = np.frombuffer(frame.body, "<f4") + (before[2] if before[0] == incarnation else 0.0)
                last[frame.stream] = incarnation, number, replica
                found[frame.stream].append((version, weight, replica))
    return list(found.values())


def messages(got, channel, tag):
    sides = [frame.header for frame in got if frame.type == SIDE]
    return [message for name, message in sides if name == channel and message[0] == tag]


def members(bits):
    """Give the members of a set."""
    return frozenset(8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1)


def leaves(told, name=None):
    """Give (key, value) of all that is nested in JSON or msgpack."""
    if isinstance(told, dict):
        return [leaf for key, value in told.items() for leaf in leaves(value, key)]
    return [leaf for value in told for leaf in leaves(value, name)] if isinstance(told, list) else [(name, told)]


def uniformity(content):
    """Give the probability that random bytes look less uniform: chi-square of 256 values."""
    return float(stats.chisquare(np.bincount(np.frombuffer(content, np.uint8), minlength=256)).pvalue)


def epsilon_proven(scores, included, delta, guesses):
    """Give the epsilon that one run proves with 95% confidence, and the number of right guesses.

    Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, theorem 5.2: of m rows, each there by a fair coin, those with
    the `guesses` most extreme scores are guessed.
    """
    order, m = np.argsort(scores), len(scores)
    right = int((~included[order[: guesses // 2]]).sum() + included[order[m - (guesses + 1) // 2 :]].sum())
    low, high = 0.0, 30.0
    for _ in range(30):
        middle = (low + high) / 2
        as_many = stats.binom(guesses, 1 / (1 + np.exp(-middle)))
        steps = np.arange(1, right + 1)
        near = (as_many.cdf(right - 1) - as_many.cdf(right - 1 - steps)) / steps
        chance = as_many.sf(right - 1) + 2 * m * delta * near.max(initial=0.0)
        low, high = (middle, high) if chance < 0.05 else (low, middle)
    return low, right


class Wire:
    """A man on the wire: passes on what comes to `port` to the node at `to`, and keeps the bytes of all ways."""

    def __init__(self, to):
        self.to, self.ways, self.server = to, [], socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            caller, _ = self.server.accept()
            try:
                callee = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                caller.close()
                continue
            for source, target in ((caller, callee), (callee, caller)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source, target):
        self.ways.append(kept := bytearray())
        with suppress(OSError):
            while content := source.recv(1 << 16):
                kept += content
                target.sendall(content)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
