"""Arguments and options that several subcommands share, and sizes in bytes as people write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

SPEC_HELP = "SPEC is a name with its parameters, such as watts-strogatz:k=4,p=0.1, or the path of a graph file."
WEIGHTS_HELP = "Mixing weights: metropolis, max-degree, best-constant or sample-weighted."
EPSILON_HELP = "Consensus means the distance to it shrank to this fraction."

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?(?:[eE]\d{1,2})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Bytes(click.ParamType):  # type: ignore[type-arg]  # generic only in later releases of click
    """A number of bytes above zero: `400K` or `400KB` is 400,000, `400Ki` or `400KiB` is 409,600."""

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


def readable_bytes(size: float | None) -> str:
    """As people write it, in powers of 1000: `409.6 kB`; a dash for None."""
    if size is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.95:
            return f"{size:.4g} {unit}"
        size /= 1000.0
    return f"{size:.4g} PB"


def spec_argument() -> Decorator:
    return click.argument("spec")


def nodes_option() -> Decorator:
    """A graph file says itself how many nodes it has: None where the option is not given."""
    return click.option(
        "-n", "--nodes", type=int, default=None, help="How many nodes; a graph file has its own number."
    )


def seed_option() -> Decorator:
    return click.option("--seed", type=int, default=0, show_default=True, help="For everything that is left to chance.")


def weights_option() -> Decorator:
    return click.option("--weights", default="metropolis", show_default=True, help=WEIGHTS_HELP)


def epsilon_option() -> Decorator:
    return click.option("--epsilon", type=float, default=1e-3, show_default=True, help=EPSILON_HELP)


def model_bytes_option(default: str | None = None) -> Decorator:
    return click.option(
        "--model-bytes",
        type=Bytes(),
        default=default,
        show_default=default is not None,
        help="Size of one model as it is sent, such as 400K or 2G (powers of 1000).",
    )
