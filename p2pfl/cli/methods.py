"""`p2pfl methods`: the learning methods."""

from __future__ import annotations

from typing import Any

import click

from p2pfl.console.output import Form, format_option, write_facts, write_json, write_rows


@click.command(epilog="\b\nExamples:\n  p2pfl methods\n  p2pfl methods prox:mu=0.1 prox.py:prox,mu=0.1 --format json")
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@format_option("table", "json", "csv")
def methods(*, specs: tuple[str, ...], form: Form) -> None:
    """List learning methods.

    SPEC is a value of `method` in federation.toml; without it all built-in methods are shown. Your own method is a
    class derived from p2pfl.Method, named file.py:object or module:object, with its parameters after a comma:
    docs/how-to/methods.md.
    """
    rows = _rows(specs)
    if form == "json":
        write_json(rows)
    elif form == "csv":
        write_rows(rows, "csv")
    else:
        for row in rows:
            write_facts({key.replace("_", " "): row[key] for key in row if key != "method"}, title=row["method"])


def _rows(specs: tuple[str, ...]) -> list[dict[str, Any]]:
    """Parse all specs; raise every mistake at once."""
    from p2pfl.config.model import TrainingConfig  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above
    from p2pfl.methods import METHODS, make_method  # noqa: PLC0415 - as above
    from p2pfl.specs import Entry  # noqa: PLC0415 - as above

    rows, mistakes = [], []
    for spec in specs or METHODS:
        try:
            method = make_method(spec, TrainingConfig(), profile=None)
        except UserError as error:
            error.key = "SPEC"
            mistakes.append(error)
            continue
        own = Entry(name=method.code, means=method.meaning or type(method).__doc__ or "", source=method.source)
        entry = METHODS.get(method.code, own)
        rows.append(
            {
                "method": method.spec,
                "does": " ".join(entry.means.split()),
                "parameters": entry.in_words or None,
                "rules": "any" if len(method.profiles) > 1 else " or ".join(sorted(method.profiles)),
                "exchanges": ", ".join(method.channels),
                "keeps": ", ".join((*method.kept, *(f"{name} of each edge" for name in method.kept_edges)))
                or "nothing",
                "source": entry.source or "",
            }
        )
    if mistakes:
        raise ExceptionGroup("mistakes in the arguments", mistakes)
    return rows
