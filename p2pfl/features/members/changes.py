"""Changes of the signed list of members, on the machine of an admin key's owner.

Each reads the charter, makes the next one, signs it with the admin key, writes members.toml and sends it to running
nodes, which pass it on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from p2pfl.config.charter import Charter, amended
from p2pfl.config.load import load_config
from p2pfl.config.members import JoinRequest, members_file, read_request
from p2pfl.config.model import MEMBER, FederationConfig
from p2pfl.config.writing import successor, with_member, with_replacement, with_settings, without_member
from p2pfl.console import seconds_now
from p2pfl.console.output import Form, write_rows
from p2pfl.crypto.identity import Identity, fingerprint, public_text
from p2pfl.errors import UserError
from p2pfl.features.lan.discovery import Places, find_nearby, require_zeroconf
from p2pfl.features.members.publishing import (
    ADMIN_FILE,
    Delivery,
    charter_of,
    hand,
    keep,
    load_admin,
    newest_from,
    publish,
    require_bearable,
    require_invited,
    use_up,
)
from p2pfl.features.relay.tickets import tickets_file, write_tickets
from p2pfl.foreign import printable
from p2pfl.node.folders import newest_here


def show(path: Path, form: Form) -> None:
    """Show the members, including removed ones, and how many neighbors each has."""
    newest = newest_here(load_config(path))
    rows = [
        {
            "index": member.index,
            "name": member.name,
            "key": public_text(member.key),
            "address": member.address,
            "state": "removed" if member.retired else "member",
            "neighbors": len(newest.neighbors(member.index)),
        }
        for member in newest.members
    ]
    write_rows(rows, form, title=f"{newest.name}, version {newest.charter_version} of its members, {newest.topology}")


def begin(folder: Path, admin: Identity) -> None:
    """Keep a new admin key in a new federation's folder, and sign the first list of its members."""
    admin.save(folder / ADMIN_FILE)
    federation = load_config(folder)
    first = successor(federation)
    require_bearable(federation, first)
    publish(federation, first, admin)


def hand_again(path: Path, key_file: Path | None, *, offline: bool) -> bool:
    """Send the newest list of members, and new tickets, to the nodes. Return False if none could be reached."""
    here = load_config(path)
    admin = load_admin(here, key_file)
    nearby = {} if offline else _listen(here)
    newest = here if offline else asyncio.run(newest_from(here, admin, nearby))[0]
    has_relays = bool(newest.relays) or tickets_file(newest).exists()
    charter = charter_of(newest) if newest.charter or not has_relays else None
    if charter is not None and newest.edition != here.edition:
        click.echo(f"the nodes have version {charter.version} already: wrote {keep(newest, charter)}", err=True)
    credentials = _write_tickets(newest, admin) if has_relays else b""
    if offline:
        if not has_relays:
            click.echo("wrote nothing: without relays there are no tickets, and --offline sends nothing", err=True)
        return True
    handed = asyncio.run(hand(newest, charter, admin, nearby, credentials))
    _tell(handed)
    return bool(handed.received_by)


def _write_tickets(federation: FederationConfig, admin: Identity) -> bytes:
    """Write tickets for all members; return them in the form in which they are sent."""
    credentials = write_tickets(federation, admin, now_s=seconds_now())
    text = f"wrote {tickets_file(federation)}: {len(federation.present)} tickets for a year"
    click.echo(f"{text}; machines that do not run yet need a copy", err=True)
    return credentials.packed()


def remove(path: Path, name: str, key_file: Path | None, *, offline: bool) -> None:
    opened = open_newest(path, key_file, offline=offline)
    sign(opened, without_member(opened.federation, name))


def change(
    path: Path,
    key_file: Path | None,
    rounds: int | None,
    topology: str | None,
    addresses: Sequence[str],
    *,
    offline: bool,
) -> None:
    pairs = [read_address(text) for text in addresses]
    opened = open_newest(path, key_file, offline=offline)
    sign(opened, with_settings(opened.federation, rounds=rounds, topology=topology, addresses=pairs))


def admit(path: Path, line: str, key_file: Path | None, *, replaces: bool = False, yes: bool, offline: bool) -> bool:
    """Admit the machine that asks, in the place of another if it `replaces` one. This uses up the invite. Return False
    if refused.
    """
    asked = read_request(line)
    if not yes and not sys.stdin.isatty():
        allowed = "a terminal, to check the key and say yes; or --yes, which adds whoever answered the invite"
        raise UserError("there is no terminal to ask at", key="--yes", allowed=allowed)
    opened = open_newest(path, key_file, offline=offline)
    federation = opened.federation
    require_invited(federation, asked, now=seconds_now())
    successor_with = with_replacement if replaces else with_member
    charter = successor_with(federation, name=asked.name, key=asked.key, address=asked.address)
    _show_request(federation, charter, asked)
    if not yes and not click.confirm("add it?", err=True):
        click.echo("nothing was changed, and the invite still holds", err=True)
        return False
    here = load_config(path)
    if here.charter_version > federation.charter_version:  # another terminal has signed one while this one asked
        opened = replace(opened, federation=here)
        charter = successor_with(here, name=asked.name, key=asked.key, address=asked.address)
    sign(opened, charter)
    use_up(federation, asked)
    return True


