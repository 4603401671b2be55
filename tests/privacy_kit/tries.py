"""Try each promise of promises.txt: `make privacy`, or `python tests/privacy_kit/tries.py epsilon wire` for some.

A try gets an empty folder and yields (promise, kept, figure). Exit code 1: a promise is broken, or a try failed.
"""

from __future__ import annotations

import base64
import csv
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import black_box as box
import numpy as np

ROWS, DELTA = 1000, 1e-5
MARK = 31337.71875
"""The one number in private rows: what looks like it came from them."""
MARKS = (b"31337.7", np.float32(MARK).tobytes(), np.float64(MARK).tobytes())
PAIR = (2, "--topology", "complete")
NAMES_OF_SCORES = {"loss", "train_loss", "test_loss", "accuracy", "local_accuracy", "local_loss", "classes"}
SITES = ("north", "east", "south", "west")


class Promise(NamedTuple):
    name: str
    page: str
    sentence: str
    how: str


def promises():
    """Read those that are tried, and those that are not."""
    text = (box.KIT / "promises.txt").read_text(encoding="utf-8").partition("\n")[2]
    return [[Promise(*line.split(" | ")) for line in part.strip().splitlines()] for part in text.split("\n\n")]


def privacy(epsilon=8.0, delta=DELTA, **more):
    values = {"epsilon": epsilon, "delta": delta} | more
    return "[privacy]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value)


def canaries(rows=ROWS):
    """Draw which rows are there, and the table: row k moves weight k alone; one that is not there is empty."""
    included = np.frombuffer(os.urandom(rows), np.uint8) % 2 == 1
    return included, np.diag(np.where(included, MARK, 0.0))


def empty(rows=ROWS):
    return np.zeros((rows, rows))


def marks(*contents):
    return sum(content.count(mark) for content in contents for mark in MARKS)


def scores(told):
    """Give the figures under names of scores that are not null."""
    return [value for key, value in box.leaves(told) if key in NAMES_OF_SCORES and value is not None]


def told_files(ward):
    """What nodes print, log and leave as their result."""
    return [*ward.logs.glob("*.out"), *ward.logs.glob("*.err"), *ward.folder.glob("*/state/result.json")]


