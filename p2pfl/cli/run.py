"""`p2pfl run`: run one node as a process, until its rounds are done or it is stopped. A second start resumes it."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from p2pfl.config.load import load_config, load_node, load_stranger, node_file
from p2pfl.console.output import Form, cell, figure, format_option, log_to_stderr, spent_of
from p2pfl.errors import StorageError
from p2pfl.reporting.measures import measures_of, value_of

if TYPE_CHECKING:
    from p2pfl.node.application import Application
    from p2pfl.reporting.status import NodeLine

FAILED = 1
STOPPED = 130
LINE_EVERY_S = 10.0
MOST_LINES = 1000
LAST_LINES_S = 2.0
LAST_PHASES = ("finished", "stopped")
BURST, LATER_S = 100.0, 600.0
"""Of what one line of the code logs, so many lines pass at once, later one in so many seconds: 244 in a day."""
MOST_CHARACTERS = 2000


@click.command(
    epilog="\b\nExamples:\n  p2pfl run ward-7 --node node0\n  p2pfl run ward-7/federation.toml --node pi1 -v"
)
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option("--node", "name", required=True, metavar="NAME", help="The member of the federation to run.")
@click.option(
    "--config", type=click.Path(path_type=Path), help="Its node.toml; by default NAME/node.toml next to FEDERATION."
)
@click.option("--launched", is_flag=True, hidden=True, help="Sketch the model in each line; stop when stdin ends.")
@click.option("-v", "--verbose", is_flag=True, help="Log sessions and exchanges too.")
@format_option("table", "json")
def run(*, federation: Path, name: str, **how: Any) -> None:
    """Run one node of a federation until its rounds are done. This is what each device runs.

    After a stop, a crash or a power cut, the same command resumes after the last round on disk. Progress goes to stdout
    (one line each, JSON with --format json), the log to stderr. Ctrl-C or SIGTERM ends it cleanly and keeps a snapshot.
    While the disk is full it waits; a second signal discards what was learned since. Without a neighbor it waits and
    does not train. Exits with 0 when all is done, 130 if it was stopped before, and 1 if it gave up on a full disk or
    another process has its key.
    """
    be_node(federation, name, **how)


def be_node(
    federation: Path,
    name: str,
    *,
    config: Path | None,
    launched: bool,
    verbose: bool,
    form: Form,
    maker: Callable[[], Callable[..., Application]] | None = None,
) -> NoReturn:
    """Run the node and exit the process. `maker`, called with thread limits set, may supply another `Application`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the node installs its own handlers
    log_to_stderr(f"%(asctime)s {name} %(levelname)s %(message)s", logging.WARNING, "%H:%M:%S")
    logging.getLogger().handlers[0].addFilter(LogBound())
    logging.getLogger("p2pfl").setLevel(logging.INFO if verbose else logging.WARNING)
    described = load_config(federation)
    file = config or node_file(described, name)
    node = load_stranger(file, name) if described.admin else load_node(file, described, name)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(node.threads)  # before anything numeric is imported
    if sys.platform != "win32" and node.nice:
        os.nice(node.nice)
    from p2pfl.fleet.process import arrived, prepared, run_node  # noqa: PLC0415 - after the thread limits are set
    from p2pfl.node.application import Application  # noqa: PLC0415 - as above
    from p2pfl.node.assembly import read_setup  # noqa: PLC0415 - as above

    described = arrived(described, name, config)
    node = load_node(file, described, name)
    if not prepared(described, node, launched=launched):
        _leave(STOPPED)
    setup = read_setup(described, node)
    write = _Text() if form == "table" else lambda line: PRINTER.put(msgspec.json.encode(line).decode())
    make = Application if maker is None else maker()
    try:
        result = asyncio.run(run_node(setup, on_line=write, launched=launched, make=make))
    except StorageError as error:  # the user gave up on the disk: do not wait for a long local round either
        click.echo(f"error: {error}", err=True)
        _leave(FAILED)
    if result is None:
        _leave(STOPPED)
    _leave(0 if result.finished else FAILED if result.resigned or result.removed else STOPPED)


def _leave(code: int) -> NoReturn:
    """Exit at once: everything is on disk and printed, and unloading torch would take half a second."""
    PRINTER.finish()
    logging.shutdown()
    os._exit(code)


class LogBound(logging.Filter):
    """Bounds what a node logs in a day, whatever happens to it. A line says how many like it were left out before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int, int, str], tuple[float, float, int]] = {}
        """By place in the code, level and kind of alarm: lines that may pass, since when, and the number left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        place = record.pathname, record.lineno, record.levelno, getattr(record, "kind", "")
        now = self._clock()
        left, since, out = self._places.get(place, (BURST, now, 0))
        left = min(BURST, left + (now - since) / LATER_S)
        if left < 1.0:
            self._places[place] = left, now, out + 1
            return False
        self._places[place] = left - 1.0, now, 0
        with suppress(Exception):  # the text of a wrong call, which the handler tells of
            text, more = record.getMessage(), f" ({out:,} such lines left out before)" if out else ""
            if more or len(text) > MOST_CHARACTERS:
                record.msg, record.args = text[:MOST_CHARACTERS] + more, ()
        return True


class _Text:
    """Prints lines for people: all on a terminal; elsewhere, such as in a journal, one every ten seconds."""

    def __init__(self) -> None:
        self.quiet_until = float("-inf")
        self.pause_s = 0.0 if sys.stdout.isatty() else LINE_EVERY_S

    def __call__(self, line: NodeLine) -> None:
        now = time.monotonic()
        if now >= self.quiet_until or line.phase in LAST_PHASES:
            self.quiet_until = now + self.pause_s
            PRINTER.put(_in_words(line))


def _in_words(line: NodeLine) -> str:
    tested = {
        "test loss" if measure.name == "loss" else measure.label: value_of(line, measure)
        for measure in measures_of([line])
    }
    if len(tested) > 1:
        del tested["test loss"]
    if line.privacy is not None:
        tested = {label: value for label, value in tested.items() if value is not None}
    shown = {
        "round": line.rounds,
        "phase": line.phase,
        **{label: figure(value, stale=line.test_is_stale) for label, value in tested.items()},
        "tested": f"after round {line.tested_round}" if line.test_is_stale else None,
        **({"loss": line.loss} if line.privacy is None else {"epsilon": spent_of(line.privacy)}),
        **({} if line.staleness is None else {"staleness": line.staleness.mean}),
        "peers": line.peers,
        "sent": line.bytes_sent,
        **({} if line.staleness is None else {"distance": line.neighbor_distance}),
    }
    words = [f"{key} {cell(value)}" for key, value in shown.items() if key != "tested" or value]
    return "  ".join([time.strftime("%H:%M:%S"), line.node, *words])


class _Printer(threading.Thread):
    """Prints in a separate thread, so that a reader that does not read cannot block the node: lines are dropped."""

    def __init__(self) -> None:
        super().__init__(name="print", daemon=True)
        self.lines: queue.Queue[str] = queue.Queue(maxsize=MOST_LINES)

    def put(self, text: str) -> None:
        if not self.is_alive():
            self.start()
        with suppress(queue.Full):
            self.lines.put_nowait(text)

    def run(self) -> None:
        while True:
            try:
                click.echo(self.lines.get())
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            except OSError:
                pass  # a file on a full disk: this line is lost, but the next one may not be
            self.lines.task_done()

    def finish(self) -> None:
        """Wait briefly until everything is printed."""
        end = time.monotonic() + LAST_LINES_S
        while self.lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)


PRINTER = _Printer()
