"""A report on its way to a file, to a picture and to a reader, whether the run was real or simulated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from p2pfl.cli.output import Form, figure, size
from p2pfl.errors import StorageError, UserError


def where(report: Path | None, form: Form) -> tuple[Path | None, Form]:
    """The file and the form that the user means: `--report -` is the whole report on stdout, and no file."""
    return (None, "json") if report == Path("-") else (report, form)


def check_report(path: Path, *, coming: Path | None = None) -> None:
    """A report that cannot be written must show before the run, not after it. `coming`: a folder that the run makes.

    Raises:
        UserError: there is no such folder, or the path is one.
    """
    if path.is_dir():
        raise UserError("is a folder", key="--report", value=str(path), allowed="a file")
    if path.absolute().parent != (coming or path).absolute() and not path.absolute().parent.is_dir():
        raise UserError("no such folder", key="--report", value=str(path.parent), allowed="a folder that exists")


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """The file is there as a whole or not at all; an older one is replaced.

    Raises:
        StorageError: it cannot be written.
    """
    from topologies.files.formats import replace  # noqa: PLC0415 - `--help` stays instant

    content = json.dumps(report, indent=1, allow_nan=False).encode()

    def write(file: BinaryIO) -> None:
        file.write(content)

    try:
        replace(path, write)
    except OSError as error:
        raise StorageError(f"{path} could not be written: {error.strerror}") from error


def node_rows(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a table shows of these `nodes` of a report."""
    return [
        {
            "node": node["name"],
            "state": _state(node),
            "rounds": node["rounds"],
            "samples": node["samples"],
            "accuracy": figure(node, "accuracy") if node.get("test_is_stale") else node["accuracy"],
            "own data": node["local_accuracy"],
            "loss": figure(node, "test_loss") if node.get("test_is_stale") else node["test_loss"],
            "staleness": node["staleness"] and node["staleness"]["mean"],
            "sent": node["bytes_sent"] and size(node["bytes_sent"]),
        }
        for node in nodes
    ]


def _state(node: Mapping[str, Any]) -> str:
    alone = f", {node['rounds_alone']} rounds mixed with nobody" if node.get("rounds_alone") else ""
    if node.get("rounds_without_neighbor"):
        alone += f", {node['rounds_without_neighbor']} of {node['rounds']} rounds without a neighbor"
    failed = f", {node['failed_rounds']} rounds failed" if node["failed_rounds"] else ""
    return f"{node['state']}{failed}{alone}{', lies' if node.get('byzantine') else ''}"


FORMATS = (".png", ".svg", ".pdf")


def check_picture(path: Path, *, key: str = "--plot", coming: Path | None = None) -> None:
    """Before a run, so that a mistake does not show after it. `coming`: a folder that the run makes; `key`: the option.

    Raises:
        UserError: no such folder, or a format that cannot be drawn.
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError("no such picture format", key=key, value=str(path), allowed=", ".join(FORMATS))
    if path.is_dir():
        raise UserError("is a folder", key=key, value=str(path), allowed="a file")
    if path.absolute().parent != (coming or path).absolute() and not path.absolute().parent.is_dir():
        raise UserError("no such folder", key=key, value=str(path.parent), allowed="a folder that exists")
    import matplotlib as _  # noqa: F401, ICN001, PLC0415 - an extra: missing, it must show before the run


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the picture of a report's history."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(8, 6), layout="constrained")
    history = _since_learning_began(report["history"])
    _band(top, history, "accuracy", "#1f6f8b")
    top.set_ylabel("accuracy on the common test set")
    top.set_ylim(0, 1.02)
    top.legend(loc="lower right", frameon=False)
    points = [(point["time_s"], point["consensus_distance"]) for point in history if point["consensus_distance"]]
    if points:
        bottom.semilogy(*zip(*points, strict=True), color="#b5532a", linewidth=1.6)
    bottom.set_ylabel("consensus distance (relative)")
    bottom.set_xlabel("seconds since the first node was ready")
    for axes in (top, bottom):
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    names = len(report["nodes"])
    figure.suptitle(f"{report['config']['federation']}: {names} nodes, {report['topology']}, no server")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _since_learning_began(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Starting so many processes takes its time; the last change is the end."""
    start = history[0]["time_s"]
    return [point | {"time_s": point["time_s"] - start} for point in history]


def _band(axes: Any, history: list[dict[str, Any]], key: str, color: str) -> None:
    points = [point for point in history if point[key] is not None]
    times = [point["time_s"] for point in points]
    low, mean, high = ([point[key][which] for point in points] for which in ("min", "mean", "max"))
    axes.fill_between(times, low, high, color=color, alpha=0.2, linewidth=0, label="worst to best node")
    axes.plot(times, mean, color=color, linewidth=1.8, label="mean of the nodes")
