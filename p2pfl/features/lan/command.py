"""`p2pfl doctor`: find out why nodes do not find or reach each other, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console import NewOptions, NewPlan
from p2pfl.console.output import Form, format_option, write_json, write_rows
from p2pfl.foreign import printable

if TYPE_CHECKING:
    from p2pfl.features.lan.discovery import Tally
    from p2pfl.features.lan.doctor import AddressTried, Diagnosis, Patient


@click.command(epilog="\b\nExamples:\n  p2pfl doctor ward-7\n  p2pfl doctor /var/lib/p2pfl --node pi1")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option(
    "--node",
    "name",
    metavar="NAME",
    help="The node of this machine: look as it does, at its neighbors alone.  [default: the only one with a key here]",
)
@format_option("table", "json")
def doctor(*, federation: Path, name: str | None, form: Form) -> int:
    """Find out why nodes do not reach each other, and what to do.

    Queries the LAN by multicast DNS, if discovery is on, and every address where a listed member may be. Reports what
    each network interface sent and received, who answers where, and whose federation file differs. A node that runs
    here is asked about its sessions and its relays. Nothing is changed: any user may run it, while a node runs or not.
    Each way is tried, by a proxy and directly, as the node would. Exits with 1 if something is wrong.
    """
    from p2pfl.features.lan.doctor import LISTEN_S, diagnose  # noqa: PLC0415 - `--help` stays instant

    if form == "table":
        click.echo(f"listening on the LAN and asking at every address, about {LISTEN_S:g} s ...", err=True)
    diagnosis = diagnose(federation, name)
    shown = _as_object(diagnosis)
    write_json(shown) if form == "json" else _print(shown, diagnosis.patients)
    return int(bool(diagnosis.problems))


def _interface_row(tally: Tally, patients: list[Patient]) -> dict[str, Any]:
    seen = [
        patient.member.name
        for patient in patients
        if not patient.here and any(tally.interface.name in service.interfaces for service in patient.heard)
    ]
    return {
        "interface": tally.interface.name,
        "addresses": [str(address) for address in tally.interface.addresses],
        "sent": tally.sent,
        "heard_itself": tally.heard_own,
        "heard_others": tally.heard_others,
        "from_machines": len(tally.strangers),
        "members": seen,
    }


def _member_row(diagnosis: Diagnosis, patient: Patient) -> dict[str, Any]:
    place = patient.answering
    return {
        "member": patient.member.name,
        "here": patient.here,
        "listed": patient.member.address,
        "heard_at": sorted({f"{text} port {service.port}" for service in patient.heard for text in service.addresses}),
        "session": patient.has_session,
        "answers_at": None if place is None else place.address,
        "places": [
            {
                "address": tried.address,
                "via": list(tried.via),
                "way": tried.way,
                "found": tried.answer.kind.name.lower().replace("_", "-"),
                "detail": tried.answer.detail or None,
                "round_trip_ms": None
                if tried.answer.round_trip_s is None
                else round(1e3 * tried.answer.round_trip_s, 1),
            }
            for tried in patient.places
        ],
        "differs_in": None if place is None else list(place.answer.differences),
        "discovery": bool(patient.heard) if diagnosis.discovery else None,
    }


def _as_object(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "federation": diagnosis.federation.name,
        "node": diagnosis.node,
        "discovery": diagnosis.discovery,
        "interfaces": [_interface_row(tally, diagnosis.patients) for tally in diagnosis.tallies],
        "skipped": [{"interface": nic.name, "why": nic.skipped} for nic in diagnosis.skipped],
        "members": [_member_row(diagnosis, patient) for patient in diagnosis.patients],
        "problems": [{"text": problem.text, "remedy": problem.remedy} for problem in diagnosis.problems],
    }


def _print(shown: dict[str, Any], patients: list[Patient]) -> None:
    if rows := shown["interfaces"]:
        texts = [row | {key: ", ".join(row[key]) or "-" for key in ("addresses", "members")} for row in rows]
        write_rows(texts, "table")
    if skipped := ", ".join(f"{nic['interface']}: {nic['why']}" for nic in shown["skipped"]):
        click.echo(f"not used: {skipped}")
    click.echo()
    write_rows([_cells(row) for row in shown["members"]], "table")
    others = [patient for patient in patients if not patient.here]
    if paths := [_path_row(patient.member.name, tried) for patient in others for tried in patient.places]:
        click.echo()
        write_rows(paths, "table")
    click.echo()
    if not shown["problems"]:
        click.echo("all is well")
    for problem in shown["problems"]:
        click.echo(printable(f"* {problem['text']}"))
        click.echo(printable(f"  what to do: {problem['remedy']}"))


def _path_row(name: str, place: AddressTried) -> dict[str, Any]:
    answer = place.answer
    return {
        "neighbor": name,
        "address": place.address.partition("#")[0],
        "way": place.way,
        "answer": answer.kind.value,
        "round trip": None if answer.round_trip_s is None else f"{1e3 * answer.round_trip_s:.1f} ms",
        "what was in the way": answer.detail or None,
    }


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return the cells for a table."""
    tried = ", ".join(f"{place['address'].partition('#')[0]}: {place['found']}" for place in row["places"])
    at = (row["answers_at"] or "").partition("#")[0] or tried or None
    return {
        "member": f"{row['member']} (this machine)" if row["here"] else row["member"],
        "listed": None if row["listed"] is None else row["listed"].partition("#")[0],
        "heard on the LAN": ", ".join(row["heard_at"]) or None,
        "answers": "yes" if row["answers_at"] else "no, but has a session" if row["session"] else "no",
        "at": at,
        "file": None if row["differs_in"] is None else "differs" if row["differs_in"] else "same",
    }


class LanOptions(NewOptions):
    """`p2pfl new --lan`: nodes on several machines of one LAN, which find each other without addresses."""

    parameters = (click.Option(["--lan"], is_flag=True, help="For one LAN: nodes find each other on it."),)
    after = "topology"

    def plan(self, plan: NewPlan, said: Mapping[str, Any]) -> None:
        plan.discovery = said["lan"]
