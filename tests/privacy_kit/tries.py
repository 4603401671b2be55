"""Try each promise of promises.txt: `make privacy`, or `python tests/privacy_kit/tries.py epsilon wire` for some.

A try gets an empty folder and yields (promise, kept, figure). Exit code 1: a promise is broken, or a try failed.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import black_box as box
import numpy as np

ROWS, DELTA = 1000, 1e-5
PRIVACY = f"[privacy]\nepsilon = 2\ndelta = {DELTA}\n"
MARK = 31337.71875
"""The one number in private rows: what looks like it came from them."""
MARKS = (b"31337.7", np.float32(MARK).tobytes(), np.float64(MARK).tobytes())
SCORES = {"loss", "train_loss", "test_loss", "accuracy", "local_accuracy", "local_loss", "classes"}


class Promise(NamedTuple):
    name: str
    page: str
    sentence: str
    how: str


def promises():
    """Read those that are tried, and those that are not."""
    text = (box.KIT / "promises.txt").read_text(encoding="utf-8").partition("\n")[2]
    return [[Promise(*line.split(" | ")) for line in part.strip().splitlines()] for part in text.split("\n\n")]


def canaries(rows=ROWS):
    """Draw which rows are there, and the table: row k moves weight k alone; one that is not there is empty."""
    included = np.frombuffer(os.urandom(rows), np.uint8) % 2 == 1
    return included, np.diag(np.where(included, MARK, 0.0))


def empty(rows=ROWS):
    return np.zeros((rows, rows))


def marks(*contents):
    return sum(content.count(mark) for content in contents for mark in MARKS)


def audited(folder, text="", **training):
    """Let a node learn the canaries; give what its neighbor proves, all that it got, and the federation."""
    ward, (included, table) = box.Ward(folder, 2, "--topology", "complete"), canaries()
    ward.rows([table, empty()], **{"rounds": 1, "batch_size": ROWS} | training)
    if text:
        ward.add(text)
        box.well("privacy", "begin", folder)
    ward.run(taps=("node1",))
    got = ward.frames("node1")
    first = next(model for version, _, model in box.models(got)[0] if version >= 1)
    epsilon, right = box.epsilon_proven(first, included, DELTA, ROWS // 5)
    return epsilon, f"{epsilon:.2f} proven, {right} of {ROWS // 5} right", got, ward


def epsilon(folder):
    epsilon, figure, _, plain = audited(folder / "none")
    yield "control: no budget", epsilon > 4, figure
    plain.add(PRIVACY)
    commands = ("privacy", "begin", plain.folder), ("run", plain.folder, "--node", "node0")
    codes = [box.p2pfl(*words).returncode for words in commands]
    yield "an unpaid model", codes == [2, 2], f"exit codes {codes}"
    epsilon, figure, got, ward = audited(folder / "one", PRIVACY)
    yield "epsilon 2, one step", epsilon < 2, figure
    before = list(itertools.takewhile(lambda one: one.type != box.REQUEST or one.header[2] < 1, got))
    early, seen = [one.body for one in before if one.body], marks(*(repr(one.header).encode() for one in before))
    other = sum(any(body) for body in early)
    figure = f"{len(early)} models, {other} not the common start; {seen} marks in {len(before)} messages"
    yield "noise before anything", not other and not seen, figure
    weights = {weight for found in box.models(got) for _, weight, _ in found}
    seen = marks(*(file.read_bytes() for file in (*ward.logs.iterdir(), *ward.folder.glob("*/state/result.json"))))
    yield "rows only as a number", weights == {ROWS / 2} and not seen, f"weights {weights} of {ROWS} rows, {seen} marks"
    epsilon, figure, *_ = audited(folder / "many", PRIVACY, local_steps=20, batch_size=100)
    yield "epsilon 2, 20 sampled steps", epsilon < 2, figure


def hidden(folder):
    ward = box.Ward(folder / "hidden", 6, "--topology", "complete", "--hide-models")
    groups, counts = (frozenset({0, 1, 2}), frozenset({3, 4, 5})), [1009 + 31 * index for index in range(6)]
    chance = np.random.default_rng()
    ward.rows([chance.normal(size=(rows, 500)) for rows in counts], rounds=60, learning_rate=0.01)
    with ward.running(taps=("node0", "node5")) as nodes:
        box.wait_for(lambda: ward.rounds("node0") >= 5, "rounds")
        page = json.loads(ward.pages("node5", "/federation")[0])
        nodes["node4"].kill()
        reached = ward.rounds("node0")
        box.wait_for(lambda: ward.rounds("node0") >= reached + 4, "rounds without node4")
    got = {index: ward.frames(f"node{index}") for index in (0, 5)}
    parts = [(box.members(one[2]), one[3]) for index in got for one in box.messages(got[index], "sums/1", 24)]
    parts = [(who, np.frombuffer(vector, "<u8")) for who, vector in parts]
    pairs = itertools.pairwise(sorted(parts, key=lambda one: (sorted(one[0]), len(one[1]))))
    apart = [a[1] - b[1] for a, b in pairs if a[0] == b[0] and len(a[1]) == len(b[1]) and (a[1] != b[1]).any()]
    posted = b"".join(vector.tobytes() for _, vector in parts)
    chances = box.uniformity(posted), box.uniformity(b"".join(one.tobytes() for one in apart))
    figure = f"p {chances[0]:.3f} of {len(posted)} bytes, {chances[1]:.3f} of {len(apart)} differences"
    yield "posts look random", min(chances) > 1e-4, figure
    sets = Counter(box.members(one[3]) for one in box.messages(got[5], "sums/1", 25))
    broken = [who for who in sets if any(who & group and not group <= who for group in groups)]
    figure = f"{sum(sets.values())} totals, of members {sorted(map(sorted, sets))}"
    yield "whole groups", len(sets) == 2 and not broken, figure
    bodies = sum(bool(frame.body) for index in got for frame in got[index])
    yield "no model of a node", not bodies, f"{bodies} in {sum(map(len, got.values()))} messages"
    bare = [value for key, value in box.leaves(page) if key in SCORES and value is not None]
    yield "hidden scores", not bare, f"{len(bare)} figures of six members"
    told = [(0, frame.header) for frame in got[0]] + [(5, frame.header) for frame in got[5]] + [(5, page)]
    told = [value for own, one in told for _, value in box.leaves(one) if value in set(counts) - {counts[own]}]
    yield "hidden row count", not told, f"{len(told)} times"


def wire(folder):
    names = ("clinic-lisbon", "clinic-oslo")
    ward, (_, table) = box.Ward(folder / "ward-of-names", names, "--topology", "complete"), canaries(200)
    ward.rows([table, empty(200)], rounds=2000, batch_size=20, learning_rate=1e-6)
    taps, text = [box.Wire(ward.first_port + index) for index in range(2)], ward.file.read_text(encoding="utf-8")
    keys = [base64.urlsafe_b64decode(line.split('"')[1] + "=") for line in text.splitlines() if line[:6] == "key = "]
    for tap in taps:
        text = text.replace(f'"127.0.0.1:{tap.to}"', f'"127.0.0.1:{tap.port}"')
    ward.file.write_text(text, encoding="utf-8")
    with ward.running():
        box.wait_for(lambda: ward.rounds(names[0]) > 2, "rounds")
        pages = b"".join(ward.pages(names[0], "/", "/status", "/federation", "/metrics", "/history"))
    yield "the page", not marks(pages), f"{marks(pages)} marks in {len(pages)} bytes"
    content = b"".join(way for tap in taps for way in tap.ways)
    found = sum(content.count(one) for one in (*map(str.encode, names), b"ward-of-names", *keys)) + marks(content)
    yield "a man on the wire", not found and len(content) > 10_000, f"{found} in {len(content)} bytes"


TRIES = {one.__name__: one for one in (epsilon, hidden, wire)}


def main(chosen):
    known, left = promises()
    by_name, failed = {promise.name: promise for promise in known}, False
    for name in chosen or TRIES:
        with tempfile.TemporaryDirectory(prefix="privacy-kit-") as folder:
            for promise, kept, figure in TRIES[name](Path(folder)):
                _, page, sentence, how = by_name.pop(promise)
                verdict = "kept" if kept else "BROKEN"
                failed |= not kept
                sys.stdout.write(f'{verdict}: {promise} ({page}: "{sentence}"); {how}: {figure}\n')
                sys.stdout.flush()
    for promise in (*by_name.values(), *left):
        sys.stdout.write(f'not tried: {promise.name} ({promise.page}: "{promise.sentence}"); {promise.how}\n')
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
