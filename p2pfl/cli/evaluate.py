"""`p2pfl evaluate`: how good a node's model is, on the common test set and on the node's own data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.cli.output import Form, format_option, write_facts, write_json

if TYPE_CHECKING:
    from p2pfl.runtime.learned import Learned


@click.command(
    epilog="\b\nExample:\n  p2pfl evaluate ward-7/node0\n  p2pfl evaluate model.safetensors --federation ward-7"
)
@click.argument("snapshot", metavar="SNAPSHOT", type=click.Path(path_type=Path))
@click.option("--federation", type=click.Path(path_type=Path), help="Its file; by default looked for above SNAPSHOT.")
@click.option("--node", metavar="NAME", help="Whose data to take, if SNAPSHOT does not say.")
@format_option("table", "json")
def evaluate(*, snapshot: Path, federation: Path | None, node: str | None, form: Form) -> int:
    """Test what a node has learned.

    SNAPSHOT is a node's folder, its state folder, or a file from `p2pfl export`. The node may be running: its folder
    is only read, up to the last round that is on the disk.
    """
    from p2pfl.runtime.learned import read_learned  # noqa: PLC0415 - `--help` stays instant

    learned = read_learned(snapshot, federation=federation, node=node)
    for warning in learned.warnings:
        click.echo(f"warning: {warning}", err=True)
    facts = _facts(learned)
    if form == "json":
        write_json(facts)
    else:
        write_facts({key: value for key, value in facts.items() if value != {}})
    return 0


def _facts(learned: Learned) -> dict[str, Any]:
    """Named as in a node's status and result; what there is no data for is None."""
    test, local = (learned.learner.evaluate(learned.vector, part) for part in ("test", "local"))
    return {
        "federation": learned.federation,
        "node": learned.node,
        "rounds": learned.rounds,
        "version": learned.version,
        "accuracy": test and test.accuracy,
        "test_loss": test and test.loss,
        "test_samples": test and test.samples,
        "test_metrics": test.metrics if test else {},
        "local_accuracy": local and local.accuracy,
        "local_loss": local and local.loss,
        "local_samples": local and local.samples,
        "local_metrics": local.metrics if local else {},
    }
