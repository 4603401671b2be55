"""Pictures: a figure, and writing it to a file. Drawing needs no screen, and one picture always gives the same
bytes.
"""

from __future__ import annotations

import logging
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from topologies.errors import TopologyError, not_written
from topologies.files import replace

SUFFIXES = (".png", ".svg", ".pdf")
DPI = 110

GRID = "#dddddd"
DARK = "#333333"
BLUE = "#0072b2"
RED = "#d55e00"
"""The vermilion of Okabe and Ito; everybody can distinguish it from their blue."""


def check_target(path: Path) -> None:
    """Check that a picture can be written. Raises TopologyError for a format that cannot be drawn or a missing folder,
    ModuleNotFoundError without matplotlib.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise TopologyError("no such picture format", key="output", value=str(path), allowed=", ".join(SUFFIXES))
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise TopologyError(
            "cannot be written", key="output", value=str(path), allowed="a file in a folder that exists"
        )
    import matplotlib as _  # noqa: F401, ICN001, PLC0415 - an extra: if it is missing, that must show at once


def new_figure(width: float, height: float) -> Any:
    """Make a `matplotlib.figure.Figure` of this size in inches, which a notebook shows as a picture."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=DPI)
            return content.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def plain(axes: Any) -> None:
    """Give axes the common look."""
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def shown(text: str, longest: int = 60) -> str:
    """Prepare `text` for drawing: one line, not too long, and no mathematics in it."""
    line = "".join(sign if sign.isprintable() else "?" for sign in text).replace("$", r"\$")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def save(figure: Any, path: Path) -> None:
    """Replace the picture once all of it is written. Raises TopologyError if the file cannot be written."""
    import matplotlib as mpl  # noqa: PLC0415 - as above

    form = path.suffix.lower().removeprefix(".")
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {"Software": None})
    fonts = logging.getLogger("matplotlib.font_manager")
    level = fonts.level
    try:
        # a machine whose fonts were never listed has a line for each mathematical font that it lacks, and uses another
        fonts.setLevel(logging.ERROR)
        with mpl.rc_context({"svg.hashsalt": "p2pfl"}), warnings.catch_warnings():
            # a name may have characters that the font lacks: they become boxes, which is no reason to fail
            warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
            replace(path, lambda file: figure.savefig(file, format=form, dpi=DPI, metadata=metadata))
    except OSError as error:
        raise not_written("cannot be written", error, key="output", path=path) from None
    finally:
        fonts.setLevel(level)
