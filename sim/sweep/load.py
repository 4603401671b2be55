"""Reads a sweep file. What a combination means as a whole is checked later, when it is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2pfl.config.tables import Mistakes, read_document, read_table, unknown_keys
from sim.sweep.model import SweepFile
from sim.sweep.options import EXCLUSIVE, FILES, HEAD, NONE, OPTIONS
from topologies.errors import TopologyError
from topologies.specs import is_file, parse

TABLES = ("sweep", "axes")
SEEDS = (0, 1, 2)
MOST_COMBINATIONS = 100_000


def load_sweep(path: Path) -> SweepFile:
    """The sweep that a file describes.

    Raises:
        UserError: the only mistake in it.
        ExceptionGroup: all the mistakes in it.
    """
    document = read_document(path)
    mistakes = Mistakes(path)
    unknown_keys(document, "", TABLES, mistakes)
    head = read_table(document.get("sweep", {}), "sweep.", HEAD, mistakes)
    axes = _read_axes(document.get("axes", {}), mistakes)
    _refuse_exclusive({**head, **axes}, mistakes)
    folder = path.absolute().parent
    fixed = {name: head[name] for name in OPTIONS if name in head}
    for name, value in fixed.items():
        _check_place(name, value, folder, f"sweep.{name}", mistakes)
    for name, values in axes.items():
        for index, value in enumerate(values):
            _check_place(name, value, folder, f"axes.{name}[{index}]", mistakes)
    _refuse_too_many(axes, mistakes)
    if len(mistakes.found) > 1:
        raise ExceptionGroup(f"mistakes in {path}", mistakes.found)
    if mistakes.found:
        raise mistakes.found[0]
    return SweepFile(
        path=path.absolute(),
        fixed=fixed,
        axes=axes,
        seeds=head.get("seeds", SEEDS),
        skip_impossible=head.get("skip_impossible", False),
    )


def located(name: str, value: Any, folder: Path) -> Any:
    """The value of an option with every path in it made absolute; a relative one starts beside the file."""
    if name in FILES:
        return value if value == NONE else str((folder / value).absolute())
    return _located_spec(value, folder) if name == "topology" else value


def _located_spec(spec: str, folder: Path) -> str:
    if is_file(spec):
        return str((folder / spec).absolute())
    labels = parse(spec).parameters.get("labels")
    return spec.replace(str(labels), str((folder / labels).absolute())) if labels else spec


def _check_place(name: str, value: Any, folder: Path, key: str, mistakes: Mistakes) -> None:
    try:
        found = located(name, value, folder)
    except TopologyError as error:
        mistakes.add(f"{value}: {error.message}", key, error.value, error.allowed)
        return
    if name in FILES and value != NONE and not Path(found).exists():
        mistakes.add("no such file", key, value, 'a file that exists, relative to this one, or "none"')


def _read_axes(table: Any, mistakes: Mistakes) -> dict[str, tuple[Any, ...]]:
    """Every value is read as the option would be, so that a slip shows with its place in the list."""
    if not isinstance(table, dict):
        mistakes.add("must be a table", "axes", None, "[axes]")
        return {}
    if "seed" in table or "seeds" in table:
        mistakes.add("seeds are no axis", "axes.seeds", None, "sweep.seeds, over which the table has its intervals")
    known = {name: values for name, values in table.items() if name not in {"seed", "seeds"}}
    unknown_keys(known, "axes.", OPTIONS, mistakes)
    return {name: _read_axis(name, known[name], mistakes) for name in known if name in OPTIONS}


def _read_axis(name: str, values: Any, mistakes: Mistakes) -> tuple[Any, ...]:
    key, allowed = f"axes.{name}", f"a list, each {OPTIONS[name].allowed}"
    if not isinstance(values, list) or not values:
        mistakes.add("must be a list with something in it", key, values, allowed)
        return ()
    read = []
    for index, value in enumerate(values):
        try:
            read.append(OPTIONS[name].read(value))
        except ValueError as reason:
            mistakes.add(str(reason) or "impossible value", f"{key}[{index}]", value, OPTIONS[name].allowed)
    repeated = next((value for index, value in enumerate(read) if value in read[:index]), None)
    if repeated is not None:
        mistakes.add("stands there twice", key, repeated, "different values")
    return tuple(read)


def _refuse_exclusive(given: Mapping[str, Any], mistakes: Mistakes) -> None:
    for first, second in EXCLUSIVE:
        if first in given and second in given:
            mistakes.add(f"stands beside {first}", second, None, "one of the two")


def _refuse_too_many(axes: Mapping[str, tuple[Any, ...]], mistakes: Mistakes) -> None:
    count = 1
    for values in axes.values():
        count *= max(1, len(values))
    if count > MOST_COMBINATIONS:
        mistakes.add("too many combinations", "axes", count, f"up to {MOST_COMBINATIONS:,}")
