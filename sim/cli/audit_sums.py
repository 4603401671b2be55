"""`p2pfl audit FEDERATION --attacks sums`: attack the secure sums of a federation's members, on its graph."""

from __future__ import annotations

from pathlib import Path

import click

from p2pfl.config.charter import compacted
from p2pfl.config.load import load_config
from p2pfl.config.model import FederationConfig
from p2pfl.console.output import Form, write_json, write_rows
from p2pfl.errors import UserError
from sim.audits.sums import MOST_MEMBERS, SumCast, SumsFound, attack_sums
from sim.cli.audit_report import write_report

FEWEST_OTHERS = 2
"""The honest members without whom a sum tells a summand."""


def audit_sums(
    path: Path,
    *,
    node: str | None,
    colluders: int | None,
    seed: int | None,
    quick: bool,
    report: Path | None,
    quiet: bool,
    form: Form,
) -> int:
    """Play, attack and print. Returns 1 if something learns what it should not. Raises UserError."""
    federation = compacted(load_config(path))
    cast = cast_of(federation, 1 if colluders is None else colluders)
    found = attack_sums(
        cast,
        _victim(federation, cast, node),
        seed=federation.seed if seed is None else seed,
        coalitions=6 if quick else 24,
        budget_s=60.0 if quick else 300.0,
        on_progress=lambda text: None if quiet else click.echo(f"  {text}", err=True),
    )
    _deliver(found, report, form)
    return 1 if found.mistakes else 0


def cast_of(federation: FederationConfig, colluders: int) -> SumCast:
    """The members and graph of a federation. Raises UserError: its sums hold against no so many."""
    count = len(federation.members)
    if not 3 <= count <= MOST_MEMBERS:
        allowed = f"3 to {MOST_MEMBERS} members"
        raise UserError("sums are not audited", file=federation.path, key="members", value=count, allowed=allowed)
    if colluders > count - FEWEST_OTHERS:
        allowed = f"up to {count - FEWEST_OTHERS} of {count} members: the others' sum tells a summand else"
        raise UserError("too many", key="--colluders", value=colluders, allowed=allowed)
    return SumCast(
        names=tuple(member.name for member in federation.members),
        edges=tuple((min(edge), max(edge)) for edge in federation.edges),
        colluders=colluders,
        least=colluders + FEWEST_OTHERS,
    )


def _victim(federation: FederationConfig, cast: SumCast, node: str | None) -> int:
    if node is None:
        # The last one: who leads a sum, the lowest, is worth more to an attack as a colluder.
        return max(range(cast.count), key=lambda member: (len(cast.neighbors(member)), member))
    if node not in cast.names:
        raise UserError("no such node", file=federation.path, key="--node", value=node, allowed=", ".join(cast.names))
    return cast.names.index(node)


def _deliver(found: SumsFound, report: Path | None, form: Form) -> None:
    if form == "json":
        write_json(found.as_json())
    else:
        write_rows(found.rows(), form, title=f"what members learn of the vector of {found.cast.names[found.victim]}")
    if form == "table":
        for sentence in found.summary():
            click.echo(sentence)
        for note in found.notes:
            click.echo(f"note: {note}", err=True)
    for mistake in found.mistakes:
        click.echo(f"error: {mistake}", err=True)
    if report is not None:
        write_report(found.as_json(), report)
