"""Thousands of bad inputs for every decoder in `decoders.py`: a sample with some of its values changed, at any depth.

    python tests/fuzz/many_inputs.py --inputs 1000000 --seed 0 --jobs 2 --only "charter, signed" invite

A decoder reads an input, or raises an error on its list. Anything else is a failure: another exception, an error that
cannot be shown, much more memory or many more calls than its samples take. An input follows from the decoder's name,
the seed and its number, so a seeded generator makes it, in a tenth of the time of hypothesis. Each failure is printed
with its line for the corpus. Exit code 1: there are some; 2: a mistake.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import itertools
import logging
import math
import multiprocessing
import os
import statistics
import sys
import time
import traceback
import tracemalloc
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("", "fuzz", "learn/trees"))
import faces  # noqa: F401 - names are imported from packages
from decoders import DECODERS, FOLDER, Decoder

CORPUS = Path(__file__).with_name("corpus.txt")
CHUNK = 2000
"""The inputs that a process tries before it takes others."""
EVERY = 10
"""One input in so many is measured, which makes it slower."""
TIMES, FREE_BYTES, FREE_CALLS = 50, 1 << 16, 2000
"""An input may take so many times the memory and calls of a sample of its size, at least these."""
MOST_S = 2.0
"""The CPU time of one input; looked at here only, never in the suite."""


WORDS = (
    *("", "0", "-1", "1e999", "nan", "inf", "9" * 20, "9" * 5000, "0x" + "F" * 5000, "\u0663", "\u00b2", "é", "\u202e"),
    *('"', "'", "[", "]", "{", "}", "<", "=", ":", ",", "#", "+", "-", "@", "://", "../..", "\n", "\r", "\0", "\ud800"),
    *("\x1b[31m", "a" * 300, "[" * 3000, "BF16", "F8_E4M3"),
)
ODD_BYTES = (b"\0", b"\xff", b"\xff" * 8, bytes(8), b"\xc1", b"\xdf\xff\xff\xff\xff", b"\x91" * 3000, b"[" * 3000)
NUMBERS = (0, 1, -1, 127, 255, 2**31, 2**32 - 1, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 10**30, 16**5000)
FIGURES = (0.5, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan)
ODD = (WORDS, ODD_BYTES, NUMBERS, FIGURES, (None, True, False, [], {}, [[[[[]]]]], {"": 0}, [0, 0]))


def hurt(chance: Random, raw: bytes) -> bytes:
    """Cut, double, overwrite or insert bytes."""
    hurt = bytearray(raw)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        here = chance.randrange(len(hurt) + 1)
        there = min(len(hurt), here + chance.choice((0, 1, 1, 2, 4, 8, 40, len(hurt))))
        piece = (b"", hurt[here:there] * 2, chance.randbytes(min(there - here, 40)), chance.choice(ODD_BYTES))
        hurt[here:there] = chance.choice(piece)
    return bytes(hurt)


def other(chance: Random, value: Any) -> Any:
    """Return a value that is near this one, or odd."""
    if chance.random() < 0.5:
        match value:
            case bool():
                return not value
            case int():
                return chance.choice((value + 1, value - 1, -value, value << 8, value ^ 1 << chance.randrange(60)))
            case float():
                return value * chance.choice((-1.0, 0.0, 0.5, 1e300))
            case str():
                here = chance.randrange(len(value) + 1)
                return value[:here] + chance.choice(WORDS) + value[here + chance.randrange(2) :]
            case bytes():
                return hurt(chance, value)
            case list():
                return value * chance.choice((0, 2, 100))
    return chance.choice(chance.choice(ODD))


def changed(chance: Random, tree: Any) -> Any:
    """Change one value somewhere in a tree of lists and dicts: drop, double, move or replace it."""
    if not isinstance(tree, list | dict) or not tree or chance.random() < 0.1:
        return other(chance, tree)
    kind, places, new = chance.randrange(8), list(tree) if isinstance(tree, dict) else range(len(tree)), tree.copy()
    place: Any = chance.choice(places)
    if kind == 0:
        del new[place]
    elif kind == 1:
        new[place] = new[chance.choice(places)]
    elif kind == 2 and isinstance(new, list):
        new.insert(chance.randrange(len(new) + 1), new[place])
    elif kind == 2:
        new[chance.choice(WORDS)] = new.pop(place)
    else:
        new[place] = changed(chance, new[place])
    return new


def made(decoder: Decoder, seed: int, number: int) -> bytes:
    """Return a sample of the decoder after some changes to its values, to its bytes, or to both."""
    chance = Random(f"{seed}/{decoder.name}/{number}")
    raw, form, way = chance.choice(decoder.samples), decoder.form, chance.random()
    if form is None or way > 0.75:
        return hurt(chance, raw)
    try:
        tree = form.load(raw)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            tree = changed(chance, tree)
        raw = form.dump(tree)
    except Exception:  # noqa: BLE001 - the form cannot hold what was changed
        way = 1.0
    return raw if way < 0.65 else hurt(chance, raw)


def is_read(decoder: Decoder, raw: bytes) -> bool:
    """Return True if the decoder reads the input, and False if it raises one of its errors, which can be shown."""
    try:
        decoder.read(raw)
    except decoder.refuses as error:
        str(error)
        return False
    return True


def measured(decoder: Decoder, raw: bytes) -> tuple[bool, int, int]:
    """Return whether the input was read, its peak of memory in bytes, and the calls that it took."""
    calls = itertools.count()
    tracemalloc.start()
    sys.setprofile(lambda *_: next(calls))
    try:
        return is_read(decoder, raw), tracemalloc.get_traced_memory()[1], next(calls)
    finally:
        sys.setprofile(None)
        tracemalloc.stop()


class Trial:
    """Tries inputs of one decoder. Its samples are tried first, which also imports what it needs and fills caches."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        for sample in decoder.samples:
            assert is_read(decoder, sample), f"{decoder.name} refuses its own sample {sample[:200]!r}"
        costs = [measured(decoder, sample)[1:] for sample in decoder.samples]
        self.size = max(1, *map(len, decoder.samples))
        self.peak = max(FREE_BYTES, *(peak for peak, _ in costs))
        self.calls = max(FREE_CALLS, statistics.median(calls for _, calls in costs))

    def __call__(self, raw: bytes) -> tuple[bool, float]:
        """Return whether the input was read, and its memory in units of its size. Raises what is not to happen."""
        read, peak, calls = measured(self.decoder, raw)
        most = TIMES * max(1.0, len(raw) / self.size)
        assert peak <= most * self.peak, f"too much memory: {peak:,} bytes for an input of {len(raw):,}"
        assert calls <= most * self.calls, f"too many calls: {calls:,} for an input of {len(raw):,} bytes"
        return read, peak / max(1024, len(raw))


