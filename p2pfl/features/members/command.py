"""`p2pfl member`: the signed list of members, and the commands that change it.

Each command reads the charter, makes the next one, signs it with the admin key, writes members.toml and sends it to
running nodes, which pass it on. `p2pfl new --admin` creates that key, and the first list.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from p2pfl.config.charter import Charter, amended
from p2pfl.config.load import load_config
from p2pfl.config.members import JoinRequest, members_file, read_request
from p2pfl.config.model import MEMBER, FederationConfig
from p2pfl.config.writing import successor, with_member, with_replacement, with_settings, without_member
from p2pfl.console.groups import Founding, FoundingPlan, Named
from p2pfl.console.output import Form, format_option, write_rows
from p2pfl.console.wall_clock import seconds_now
from p2pfl.crypto.identity import Identity, fingerprint, public_text
from p2pfl.errors import UserError
from p2pfl.features.lan.discovery import require_zeroconf
from p2pfl.features.lan.overhear import Places, find_nearby
from p2pfl.features.members.publishing import (
    ADMIN_FILE,
    Delivery,
    changed_edges,
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

LINES = {
    "list": "Show the members, including removed ones.",
    "add": "Add a new member, using the request that `p2pfl join` printed.",
    "remove": "Remove a member: within a round, nobody talks to it.",
    "replace": "Put a new machine in the place of one that is gone.",
    "set": "Change the number of rounds, the graph or addresses while nodes run.",
    "hand": "Send the newest list of members to the nodes again, and new tickets for relays.",
}
_federation = click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
_key = click.option(
    "--key", "key_file", type=click.Path(path_type=Path), help="The admin key; by default admin.key in FEDERATION."
)
_yes = click.option("--yes", is_flag=True, help="Do not ask: for scripts.")
_offline = click.option(
    "--offline", is_flag=True, help="Dial nobody: only write members.toml, for you to copy to the nodes."
)


class MemberCommands(Named):
    def lines(self) -> Mapping[str, str]:
        return LINES

    def find(self, name: str) -> Any:
        commands = {"list": show, "add": add, "remove": remove, "replace": replace, "set": change, "hand": hand_again}
        return commands[name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "ticket":
            instead = "`p2pfl member hand`, which writes and sends new tickets, too"
            raise UserError("is gone", key="member ticket", allowed=instead)
        return super().resolve_command(ctx, args)


@click.group(cls=MemberCommands, epilog="\b\nExamples:\n  p2pfl member list ward\n  p2pfl member remove ward pi4")
def member() -> None:
    """List and change the members of a federation that has an admin key, while its nodes run."""


@click.command("list", epilog="\b\nExamples:\n  p2pfl member list ward\n  p2pfl member list ward --format csv")
@_federation
@format_option("table", "json", "csv")
def show(*, federation: Path, form: Form) -> None:
    """Show the members, including removed ones, and how many neighbors each has."""
    newest = newest_here(load_config(federation))
    rows = [
        {
            "index": one.index,
            "name": one.name,
            "key": public_text(one.key),
            "address": one.address,
            "state": "removed" if one.retired else "member",
            "neighbors": len(newest.neighbors(one.index)),
        }
        for one in newest.members
    ]
    write_rows(rows, form, title=f"{newest.name}, version {newest.charter_version} of its members, {newest.topology}")


@click.command(epilog="\b\nExample:\n  p2pfl member add ward 'p2pfl-request:...'")
@_federation
@click.argument("request", metavar="REQUEST")
@_yes
@_key
@_offline
@click.pass_context
def add(
    context: click.Context, *, federation: Path, request: str, yes: bool, key_file: Path | None, offline: bool
) -> None:
    """Add a new member, by the REQUEST that `p2pfl join` printed on its machine.

    It shows the key and address, and asks for confirmation: the two people should compare the key. Exit code 1: you did
    not confirm, and nothing was changed.
    """
    if not _admit(with_member, federation, request, key_file, yes=yes, offline=offline):
        context.exit(1)


@click.command(epilog="\b\nExample:\n  p2pfl member remove ward pi4")
@_federation
@click.argument("name", metavar="NAME")
@_key
@_offline
def remove(*, federation: Path, name: str, key_file: Path | None, offline: bool) -> None:
    """Remove the member NAME: within a round, nobody talks to it. Its key cannot be used again."""
    opened = _open(federation, key_file, offline=offline)
    _sign(opened, without_member(opened.federation, name))


@click.command(
    epilog="\b\nExamples:\n  p2pfl invite ward pi2 --replace\n  p2pfl member replace ward 'p2pfl-request:...'"
)
@_federation
@click.argument("request", metavar="REQUEST")
@_yes
@_key
@_offline
@click.pass_context
def replace(
    context: click.Context, *, federation: Path, request: str, yes: bool, key_file: Path | None, offline: bool
) -> None:
    """Put a new machine in the place of one that is gone: the same name and neighbors, another key.

    REQUEST is what `p2pfl join` printed on the new machine, for an invite made with --replace. As with add, it asks for
    confirmation first.
    """
    if not _admit(with_replacement, federation, request, key_file, yes=yes, offline=offline):
        context.exit(1)


@click.command(
    "set",
    epilog="\b\nExamples:\n  p2pfl member set ward --rounds 200\n  p2pfl member set ward --address pi2=10.0.0.7:8470",
)
@_federation
@click.option("--rounds", type=click.IntRange(1), help="Rounds of each node.")
@click.option("--topology", help="Another graph: a spec, or a graph file in FEDERATION.")
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="NAME=HOST:PORT",
    help="Where a member is now; NAME= removes it: the member dials, or is found on the LAN.",
)
@_key
@_offline
def change(
    *,
    federation: Path,
    rounds: int | None,
    topology: str | None,
    addresses: tuple[str, ...],
    key_file: Path | None,
    offline: bool,
) -> None:
    """Change the number of rounds, the graph or addresses while nodes run."""
    if rounds is None and topology is None and not addresses:
        raise UserError("nothing to change", key="member set", allowed="--rounds, --topology or --address")
    told = [_address(text) for text in addresses]
    opened = _open(federation, key_file, offline=offline)
    _sign(opened, with_settings(opened.federation, rounds=rounds, topology=topology, addresses=told))


@click.command("hand", epilog="\b\nExample:\n  p2pfl member hand ward")
@_federation
@_key
@_offline
@click.pass_context
def hand_again(context: click.Context, *, federation: Path, key_file: Path | None, offline: bool) -> None:
    """Send the newest list of members to the nodes again, in case a change has reached nobody.

    The list comes from members.toml, or is a newer one from a node, which is then written there. Where the federation
    has relays, also writes tickets.toml anew: tickets hold for a year, and only new machines need a copy by hand. Exit
    code 1: no node could be reached.
    """
    here = load_config(federation)
    admin = load_admin(here, key_file)
    nearby = {} if offline else _listen(here)
    newest = here if offline else asyncio.run(newest_from(here, admin, nearby))[0]
    has_relays = bool(newest.relays) or tickets_file(newest).exists()
    charter = charter_of(newest) if newest.charter or not has_relays else None
    if charter is not None and newest.edition != here.edition:
        click.echo(f"the nodes have version {charter.version} already: wrote {keep(newest, charter)}", err=True)
    sheet = _write_tickets(newest, admin) if has_relays else b""
    if not offline:
        handed = asyncio.run(hand(newest, charter, admin, nearby, sheet))
        _tell(handed)
        if not handed.received_by:
            context.exit(1)


def _write_tickets(federation: FederationConfig, admin: Identity) -> bytes:
    """Write tickets for all members; return them in the form in which they are sent."""
    sheet = write_tickets(federation, admin, now_s=seconds_now())
    text = f"wrote {tickets_file(federation)}: {len(federation.present)} tickets for a year"
    click.echo(f"{text}; machines that do not run yet need a copy", err=True)
    return sheet.packed()


def _admit(
    successor: Callable[..., Charter], path: Path, line: str, key_file: Path | None, *, yes: bool, offline: bool
) -> bool:
    """Admit the machine that asks, with the charter from `successor`. This uses up the invite. Return False if
    refused.
    """
    asked = read_request(line)
    if not yes and not sys.stdin.isatty():
        allowed = "a terminal, to check the key and say yes; or --yes, which adds whoever answered the invite"
        raise UserError("there is no terminal to ask at", key="--yes", allowed=allowed)
    opened = _open(path, key_file, offline=offline)
    federation = opened.federation
    require_invited(federation, asked, now=seconds_now())
    charter = successor(federation, name=asked.name, key=asked.key, address=asked.address)
    _show_request(federation, charter, asked)
    if not yes and not click.confirm("add it?", err=True):
        click.echo("nothing was changed, and the invite still holds", err=True)
        return False
    _sign(opened, charter)
    use_up(federation, asked)
    return True


def _show_request(federation: FederationConfig, charter: Charter, asked: JoinRequest) -> None:
    """Show the key and address that the new charter assigns to that name, and the ones that they replace."""
    newcomer = next(one for one in charter.present if one.key == asked.key)
    before = next((one for one in federation.present if one.name == asked.name), None)
    for text, one in ((f"{asked.name} asks to be a member:", newcomer), ("in the place of:", before)):
        if one is not None:
            address = one.address or "none: it dials, or is found on the LAN"
            click.echo(f"{text:<30} key {fingerprint(one.key)}   address {address}", err=True)
    click.echo(f"compare: `p2pfl join` has printed the key on {asked.name}", err=True)


def _address(text: str) -> tuple[str, str | None]:

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
class _OpenFederation:
    """The federation as of the newest charter, the signing key, and the addresses of members found on the LAN."""

    federation: FederationConfig
    admin: Identity
    nearby: Places
    offline: bool


def _open(path: Path, key_file: Path | None, *, offline: bool) -> _OpenFederation:
    """Open the federation as of the newest charter here or, unless `offline`, on the nodes that can be reached."""
    here = load_config(path)
    admin = load_admin(here, key_file)
    if offline:
        return _OpenFederation(here, admin, {}, offline)
    nearby = _listen(here)
    newest, answers = asyncio.run(newest_from(here, admin, nearby))
    if newest.edition is not None and newest.edition != here.edition:
        click.echo(
            f"the nodes have version {newest.edition.version} of the members already: the change starts there", err=True
        )
    if not answers:
        text = "no node answers: the change is made from members.toml here, which should be the newest"
        click.echo(text, err=True)
    return _OpenFederation(newest, admin, nearby, offline)


def _listen(federation: FederationConfig) -> Places:
    """Listen for the members' addresses, if discovery is on.

    Raises UserError: no member has an address, and listening is impossible.
    """
    if not federation.discovery:
        return {}
    if all(member.address is None for member in federation.present):
        require_zeroconf(federation.path)
    return asyncio.run(find_nearby(federation))


def _sign(opened: _OpenFederation, charter: Charter) -> None:

    federation = opened.federation
    require_bearable(federation, charter)
    made = publish(federation, charter, opened.admin)
    came, went = changed_edges(federation.edges, made.edges)
    text = f"version {made.version} of the members: {len(made.present)} of them, {len(made.edges)} edges"
    click.echo(f"{text} (+{came} -{went})", err=True)
    click.echo(f"wrote {members_file(federation)}", err=True)
    sheet = _write_tickets(amended(federation, made), opened.admin) if federation.relays else b""
    if amended(federation, made).edge_compressors != federation.edge_compressors:
        text = "an edge with its own [[edge]] table is added or removed: nodes adopt that at their next start"
        click.echo(text, err=True)
    if not opened.offline:
        _tell(asyncio.run(hand(federation, made, opened.admin, opened.nearby, sheet)))


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


class MembersFounding(Founding):
    parameters = (
        click.Option(
            ["--admin"], is_flag=True, help="Also make an admin key: members may then come and go while nodes run."
        ),
    )
    after = "name"

    def __init__(self) -> None:
        self._signer: Identity | None = None

    def plan(self, plan: FoundingPlan, said: Mapping[str, Any]) -> None:
        if said["admin"]:
            self._signer = Identity.generate()
            plan.admin = public_text(self._signer.public)
            plan.topology = plan.topology or "keyed-rings"

    def write(self, folder: Path) -> None:
        if self._signer is None:
            return

        self._signer.save(folder / ADMIN_FILE)
        federation = load_config(folder)
        first = successor(federation)
        require_bearable(federation, first)
        publish(federation, first, self._signer)

    def tell(self, directory: Path) -> None:
        if self._signer is not None:
            secret = directory / "admin.key"
            text = f"made {secret}: it can change the members. Keep it off the nodes, and keep a copy elsewhere"
            click.echo(text, err=True)
