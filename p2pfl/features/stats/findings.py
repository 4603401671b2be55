"""The findings of `p2pfl check` about statistics: which columns each node here offers to whom, and mistakes in that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2pfl.console.output import write_rows
from p2pfl.node.findings import Findings, Inspected

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig, NodeConfig
    from p2pfl.errors import UserError
    from p2pfl.learn.table.schema import Schema


class StatsFindings(Findings):
    part = "stats"

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def of_files(self, inspected: Inspected) -> None:
        federation = inspected.federation
        nodes = [node for node in inspected.here.values() if node.stats.columns or node.stats.to]
        if not nodes:
            return
        schema = _schema(federation)
        for node in nodes:
            inspected.mistakes += mistakes_in(federation, node, schema)
            self._rows.append(_row(node))
        offering = [row for row in self._rows if row["to"] != "nobody" and row["columns"]]
        if federation.privacy is not None:
            inspected.warnings.append("under [privacy] `p2pfl stats` answers nothing, whatever [stats] says")
        elif offering:
            first = offering[0]
            others = len(offering) - 1
            more = (
                f", and {others} more nodes: --all"
                if others > 1
                else f", and {offering[1]['node']}: --all"
                if others
                else ""
            )
            inspected.brief["statistics"] = f"{first['node']} offers {first['columns']} to {first['to']}{more}"

    def told(self) -> list[dict[str, Any]] | None:
        return self._rows or None

    def show(self, facts: Any) -> None:
        write_rows(facts, "table", title="statistics: what each node offers")


def mistakes_in(federation: FederationConfig, node: NodeConfig, schema: Schema | None) -> list[UserError]:
    """Return the mistakes in a node's `[stats]`; `schema` None: not known yet."""
    from p2pfl.config.stats import EVERYBODY  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above
    from p2pfl.learn.statistics.survey_figures import categories_of  # noqa: PLC0415 - as above

    def mistake(text: str, key: str, value: str, allowed: str) -> UserError:
        return UserError(text, file=node.path, key=f"stats.{key}", value=value, allowed=allowed or "none here")

    policy, names = node.stats, [member.name for member in federation.present]
    found = [
        mistake("not a member", "to", name, f'{", ".join(names)}, or "{EVERYBODY}"')
        for name in policy.to
        if name not in (*names, EVERYBODY)
    ]
    if schema is None:
        return found
    columns = schema.columns
    text = "the schema has no such column"
    found += [mistake(text, "columns", name, ", ".join(columns)) for name in policy.columns if name not in columns]
    groups = [name for name in columns if categories_of(schema, name) is not None]
    if policy.by is not None and policy.by not in groups:
        found.append(mistake("not a categorical column of the schema", "by", policy.by, ", ".join(groups)))
    return found


def _row(node: NodeConfig) -> dict[str, Any]:
    from p2pfl.config.stats import EVERYBODY  # noqa: PLC0415 - `--help` stays instant

    policy = node.stats
    to = "all members" if EVERYBODY in policy.to else ", ".join(policy.to) or "nobody"
    return {
        "node": node.name,
        "columns": ", ".join(policy.columns),
        "to": to,
        "by": policy.by,
        "a_day": policy.a_day,
        "least_rows": policy.least_rows,
    }


def _schema(federation: FederationConfig) -> Schema | None:
    """Return the schema; None: there is none yet, or it has mistakes, which others report."""
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.features.stats.site_table import schema_at  # noqa: PLC0415 - as above

    try:
        return schema_at(federation)
    except UserError:
        return None