def corpus(path: Path) -> list[tuple[str, bytes]]:
    """Return the decoders' names and inputs in a file, a line each. Raises ValueError: it is not such a file."""
    kept = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        name, _, literal = line.partition("\t")
        try:
            raw = ast.literal_eval(literal)
        except (SyntaxError, ValueError):
            raw = None
        if name not in DECODERS or type(raw) is not bytes:
            raise ValueError(f"{path}:{number} is not a decoder's name, a tab and bytes as Python writes them")
        kept.append((name, raw))
    return kept


def place(error: Exception) -> str:
    """Return what failed, without the figures: failures of the same kind are counted as one."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "/tests/" not in each.filename]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else f": {error}".partition(": ")[2][:16]
    return f"{type(error).__name__}{where}"


def chunk(job: tuple[str, int, int, int]) -> dict[str, Any]:
    """Try some inputs of one decoder."""
    logging.lastResort, logging.getLogger("p2pfl").propagate = None, False  # what is refused is counted here
    name, seed, first, count = job
    trial, read, memory, slowest = Trial(DECODERS[name]), 0, 0.0, 0.0
    failures: dict[str, list[Any]] = {}
    for number in range(first, first + count):
        raw, began = made(trial.decoder, seed, number), time.thread_time()
        try:
            was_read, factor = trial(raw) if number % EVERY == 0 else (is_read(trial.decoder, raw), 0.0)
            spent_s = time.thread_time() - began
            read, memory, slowest = read + was_read, max(memory, factor), max(slowest, spent_s)
            assert spent_s <= MOST_S, f"too slow: {spent_s:.1f} CPU seconds for an input of {len(raw):,} bytes"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told and the others go on
            failures.setdefault(place(error), [0, number, str(error)[:200], raw])[0] += 1
    failed = sum(each[0] for each in failures.values())
    counts = Counter(inputs=count, valid=read, refused=count - read - failed, failed=failed)
    return {"name": name, "counts": counts, "memory": memory, "slowest": slowest, "failures": failures}


def main() -> int:
    parser = argparse.ArgumentParser(description="bad inputs for every decoder")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all decoders together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", choices=DECODERS, metavar="NAME", help="decoders, by name")
    given = parser.parse_args()
    names = given.only or list(DECODERS)
    try:
        kept = [(name, raw) for name, raw in corpus(CORPUS) if name in names]
    except ValueError as error:
        parser.error(str(error))
    if given.inputs < 1 or given.jobs < 1:
        parser.error("inputs and jobs are whole numbers from 1")
    began, totals, most = time.monotonic(), defaultdict[str, Counter[str]](Counter), Counter[tuple[str, str]]()
    for name, raw in kept:
        Trial(DECODERS[name])(raw)
    each, failures = math.ceil(given.inputs / len(names)), dict[tuple[str, str], list[Any]]()
    jobs = [(name, given.seed, at, min(CHUNK, each - at)) for name in names for at in range(0, each, CHUNK)]
    os.environ["FUZZ_FOLDER"] = str(FOLDER)
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn"), faulthandler.enable) as pool:
        for done in pool.map(chunk, jobs):  # if a decoder crashes its process, faulthandler says where
            name = done["name"]
            totals[name] += done["counts"]
            most |= {(name, key): max(most[name, key], done[key]) for key in ("memory", "slowest")}
            for text, (count, *first) in done["failures"].items():
                failures.setdefault((name, text), [0, *first])[0] += count
    columns = ("inputs", "valid", "refused", "failed")
    lines = [" ".join((f"{'decoder':32}", *(f"{column:>9}" for column in columns), f"{'memory':>8} {'slowest':>11}"))]
    for name in names:
        figures = (f"{most[name, 'memory']:7.0f}x", f"{1000 * most[name, 'slowest']:8.1f} ms")
        lines.append(" ".join((f"{name:32}", *(f"{totals[name][column]:9,}" for column in columns), *figures)))
    for (name, text), (count, number, said, raw) in failures.items():
        lines += [
            "",
            f"{name}: {text}: {said}; {count} inputs, first number {number}; for the corpus:",
            f"{name}\t{raw!r}",
        ]
    whole, memory = sum(totals.values(), Counter[str]()), max(most[name, "memory"] for name in names)
    counts, passed_s = ", ".join(f"{whole[column]:,} {column}" for column in columns), time.monotonic() - began
    lines.append(
        f"\n{len(names)} decoders: {counts}; {len(kept)} of the corpus; at most {memory:.0f} times an input's "
    )
    sys.stdout.write("\n".join(lines) + f"memory; {passed_s:.0f} s\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
