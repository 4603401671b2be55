"""`p2pfl sim attacks`: the list of attacks."""

from __future__ import annotations

import click

from p2pfl.cli.output import Form, format_option, write_rows


@click.command("attacks")
@format_option("table", "json", "csv")
def command(form: Form) -> None:
    """What may stand after `--attack`, and in a world's [liars]. In brackets: what may be left out."""
    from sim.attacks import REGISTRY  # noqa: PLC0415 - `--help` stays instant

    rows = [
        {"attack": found.usage(name), "shows": found.does, "knows": found.knows, "source": found.source}
        for name, found in REGISTRY.items()
    ]
    write_rows(rows, form, title="attacks")