def _show_request(federation: FederationConfig, charter: Charter, asked: JoinRequest) -> None:
    """Show the key and address that the new charter assigns to that name, and the ones that they replace."""
    newcomer = next(member for member in charter.present if member.key == asked.key)
    before = next((member for member in federation.present if member.name == asked.name), None)
    for text, member in ((f"{asked.name} asks to be a member:", newcomer), ("in the place of:", before)):
        if member is not None:
            address = member.address or "none: it dials, or is found on the LAN"
            click.echo(f"{text:<30} key {fingerprint(member.key)}   address {address}", err=True)
    click.echo(f"compare: `p2pfl join` has printed the key on {asked.name}", err=True)


def read_address(text: str) -> tuple[str, str | None]:
    """Parse NAME=HOST:PORT. Raises UserError: it is nothing like that."""
    name, equals, address = text.partition("=")
    if equals and not address:
        return name, None
    try:
        return name, MEMBER["address"].read(address)
    except ValueError as reason:
        allowed = "NAME=HOST:PORT with the name of a member and a port from 1 to 65535, NAME=wss://HOST:PORT/PATH, "
        allowed += "or NAME= for no address"
        raise UserError(str(reason) or "not an address", key="--address", value=text, allowed=allowed) from None


@dataclass(frozen=True, slots=True)
class OpenFederation:
    """The federation as of the newest charter, the signing key, and the addresses of members found on the LAN."""

    federation: FederationConfig
    admin: Identity
    nearby: Places
    offline: bool


def open_newest(path: Path, key_file: Path | None, *, offline: bool) -> OpenFederation:
    """Open the federation as of the newest charter here or, unless `offline`, on the nodes that can be reached."""
    here = load_config(path)
    admin = load_admin(here, key_file)
    if offline:
        return OpenFederation(here, admin, {}, offline)
    nearby = _listen(here)
    newest, answers = asyncio.run(newest_from(here, admin, nearby))
    if newest.edition is not None and newest.edition != here.edition:
        click.echo(
            f"the nodes have version {newest.edition.version} of the members already: the change starts there", err=True
        )
    if not answers:
        text = "no node answers: the change is made from members.toml here, which should be the newest"
        click.echo(text, err=True)
    return OpenFederation(newest, admin, nearby, offline)


def _listen(federation: FederationConfig) -> Places:
    """Listen for the members' addresses, if discovery is on.

    Raises UserError: no member has an address, and listening is impossible.
    """
    if not federation.discovery:
        return {}
    if all(member.address is None for member in federation.present):
        require_zeroconf(federation.path)
    return asyncio.run(find_nearby(federation))


def sign(opened: OpenFederation, charter: Charter) -> None:
    """Sign the charter, write it, and send it to running nodes, with new tickets if there are relays."""
    federation = opened.federation
    require_bearable(federation, charter)
    made = publish(federation, charter, opened.admin)
    before, after = set(federation.edges), set(made.edges)
    text = f"version {made.version} of the members: {len(made.present)} of them, {len(made.edges)} edges"
    click.echo(f"{text} (+{len(after - before)} -{len(before - after)})", err=True)
    click.echo(f"wrote {members_file(federation)}", err=True)
    credentials = _write_tickets(amended(federation, made), opened.admin) if federation.relays else b""
    if not opened.offline:
        _tell(asyncio.run(hand(federation, made, opened.admin, opened.nearby, credentials)))


def _tell(handed: Delivery) -> None:
    if handed.newer:
        held = ", ".join(f"{name} says that it has version {version}" for name, version in sorted(handed.newer.items()))
        click.echo(f"{held} already, signed elsewhere: look at `p2pfl member list` and do it again", err=True)
    elif handed.received_by:
        click.echo(f"handed to {', '.join(handed.received_by)}, who pass it on", err=True)
    else:
        click.echo(
            "no node could be reached: `p2pfl member hand` tries again; or copy the files to one before its start",
            err=True,
        )
    for name, why in sorted(handed.failed.items()):
        click.echo(printable(f"  {name}: {why}"), err=True)
