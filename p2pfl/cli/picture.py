"""A run in one picture: accuracy on the common test set, and how far the nodes are apart, over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2pfl.errors import UserError

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
