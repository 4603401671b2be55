"""The commands' common arguments and options, and printing of facts and rows as a table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topologies.timing import Latencies

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

SPEC_HELP = "SPEC is a name with its parameters, such as watts-strogatz:k=4,p=0.1, or the path of a graph file."
WEIGHTS_HELP = "Mixing weights: metropolis, best-constant"

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?(?:[eE]\d{1,2})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

_TIME = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*(ms|s|m|h|)")
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Bytes(click.ParamType):  # type: ignore[type-arg]  # generic only in later releases of click
    """An option in bytes above zero: `400K` or `400KB` is 400,000, `400Ki` or `400KiB` is 409,600."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(
                f"{value!r} is no size in bytes; allowed: a number with K, M, G or T behind it, as 400K", param, ctx
            )
        number, unit, binary = match.groups()
        size: int = round(float(number) * (1024 if binary else 1000) ** _POWERS[unit.upper()])
        if size < 1:
            self.fail(f"{value!r} is less than one byte", param, ctx)
        return size


class Time(click.ParamType):  # type: ignore[type-arg]  # generic only in later releases of click
    """An option in seconds above zero, written as `10s`, `500ms`, `2m` or `1h`; or from zero, and with its unit."""

    name = "time"

    def __init__(self, *, may_be_zero: bool = False) -> None:
        self.may_be_zero = may_be_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _TIME.fullmatch(str(value).strip())
        if match is None or not (match[2] if self.may_be_zero else float(match[1])):
            said = "no time" if self.may_be_zero else "no time above zero"
            self.fail(f"{value!r} is {said}; allowed: such as 10s, 500ms or 2m", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


def readable_bytes(size: float | None) -> str:
    """Write a size in powers of 1000, such as `409.6 kB`; a dash for None."""
    if size is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.95:
            return f"{size:.4g} {unit}"
        size /= 1000.0
    return f"{size:.4g} PB"


def nodes_option() -> Decorator:
    """Add the option `--nodes`, None by default because a graph file contains its number of nodes."""
    return click.option(
        "-n", "--nodes", type=int, default=None, help="How many nodes; a graph file has its own number."
    )


def seed_option() -> Decorator:
    """Add the option `--seed`. A negative one is a mistake even where nothing is left to chance."""
    return click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        callback=_checked_seed,
        help="For everything that is left to chance.",
    )


def _checked_seed(_context: click.Context, _option: click.Parameter, seed: int) -> int:
    if seed < 0:
        from topologies.chance import check_seed  # noqa: PLC0415 - `--help` stays instant

        check_seed(seed)
    return seed


def weights_option(*, by_degree: bool = False) -> Decorator:
    """Add the option `--weights`; where edges come and go, only weights that follow from the degrees are of use."""
    if by_degree:
        words = f"{WEIGHTS_HELP} or sample-weighted."
        return click.option("--weights", default="metropolis", show_default=True, help=words)
    words = f"{WEIGHTS_HELP}, sample-weighted, optimal or file.  [default: metropolis, or those of a graph file]"
    return click.option("--weights", default=None, help=words)


def model_bytes_option(default: str | None = None) -> Decorator:
    return click.option(
        "--model-bytes",
        type=Bytes(),
        default=default,
        show_default=default is not None,
        help="Size of one model as it is sent, such as 400K or 2G (powers of 1000).",
    )


Row = Mapping[str, Any]

PATIENCE_S, PIPE_PATIENCE_S = 1.0, 10.0
"""The time between two progress lines, and before the first: on a terminal, and elsewhere."""


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show progress of a long search on stderr: on a terminal one line, which disappears at the end."""
    shown = False
    last = time.monotonic()

    def tell(text: str) -> None:
        nonlocal shown, last
        rewritten = sys.stderr.isatty()
        if time.monotonic() - last >= (PATIENCE_S if rewritten else PIPE_PATIENCE_S):
            click.echo(f"\r\x1b[K{text}" if rewritten else text, nl=not rewritten, err=True)
            shown, last = rewritten, time.monotonic()

    try:
        yield tell
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def check_target(path: Path) -> None:
    """Check `--output` (`-`: stdout) before a long search. Raises TopologyError for a bad format or folder."""
    from topologies.files import STREAM, format_of  # noqa: PLC0415 - `--help` stays instant

    format_of(path)
    folder = path.absolute().parent
    if path == STREAM or (path.exists() and not path.is_file() and not path.is_dir()):
        return  # a pipe or a device is written directly
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise TopologyError(
            "cannot be written", key="output", value=str(path), allowed="a file in a folder that exists"
        )


def format_option(*forms: str) -> Callable[[Command], Command]:
    """Add the option `--format`; the first form is the default."""
    return click.option(
        "--format", "form", type=click.Choice(forms), default=forms[0], show_default=True, help="How to print."
    )


def write_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def write_facts(facts: Row) -> None:
    """Print one line for each fact; a dictionary becomes `key value, key value`."""
    width = max((len(key) for key in facts), default=0) + 2
    for key, value in facts.items():
        click.echo(f"{key.replace('_', ' '):{width}}{_named_cell(key, value)}")


def write_rows(rows: Sequence[Row], form: str, missing: str = "-") -> None:
    """Print rows that share the same keys: as JSON a list of objects, as CSV with a header."""
    if form == "json":
        write_json(list(rows))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _write_table(rows, missing)


def _write_table(rows: Sequence[Row], missing: str) -> None:
    from rich import box  # noqa: PLC0415 - only tables need it
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for key in rows[0] if rows else ():
        numbers = all(isinstance(row[key], int | float) or row[key] is None for row in rows)
        table.add_column(key.replace("_", " "), justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_named_cell(key, value, missing)) for key, value in row.items()))
    # the table keeps its width: no figure may be truncated, neither in a pipe nor on a narrow terminal, which wraps
    # lines
    Console(width=10_000).print(table)


def _named_cell(key: str, value: Any, missing: str = "-") -> str:
    from topologies.spectral import rate_text  # noqa: PLC0415 - `--help` stays instant

    return rate_text(value) if key.endswith("rate") and isinstance(value, float) else cell(value, missing)


def cell(value: Any, missing: str = "-") -> str:
    match value:
        case None:
            return missing
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{key.replace('_', ' ')} {cell(part, missing)}" for key, part in value.items())
        case list() | tuple():
            return ", ".join(cell(part, missing) for part in value) or missing
        case _:
            return str(value)


FAR_HELP = """\b
Far sites: --far 28-29=60ms: messages to and from nodes 28 to 29 take 60 ms
longer, one way. Two far nodes are twice as far apart.
More: docs/how-to/which-graph.md
"""


def far_options(command: Command) -> Command:
    """Add --far and --train."""
    train, far = Time(may_be_zero=True), "Far nodes, as 28-29=60ms; repeatable."
    command = click.option("--train", type=train, default="0s", show_default=True, help="Time of a node's round.")(
        command
    )
    return click.option("--far", multiple=True, metavar="NODES=TIME", help=far)(command)


def read_distances(nodes: int, names: Sequence[str], *, far: Sequence[str], train: float) -> Latencies | None:
    """Return the distances that the options tell; None if they tell none.

    Raises TopologyError: they cannot be understood, or there is only --train, which changes nothing without them.
    """
    if not far:
        if train:
            text = "no time is told without knowing how far the nodes are from each other"
            raise TopologyError(text, key="train", value=f"{train:g}s", allowed="with --far")
        return None
    from topologies.timing import latencies, read_far  # noqa: PLC0415 - `--help` stays instant

    return latencies(nodes, names=names, far=[read_far(text) for text in far])