def proven(guessed, included, delta=DELTA, guesses=ROWS // 5):
    epsilon, right = box.epsilon_proven(guessed, included, delta, guesses)
    return epsilon, f"{epsilon:.2f} proven, {right} of {guesses} right"


def audited(folder, text="", **training):
    """Let a node learn the canaries; give what its neighbor proves, all that it got, and the federation."""
    ward, (included, table) = box.Ward(folder, *PAIR), canaries()
    ward.rows([table, empty()], **{"rounds": 1, "batch_size": ROWS} | training)
    if text:
        ward.add(text)
        box.well("privacy", "begin", folder)
    ward.run(taps=("node1",))
    got = ward.frames("node1")
    first = next(model for version, _, model in box.models(got)[0] if version >= 1)
    return *proven(first, included), got, ward


def epsilon(folder):
    epsilon, figure, _, plain = audited(folder / "none")
    yield "control: no budget", epsilon > 4, figure
    plain.add(privacy())
    codes = box.p2pfl("privacy", "begin", plain.folder)[0], box.p2pfl("run", plain.folder, "--node", "node0")[0]
    yield "an unpaid model", codes == (2, 2), f"exit codes {codes}"
    epsilon, figure, got, ward = audited(folder / "one", privacy())
    yield "epsilon 8, one step", epsilon < 8, figure
    before = list(itertools.takewhile(lambda one: one.type != box.REQUEST or one.header[2] < 1, got))
    early, seen = [one.body for one in before if one.body], marks(*(repr(one.header).encode() for one in before))
    other = sum(any(body) for body in early)
    figure = f"{len(early)} models, {other} not the common start; {seen} marks in {len(before)} messages"
    yield "noise before anything", not other and not seen, figure
    weights = {weight for found in box.models(got) for _, weight, _ in found}
    seen = marks(*(file.read_bytes() for file in (ward.logs / "node1.tap", *told_files(ward))))
    yield "rows only as a number", weights == {ROWS / 2} and not seen, f"weights {weights} of {ROWS} rows, {seen} marks"
    epsilon, figure, *_ = audited(folder / "many", privacy(), local_steps=20, batch_size=100)
    yield "epsilon 8, 20 sampled steps", epsilon < 8, figure


def member(folder):
    nodes, last = 16, "node15"
    ward, (included, _) = box.Ward(folder / "members", nodes, "--topology", "complete"), canaries(nodes)
    tables = [np.outer(np.full(ROWS + k, MARK * there), np.eye(nodes)[k]) for k, there in enumerate(included)]
    ward.rows(tables, rounds=1, batch_size=ROWS)
    ward.add(privacy(delta=0.01, unit="member"))
    box.well("privacy", "begin", ward.folder)
    ward.run(taps=(last,))
    firsts = (next(one for one in found if one[0] >= 1) for found in box.models(ward.frames(last)))
    firsts = ((round(weight * nodes) - ROWS, model) for _, weight, model in firsts)
    found = {k: float(model[k]) for k, model in firsts}
    epsilon, figure = proven(np.array(list(found.values())), included[list(found)], 0.01, len(found))
    yield "epsilon 8, a member", epsilon < 8, figure


def shared(folder):
    ward, (included, table) = box.Ward(folder / "shared", 3, "--topology", "complete"), canaries()
    ward.rows([table, empty(), empty()], rounds=1)
    ward.add(privacy(noise="shared", rate=1.0))
    launched = box.p2pfl("launch", ward.folder)[0]
    yield "no budget, no training", launched == 2, f"exit code {launched}"
    box.well("privacy", "begin", ward.folder)
    ward.run()
    box.well("export", ward.folder / "node2", "-o", folder / "model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    weights = np.frombuffer(content[8 + int.from_bytes(content[:8], "little") :], "<f4")
    epsilon, figure = proven(weights, included)
    yield "epsilon 8, shared noise", epsilon < 8, figure


def budget(folder):
    def shown():
        rows = json.loads(box.well("privacy", "show", ward.folder, "--format", "json"))
        return next(row for row in rows if row["node"] == "node0")

    rounds, (_, table) = 60, canaries(200)
    ward, other = box.Ward(folder / "budget", *PAIR), box.Ward(folder / "other", *PAIR)
    for one in (ward, other):
        one.rows([table, empty(200)], rounds=rounds, batch_size=50)
        one.add(privacy())
    box.well("privacy", "begin", ward.folder)
    with ward.running() as nodes:
        box.wait_for(lambda: ward.rounds("node0") > 3, "rounds of node0")
        pages = [box.ask(ward.page("node0"), path)[1] for path in ("/status", "/federation", "/history", "/metrics")]
        nodes["node0"].kill()
        box.interrupt(nodes["node1"])
    one, trained = shown(), ward.rounds("node0")
    figure = f"epsilon {one['epsilon']}, {rounds - one['rounds_left']} rounds paid for, {trained} trained"
    yield "paid before trained", rounds - one["rounds_left"] >= trained, figure
    shutil.rmtree(ward.folder / "node0" / "state")
    ward.run()
    two = shown()
    yield "a wiped state", one["epsilon"] <= two["epsilon"] <= 8, f"epsilon {one['epsilon']}, then {two['epsilon']}"
    told = [json.loads(page) for page in pages[:3]] + [ward.lines(name) for name in ward.names]
    told += [json.loads(file.read_bytes()) for file in ward.folder.glob("*/state/result.json")]
    bare = scores(told) + [one for one in (b"_train_loss", b"_test_loss", b"_accuracy_ratio") if one in pages[3]]
    yield "scores withheld", not bare, f"{len(bare)} in {len(told) + 1} answers and files"
    for name in ward.names:
        shutil.rmtree(ward.folder / name / "state")
        (ward.folder / name / "node.ledger").unlink()
    shutil.rmtree(ward.logs)
    ward.logs.mkdir()
    box.well("privacy", "begin", ward.folder, "--node", "node1")
    with ward.running():
        box.wait_for(lambda: ward.rounds("node1") > 5, "rounds of node1")
    trained = [ward.rounds(name) for name in ward.names]
    yield "both records gone", not trained[0], f"{trained[0]} rounds, its neighbor {trained[1]}; {shown()['state']}"
    code = box.p2pfl("privacy", "begin", other.folder)[0]
    yield "a second federation", code == 0, "nothing stops it, as the page says"


def refusals(folder):
    ward = box.Ward(folder / "refused", 2)
    usual, kept = ward.file.read_text(encoding="utf-8"), {}
    for key, text, values in (
        ("privacy.delta", privacy(delta=0.5), {}),
        ("privacy", privacy(epsilon=None), {}),
        ("when_through", privacy(), {"when_through": "train"}),
        ("stop", privacy(), {"stop": "no improvement in 2 rounds"}),
        ("method", privacy(), {"method": "fair:q=1"}),
    ):
        ward.file.write_text(usual, encoding="utf-8")
        ward.set(**values)
        ward.add(text)
        code, out, err = box.p2pfl("check", ward.folder)
        kept[key] = code == 2 and key in out + err and "allowed" in out + err
    yield "what is refused", all(kept.values()), ", ".join(f"{key} {kept[key]}" for key in kept)


def hidden(folder):
    ward = box.Ward(folder / "hidden", 6, "--topology", "complete", "--hide-models")
    groups, counts = (frozenset({0, 1, 2}), frozenset({3, 4, 5})), [1009 + 31 * index for index in range(6)]
    chance = np.random.default_rng()
    ward.rows([chance.normal(size=(rows, 500)) for rows in counts], rounds=60, learning_rate=0.01)
    with ward.running(taps=("node0", "node5")) as nodes:
        box.wait_for(lambda: ward.rounds("node0") >= 5, "rounds")
        page = json.loads(box.ask(ward.page("node5"), "/federation")[1])
        nodes["node4"].kill()
        reached = ward.rounds("node0")
        box.wait_for(lambda: ward.rounds("node0") >= reached + 4, "rounds without node4")
        for process in nodes.values():
            box.interrupt(process)
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
    bare = scores(page)
    yield "hidden scores", not bare, f"{len(bare)} figures of six members"
    told = [(0, frame.header) for frame in got[0]] + [(5, frame.header) for frame in got[5]] + [(5, page)]
    told = [value for own, one in told for _, value in box.leaves(one) if value in set(counts) - {counts[own]}]
    yield "hidden row count", not told, f"{len(told)} times"


def write(folder, site, rows):
    with (folder / f"{site}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("age", "chol", "sex", "ill"), *rows])


def hospitals(folder):
    """Make four sites of 120 rows each; three rows in all have sex x."""
    chance = np.random.default_rng(7)
    ages, chols = chance.integers(20, 90, (4, 120)).astype(str), chance.normal(240, 45, (4, 120)).round(3).astype(str)
    sexes, ills = chance.choice(["f", "m"], (4, 120)), chance.choice(["no", "yes"], (4, 120))
    sexes[:3, 0] = "x"
    tables = {site: list(zip(*each, strict=True)) for site, *each in zip(SITES, ages, chols, sexes, ills, strict=True)}
    for site, rows in tables.items():
        write(folder, site, rows)
    files = [folder / f"{site}.csv" for site in SITES]
    return box.Ward(folder / "hospitals", SITES, "--task", "csv", *files, "--target", "ill"), tables


def few_rows(told):
    """Give the counts of 1 to 9 rows among those shown, and what is left of totals, in the answers with and without
    groups.
    """
    counts = []
    for one in told:
        groups = [rows for rows in (one["groups"] or {}).values() if rows is not None]
        counts += [*groups, one["rows"] - sum(groups)]
        for figure in one["figures"]:
            counts += [bar["rows"] for bar in figure["histogram"]] + list((figure["categories"] or {}).values())
            counts += [figure["n"], figure["missing"]]
    grouped, whole = ([(one["column"], one["n"]) for one in each["figures"]] for each in told)
    counts += [rows - sum(part or 0 for name, part in grouped if name == column) for column, rows in whole if rows]
    return [count for count in counts if count and count < 10]


def statistics(folder):
    def question(*words):
        code, out, err = box.p2pfl("stats", ward.folder, "--columns", "age,chol,ill", *words, "--format", "json")
        return code, out, err.strip()

    ward, tables = hospitals(folder)
    code, _, err = question()
    yield "statistics by default", code == 2 and "offers no columns" in err, f"exit code {code}"
    for site in SITES:
        ward.add('[stats]\ncolumns = ["age", "chol", "ill"]\nto = "*"\nby = "sex"\na_day = 7', site)
    told = [json.loads(question(*words)[1]) for words in (("--by", "sex"), ())]
    few, groups = few_rows(told), told[0]["groups"]
    yield "few rows hidden", not few and groups.get("x") is None, f"{len(few)} counts of 1 to 9 rows; groups {groups}"
    new = [("41", f"{200 + k}.5", "f", "no") for k in range(12)]
    codes = []
    for rows in ([*tables["east"], new[0]], [new[0], *tables["east"][1:]], [*tables["east"], *new]):
        write(folder, "east", rows)
        codes.append(question()[0])
    write(folder, "east", tables["east"])
    yield "one row more, or another", codes == [2, 2, 0], f"exit codes {codes}"
    file = ward.folder / "east" / "node.toml"
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace("[stats]\n", "[stats]\nleast_rows = 12\n"), encoding="utf-8")
    code, _, err = question()
    yield "another bound", code == 2 and "least_rows was 10" in err, f"exit code {code}"
    file.write_text(before, encoding="utf-8")
    errors = [question()[2] for _ in range(3)]
    state = ward.folder / "west" / "state"
    answers = [json.loads(line)["answer"] for line in (state / "stats.log").read_text(encoding="utf-8").splitlines()]
    count, limited = answers.count("answered"), "within a day" in errors[-1]
    yield "questions of a day", count == 7 and limited, f"{count} answered at a site, the next refused: {limited}"
    yield "questions are logged", len(answers) == 10, f"{len(answers)} of 10"
    content = b"".join(file.read_bytes() for file in state.iterdir() if file.is_file())
    found = sum(row[1].encode() in content for row in tables["west"])
    yield "hashes, no cells", not found, f"{found} of 120 cells"
    ward.add(privacy())
    code, _, err = question()
    yield "no statistics beside noise", code == 2 and "privacy" in err, f"exit code {code}"


def asked(ward, others, killed_after=None):
    """Let north ask, and the others answer, each in a process of its own, of which the first may be killed."""
    sites = [
        box.started("stats", ward.folder, "--node", site, "--answer", stderr=box.subprocess.DEVNULL) for site in others
    ]
    for process in sites:
        process.stdout.readline()
    asking = box.started("stats", ward.folder, "--node", "north", "--columns", "age", "--format", "json")
    if killed_after is not None:
        time.sleep(killed_after)
        sites[0].kill()
    out, err = asking.communicate(timeout=box.WAIT_S)
    for process in sites:
        box.interrupt(process)
    return json.loads(out)["figures"][0]["mean"] if asking.returncode == 0 else None, err.strip()


def dying(folder):
    ward, tables = hospitals(folder)
    for site in SITES:
        ward.add('[stats]\ncolumns = ["age"]\nto = "*"\na_day = 100', site)
    true = np.mean([float(row[0]) for site in SITES for row in tables[site]])
    means = [asked(ward, SITES[1:], after)[0] for after in (None, 0.5, 2.0, 4.0, 6.0)]
    words = ["refused" if mean is None else "exact" if abs(mean - true) < 1e-9 else f"wrong: {mean}" for mean in means]
    yield "exact or refused", words[0] == "exact" and set(words) <= {"exact", "refused"}, ", ".join(words)


def removed(folder):
    ward, _ = hospitals(folder)
    for site in SITES:
        ward.add('[stats]\ncolumns = ["age"]\nto = "*"', site)
    first, _ = asked(ward, SITES[1:])
    parts = ward.file.read_text(encoding="utf-8").split("[[node]]\n")
    ward.file.write_text("[[node]]\n".join(part for part in parts if 'name = "east"' not in part), encoding="utf-8")
    second, err = asked(ward, SITES[2:])
    yield "without one site", first is not None and second is None, f"mean {first:.4g}, then {second} ({err[-80:]})"


def wire(folder):
    names = ("clinic-lisbon", "clinic-oslo")
    ward, (_, table) = box.Ward(folder / "ward-of-names", names, "--topology", "complete"), canaries(200)
    ward.rows([table, empty(200)], rounds=2000, batch_size=20, learning_rate=1e-6)
    taps, text = [box.Wire(ward.first_port + index) for index in range(2)], ward.file.read_text(encoding="utf-8")
    keys = [base64.urlsafe_b64decode(line.split('"')[1] + "=") for line in text.splitlines() if line[:6] == "key = "]
    for tap in taps:
        text = text.replace(f'"127.0.0.1:{tap.to}"', f'"127.0.0.1:{tap.port}"')
    ward.file.write_text(text, encoding="utf-8")
    with ward.running() as nodes:
        box.wait_for(lambda: ward.rounds(names[0]) > 2, "rounds")
        place = ward.page(names[0])
        pages = [box.ask(place, path)[1] for path in ("/", "/status", "/federation", "/metrics", "/history")]
        yield "the page", not marks(*pages), f"{marks(*pages)} marks in {len(b''.join(pages))} bytes"
        asked = ({}, {"X_Forwarded_For": "10.0.0.1"}, {"Host": "evil.example"})
        codes = [box.ask(place, "/status", **headers)[0] for headers in asked]
        yield "page and token", codes[0] == 200 and min(codes[1:]) >= 400, f"{codes[0]}; {codes[1]}, {codes[2]}"
        code, content = box.ask(f"127.0.0.1:{ward.first_port}", "/")
        yield "the gossip port", code == 404, f"{code} and {len(content)} bytes"
        to, sent, got = max(((tap.to, bytes(a), len(b)) for tap in taps for a, b in tap.calls), key=lambda one: one[2])
        answered = len(box.replay(to, sent))
        figure = f"{answered} bytes answered; at first {got}"
        yield "a replayed connection", answered < 2300 and got > 5000, figure
        for process in nodes.values():
            box.interrupt(process)
    content = b"".join(bytes(way) for tap in taps for call in tap.calls for way in call)
    found = sum(content.count(one) for one in (*map(str.encode, names), b"ward-of-names", *keys)) + marks(content)
    yield "a man on the wire", not found and len(content) > 10_000, f"{found} in {len(content)} bytes"
    yield from files(ward, folder, names[0])


def files(ward, folder, name):
    own = ward.folder / name
    box.well("export", own, "-o", folder / "model.safetensors")
    found = [file for file in (own / "state").rglob("*") if file.is_file()] + [folder / "model.safetensors"]
    other = {file.name: oct(file.stat().st_mode & 0o777) for file in found if file.stat().st_mode & 0o777 != 0o600}
    yield "modes of files", not other, f"{len(found)} files, other modes {other}"
    codes = []
    for place, mode in ((own / "node.key", 0o644), (own, 0o777), (own / "state", 0o777)):
        before = place.stat().st_mode
        place.chmod(mode)
        code, _, err = box.p2pfl("run", ward.folder, "--node", name)
        codes.append((code, "chmod" in err))
        place.chmod(before)
    yield "the key's mode", codes[0][0] == 2, f"exit code, chmod named: {codes[0]}"
    yield "folders others may write to", codes[1:] == [(2, True)] * 2, f"exit code, chmod named: {codes[1:]}"


TRIES = {
    one.__name__: one for one in (epsilon, member, shared, budget, refusals, hidden, statistics, dying, removed, wire)
}


def main(chosen):
    known, left = promises()
    by_name, failed = {promise.name: promise for promise in known}, False
    for name in chosen or TRIES:
        folder = Path(tempfile.mkdtemp(prefix="privacy-kit-"))
        try:
            for promise, kept, figure in TRIES[name](folder):
                _, page, sentence, how = by_name.pop(promise)
                verdict = "kept" if kept else "BROKEN"
                failed |= not kept
                sys.stdout.write(f'{verdict}: {promise} ({page}: "{sentence}"); {how}: {figure}\n')
                sys.stdout.flush()
            shutil.rmtree(folder)
        except Exception:  # noqa: BLE001 - the other tries go on
            failed = True
            sys.stdout.write(f"FAILED: {name}, in {folder}\n{traceback.format_exc()}")
    for promise in (*by_name.values(), *left):
        sys.stdout.write(f'not tried: {promise.name} ({promise.page}: "{promise.sentence}"); {promise.how}\n')
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
