"""`p2pfl audit`: attack your own federation, without and with each layer of privacy, in one table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.config.charter import compacted
from p2pfl.config.load import load_config
from p2pfl.console.output import Form, cell, format_option, write_json, write_rows
from p2pfl.errors import UserError

if TYPE_CHECKING:
    from sim.audits.audit import AuditFindings
    from sim.audits.sums import Look, SumsAudit

EPILOG = """\b
Examples:
  p2pfl audit ward-7
  p2pfl audit ward-7 --quick
  p2pfl audit ward-7 --attacks rank-one,canary --format json
  p2pfl audit ward-7 --attacks sums --colluders 2

Attacks: rank-one, inversion, membership, told, canary, differences. What each is, and what its figures mean:
docs/explanation/privacy.md. And sums, by itself: docs/explanation/sums.md.
"""

DEFAULT = "all but sums; differences where models are hidden"
COLLUDERS = "For sums and differences: how many members may look together.  [default: privacy.colluders, or 1]"
SHARE = "recognizable"
MOST_NAMES = 3


@click.command("audit", epilog=EPILOG)
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option("--attacks", metavar="NAMES", help=f"Only these attacks, separated by commas.  [default: {DEFAULT}]")
@click.option("--node", metavar="NAME", help="The node to attack.  [default: the one with most neighbors]")
@click.option("--quick", is_flag=True, help="One minute: fewer rounds and tries, no membership attack.")
@click.option("--colluders", type=click.IntRange(1), help=COLLUDERS)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@format_option("table", "json", "csv")
def audit(
    *,
    federation: Path,
    attacks: str | None,
    node: str | None,
    quick: bool,
    colluders: int | None,
    quiet: bool,
    form: Form,
) -> int:
    """Attack your federation as its neighbors could: what do a node's messages reveal of its rows?

    FEDERATION is a federation file, or the folder of its federation.toml. The attacks run on a copy, with the data of
    the nodes whose folders are here, in the simulator and with real nodes in this process. Nothing leaves the machine.
    Exits with 1 if the mechanism does not do what it claims; 0 means that what was tried has found no such mistake.
    """
    from sim.audits.audit import DIFFERENCES, QUICK, SUMS, Auditor, Effort  # noqa: PLC0415 - `--help` stays instant
    from sim.audits.scene import scene_of  # noqa: PLC0415 - as above

    names, effort = _attack_names(attacks, quick=quick), QUICK if quick else Effort()

    def tell(text: str) -> None:
        if not quiet:
            click.echo(f"  {text}", err=True)

    if names == (SUMS,):
        return _audit_sums(federation, node=node, colluders=colluders, quick=quick, form=form, tell=tell)
    scene = scene_of(federation, node=node)
    if attacks is None and scene.hides is None:
        names = tuple(name for name in names if name != DIFFERENCES)
    least = min(map(len, scene.groups)) if scene.groups and DIFFERENCES in names else 0
    if colluders is not None and colluders >= least:
        said = ("too many", f"1 to {least - 1}: the smallest group has {least} members")
        text, allowed = said if least else ("is for sums", "with --attacks sums, or differences of hidden models")
        raise UserError(text, key="--colluders", value=colluders, allowed=allowed)
    _quiet_nodes()
    findings = Auditor(scene, attacks=names, effort=effort, colluders=colluders, on_progress=tell).run()
    for note in findings.notes if form == "table" else ():
        click.echo(f"note: {note}", err=True)
    title = f"what neighbors learn of the {findings.samples} rows of {findings.node}"
    return _deliver(findings.as_json(), _rows(findings), form, title=title)


def _attack_names(attacks: str | None, *, quick: bool) -> tuple[str, ...]:
    from sim.audits.audit import ATTACKS, GONE, LONG, SUMS  # noqa: PLC0415 - as above

    if attacks is None:
        return tuple(name for name in ATTACKS if not (quick and name in LONG))
    names = tuple(name.strip() for name in attacks.split(",") if name.strip())
    for name in names or ("",):
        if name in GONE:
            text = f"{name} is gone: it tries the mechanism, not a federation, and is with the tests of p2pfl"
            raise UserError(text, key="--attacks", value=name, allowed=", ".join((*ATTACKS, SUMS)))
        if name not in (*ATTACKS, SUMS):
            raise UserError("no such attack", key="--attacks", value=name, allowed=", ".join((*ATTACKS, SUMS)))
    if SUMS in names and len(set(names)) > 1:
        raise UserError("attacks no rows, but sums", key="--attacks", value=SUMS, allowed="sums by itself")
    return names


def _quiet_nodes() -> None:
    """Keep the copy's nodes from filling the screen with notices, and small products to one thread."""
    import torch  # noqa: PLC0415 - as above

    logging.getLogger("p2pfl").setLevel(logging.ERROR)
    torch.set_num_threads(1)


