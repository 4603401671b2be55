"""`p2pfl schema`: find one schema for tables that nobody may see together.

Each site can review the statistics of its table. Then the nodes agree by themselves, by sums (`[task] schema =
"agreed"`), or a person collects the files and merges them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from p2pfl.console.groups import Named
from p2pfl.console.output import Form, format_option, write_json, write_rows
from p2pfl.errors import UserError

LINES = {
    "propose": "Show which statistics of a node's table would leave the node, and write them to a file.",
    "merge": "Merge the nodes' proposals into the schema for all of them.",
}
STDOUT = Path("-")
LEAST_COUNT = 5


class SchemaCommands(Named):
    def lines(self) -> Mapping[str, str]:
        return LINES

    def find(self, name: str) -> Any:
        return {"propose": propose, "merge": merge}[name]


@click.group(
    cls=SchemaCommands,
    epilog="\b\nExamples:\n  p2pfl schema propose hospitals --node site1\n"
    "  p2pfl schema merge hospitals */proposal.json",
)
def schema() -> None:
    """Agree on how to read the tables of the task csv, although nobody may see two of them."""


_federation = click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))


@click.command(epilog="\b\nExample:\n  p2pfl schema propose hospitals --node site1")
@_federation
@click.option("--node", "name", required=True, metavar="NAME", help="The node whose table to read.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="By default NAME/proposal.json; - is stdout.")
@click.option(
    "--least-count",
    type=click.IntRange(1),
    default=LEAST_COUNT,
    show_default=True,
    help="Withhold statistics of fewer rows than this.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@format_option("table", "json")
def propose(*, federation: Path, name: str, output: Path | None, least_count: int, force: bool, form: Form) -> None:
    """Show which statistics of a node's table would leave the node, and write them to a file.

    They are counts, sums, sums of squares, and the categories that enough rows have: nothing else is used. This command
    sends nothing. With `[task] schema = "agreed"`, the node sends the names in NAME/proposal.json, and its figures only
    in sums over all nodes; with "agreed-openly" it sends all of it. You may remove columns from that file, or list them
    in `leave_out` in [data].
    """
    from p2pfl.config.load import load_config, load_node, node_file  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.table.proposal import rows_of, text_of  # noqa: PLC0415 - as above
    from p2pfl.learn.table.proposing import FILE_NAME, proposal_of  # noqa: PLC0415 - as above

    described = load_config(federation)
    _require_csv(described.task.name, described.path)
    node = load_node(node_file(described, name), described, name)
    file = node.path.parent / FILE_NAME if output is None else output
    made = proposal_of(described, node, least_count)
    text = text_of(made)
    if file == STDOUT:
        click.echo(text, nl=False)
        return
    _write(file, text, force=force)
    if form == "json":
        write_json({"node": made.node, "rows": made.rows, "columns": rows_of(made)})
    else:
        write_rows(rows_of(made), "table", title=f"what node {made.node} would reveal about its {made.rows} rows")
    click.echo(f"wrote {file}", err=True)


@click.command(epilog="\b\nExample:\n  p2pfl schema merge hospitals */proposal.json")
@_federation
@click.argument("proposals", metavar="PROPOSAL...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="By default schema.toml next to FEDERATION; - is stdout."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def merge(*, federation: Path, proposals: tuple[Path, ...], output: Path | None, force: bool) -> None:
    """Merge the nodes' proposals into the schema for all of them.

    The order of the files does not matter. Copy the result to every node, next to the federation file, and name it in
    `[task] schema`. Nodes with different schemas refuse each other.
    """
    from p2pfl.config.load import load_config  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.table import merging  # noqa: PLC0415 - as above
    from p2pfl.learn.table.agreed import declared_by  # noqa: PLC0415 - as above
    from p2pfl.learn.table.files import FILE_NAME  # noqa: PLC0415 - as above
    from p2pfl.learn.table.proposal import read_proposal  # noqa: PLC0415 - as above
    from p2pfl.learn.table.writing import schema_text  # noqa: PLC0415 - as above

    described = load_config(federation)
    _require_csv(described.task.name, described.path)
    file = described.path.parent / FILE_NAME if output is None else output
    told = {}
    for path in proposals:
        one = read_proposal(path)
        if one.federation != described.name or one.node in told:
            text = "a second proposal of this node" if one.node in told else "of another federation"
            raise UserError(text, file=path, value=f"{one.node} of {one.federation}", allowed=described.name)
        told[one.node] = one
    names = [member.name for member in described.present]
    for name in told:
        if name not in names:
            raise UserError("not a member", file=described.path, value=name, allowed=", ".join(names))
    merged = merging.merge(told.values(), declared_by(described.task, described.path.parent))
    for warning in merged.warnings:
        click.echo(f"odd: {warning}", err=True)
    if missing := [name for name in names if name not in told]:
        click.echo(f"odd: no proposal from {', '.join(missing)}", err=True)
    text = schema_text(merged, origin=f"Merged from the proposals of {', '.join(sorted(told))}.")
    if file == STDOUT:
        click.echo(text, nl=False)
        sys.stdout.flush()
        return
    _write(file, text, force=force)
    click.echo(f'wrote {file}; name it: [task] schema = "{file.name}"', err=True)


def _require_csv(task: str, file: Path) -> None:
    if task != "csv":
        raise UserError("only for the task csv", file=file, key="task.name", value=task, allowed="csv")


def _write(file: Path, text: str, *, force: bool) -> None:
    from p2pfl.storage.disk import replace_file  # noqa: PLC0415 - `--help` stays instant

    if file.exists() and not force:
        raise UserError("already exists", file=file, allowed="--force to replace it, or another --output")
    if not file.parent.is_dir():
        raise UserError("no such folder", file=file.parent, key="--output", allowed="a folder that exists")
    replace_file(file, [text.encode()])
