"""`p2pfl audit`: attack your own federation, without and with each layer of privacy, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, cell, format_option, report_target, write_json, write_rows
from p2pfl.errors import UserError
from sim.cli import gone
from sim.cli.audit_report import write_report

if TYPE_CHECKING:
    from sim.audits.audit import AuditFound, Auditor

EPILOG = """\b
Examples:
  p2pfl audit ward-7
  p2pfl audit ward-7 --quick --picture rebuilt.png
  p2pfl audit ward-7 --attacks rank-one,canary --format json
  p2pfl audit ward-7 --attacks sums --colluders 2

Attacks: rank-one, inversion, membership, told, canary. What each is, and what its figures mean:
docs/explanation/privacy.md. And sums, by itself: docs/explanation/sums.md.
"""

SHARE = "recognizable"


@click.command("audit", epilog=EPILOG)
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option("--attacks", metavar="NAMES", help="Only these attacks, separated by commas.  [default: all but sums]")
@click.option("--node", metavar="NAME", help="The node to attack.  [default: the one with most neighbors]")
@click.option("--quick", is_flag=True, help="One minute: fewer rounds and tries, no membership attack.")
@gone("--budget-s", "use --quick, or --attacks with fewer")
@click.option("--colluders", type=click.IntRange(1), help="For sums: how many members may cheat.  [default: 1]")
@click.option("--simulated", is_flag=True, help="Use the simulator alone, without real nodes.")
@click.option("--report", type=click.Path(path_type=Path), help="Write everything to this file, as JSON; - is stdout.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the rebuilt rows: .png, .svg or .pdf.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the attacked copy.  [default: the file's]")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@format_option("table", "json", "csv")
def audit(
    *,
    federation: Path,
    attacks: str | None,
    node: str | None,
    quick: bool,
    colluders: int | None,
    simulated: bool,
    report: Path | None,
    picture: Path | None,
    seed: int | None,
    quiet: bool,
    form: Form,
) -> int:
    """Attack your federation as its neighbors could: what do a node's messages reveal of its rows?

    FEDERATION is a federation file, or the folder of its federation.toml. The attacks run on a copy, with the data of
    the nodes whose folders are here, in the simulator and with real nodes in this process. Nothing leaves the machine.
    Exits with 1 if the mechanism does not do what it claims; 0 means that what was tried has found no such mistake.
    """
    from sim.audits.audit import QUICK, SUMS, Auditor, Effort  # noqa: PLC0415 - `--help` stays instant
    from sim.audits.scene import scene_of  # noqa: PLC0415 - as above

    report, form = report_target(report, form)
    names, effort = _attack_names(attacks, quick=quick), QUICK if quick else Effort()
    _check_targets(report, picture, names)
    if names == (SUMS,):
        from sim.cli.audit_sums import audit_sums  # noqa: PLC0415 - as above

        return audit_sums(
            federation,
            node=node,
            colluders=colluders,
            seed=seed,
            quick=quick,
            report=report,
            quiet=quiet,
            form=form,
        )
    if colluders is not None:
        raise UserError("is for sums", key="--colluders", value=colluders, allowed="with --attacks sums")
    _quiet_nodes()
    scene = scene_of(federation, node=node, seed=seed)
    if picture is not None:
        from sim.audits.reconstruction import require_picture  # noqa: PLC0415 - as above

        require_picture(tuple(scene.rows()[0].shape[1:]))
    auditor = Auditor(
        scene,
        attacks=names,
        effort=effort,
        observe_real=None if simulated else _real(),
        on_progress=lambda text: None if quiet else click.echo(f"  {text}", err=True),
    )
    found = auditor.run()
    _deliver(found, report, form)
    if picture is not None:
        _draw(auditor, picture)
    return 1 if found.mistakes else 0


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


def _check_targets(report: Path | None, picture: Path | None, names: Sequence[str]) -> None:
    from p2pfl.reporting.logs import check_target  # noqa: PLC0415 - as above
    from p2pfl.reporting.plot import check_picture  # noqa: PLC0415 - as above

    if report is not None:
        check_target(report, key="--report")
    if picture is not None:
        check_picture(picture, key="--picture")
        if "inversion" not in names:
            raise UserError("shows what inversion rebuilds", key="--picture", value=str(picture), allowed="with it")


def _quiet_nodes() -> None:
    """Keep the copy's nodes from filling the screen with notices, and small products to one thread."""
    import logging  # noqa: PLC0415 - as above

    import torch  # noqa: PLC0415 - as above

    logging.getLogger("p2pfl").setLevel(logging.ERROR)
    torch.set_num_threads(1)


def _real() -> Any:
    from sim.audits.scene import observe_real  # noqa: PLC0415 - as above

    return observe_real


def _deliver(findings: AuditFound, report: Path | None, form: Form) -> None:
    if form == "json":
        write_json(findings.as_json())
    else:
        title = f"what neighbors learn of the {findings.samples} rows of {findings.node}"
        write_rows(_rows(findings), form, title=title)
    if form == "table":
        for note in findings.notes:
            click.echo(f"note: {note}", err=True)
    for mistake in findings.mistakes:
        click.echo(f"error: {mistake}", err=True)
    if report is not None:
        write_report(findings.as_json(), report)


def _rows(findings: AuditFound) -> list[dict[str, Any]]:
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


def _draw(auditor: Auditor, path: Path) -> None:
    from sim.audits.reconstruction import draw  # noqa: PLC0415 - as above

    guesses = {name: found for name, found in auditor.found.guesses.items() if found}
    if not guesses:
        click.echo("picture: nothing was rebuilt, so there is none", err=True)
        return
    draw(guesses, auditor.scene.rows()[0].numpy(), path)
    click.echo(f"picture: {path}", err=True)