def _audit_sums(
    path: Path, *, node: str | None, colluders: int | None, quick: bool, form: Form, tell: Callable[[str], None]
) -> int:
    """Attack the secure sums of the federation's members, on its graph. Raises UserError."""
    from sim.audits.sums import FEWEST_OTHERS, MOST_MEMBERS, attack_sums  # noqa: PLC0415 - as above

    federation = compacted(load_config(path))
    count, names = len(federation.members), [member.name for member in federation.members]
    if not 3 <= count <= MOST_MEMBERS:
        allowed = f"3 to {MOST_MEMBERS} members"
        raise UserError("sums are not audited", file=federation.path, key="members", value=count, allowed=allowed)
    colluders = colluders or int(getattr(federation.hides or federation.privacy, "colluders", 1))
    if colluders > count - FEWEST_OTHERS:
        allowed = f"up to {count - FEWEST_OTHERS} of {count} members: the others' sum tells a summand else"
        raise UserError("too many", key="--colluders", value=colluders, allowed=allowed)
    if node is not None and node not in names:
        raise UserError("no such node", file=federation.path, key="--node", value=node, allowed=", ".join(names))
    # by default the last one: who leads a sum, the lowest, is worth more to an attack as a colluder
    degrees = [(len(federation.neighbors(member)), member) for member in range(count)]
    victim = max(degrees)[1] if node is None else names.index(node)
    effort: dict[str, int] = {"coalitions": 6} if quick else {}
    sums = attack_sums(federation, victim, colluders=colluders, tell=tell, **effort)
    rows, summary = sums_rows(sums), sums_summary(sums)
    outcome = {"members": count, "promised": colluders, "held": sums.held, "rows": rows, "summary": summary}
    title = f"what members learn of the vector of {names[victim]}"
    return _deliver(outcome | {"mistakes": sums_mistakes(sums)}, rows, form, title=title, sentences=summary)


def sums_rows(sums: SumsAudit) -> list[dict[str, Any]]:
    rows = []
    for size, looks in sums.looks.items():
        best = sums.best(size)
        kept = ("no" if best.excess else "yes") if size <= sums.colluders else "-"
        row = {"colluders": size, "tried": len(looks), "such as": _names(sums, best.members)}
        rows.append(row | {"learn": _learned(sums, best), "as promised": kept})
    return rows


def sums_summary(sums: SumsAudit) -> list[str]:
    """Sentences for people. They claim what was tried, and no more."""
    tried = f"no coalition of up to {sums.held} that was tried learned more than the sum of the others"
    head = f"{len(sums.federation.members)} members, {len(sums.federation.edges)} edges"
    more = sums.best(sums.held + 1)
    return [
        f"{head}: {tried} (promised is {sums.colluders}).",
        f"{sums.held + 1} together, such as {_names(sums, more.members)}, learn {_learned(sums, more)}.",
    ]


def sums_mistakes(sums: SumsAudit) -> list[str]:
    """Signs that sums that do what they claim would not show."""
    mistakes = [] if sums.is_done else ["nobody has a sum"]
    for member, members in sums.wrong:
        mistakes.append(f"{_names(sums, [member])} has a sum that is not that of {_names(sums, members)}")
    for look in (look for size, looks in sums.looks.items() if size <= sums.colluders for look in looks):
        who = _names(sums, look.members)
        if look.excess:
            mistakes.append(f"{who} can work out {_learned(sums, look)} by themselves")
        for member, number in look.exposed:
            secrets = f"both secrets of {_names(sums, [member])} in one sum (number {number})"
            mistakes.append(f"{who} can tell {secrets}")
    return mistakes


def _names(sums: SumsAudit, members: Iterable[int]) -> str:
    names = [sums.federation.members[member].name for member in sorted(members)]
    more = [f"{len(names) - MOST_NAMES} others"] if len(names) > MOST_NAMES else []
    return " and ".join([", ".join(names[:MOST_NAMES]), *more])


def _learned(sums: SumsAudit, look: Look) -> str:
    others = len(sums.federation.members) - len(look.members)
    if not look.fewest:
        return "nothing"
    if len(look.fewest) == 1:
        return f"the vector of {_names(sums, look.fewest)}" + (": the sum less their own" if others == 1 else "")
    return f"the sum of {'all others' if len(look.fewest) == others else _names(sums, look.fewest)}"


def _deliver(
    outcome: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    form: Form,
    *,
    title: str,
    sentences: Iterable[str] = (),
) -> int:
    if form == "json":
        write_json(outcome)
    else:
        write_rows(rows, form, title=title)
    if form == "table":
        for sentence in sentences:
            click.echo(sentence)
    for mistake in outcome["mistakes"]:
        click.echo(f"error: {mistake}", err=True)
    return 1 if outcome["mistakes"] else 0


def _rows(findings: AuditFindings) -> list[dict[str, Any]]:
    rows: list[dict[str, str | None]] = []
    for row in findings.rows:
        said: dict[str, str | None] = {name: _cell_text(value, row.unit) for name, value in row.values.items()}
        if row.unit == SHARE:  # beside the figure that it belongs to
            rows[-1] |= {name: f"{rows[-1][name]} ({value})" for name, value in said.items() if value is not None}
        else:
            rows.append({"attack": row.attack, "against": row.place, **said})
    return rows


def _cell_text(value: Any, unit: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, float):
        return str(value)
    match unit:
        case "dB":
            return f"{value:.1f} dB"
        case "recognizable":
            return f"{value:.0%}"
        case _:
            return cell(float(f"{value:.3g}"))
