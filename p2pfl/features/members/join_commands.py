"""`p2pfl invite` and `p2pfl join`: a new machine and the owner of the admin key exchange two lines."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from p2pfl.console.wall_clock import seconds_now

SQUARES = 3
"""The width of the QR code's quiet zone, in squares: on a terminal, fewer than the standard's four are enough."""
MOST_DAYS = 366


@click.command(epilog="\b\nExamples:\n  p2pfl invite ward pi4\n  p2pfl invite ward pi2 --replace")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.argument("name", metavar="NAME")
@click.option("--replace", "replacing", is_flag=True, help="The machine takes the place of the member NAME.")
@click.option(
    "--days", type=click.IntRange(1, MOST_DAYS), default=3, show_default=True, help="How long the line is valid."
)
@click.option("--no-qr", is_flag=True, help="Print the line without its QR code.")
def invite(*, federation: Path, name: str, replacing: bool, days: int, no_qr: bool) -> None:
    """Print the line with which the new machine NAME asks to become a member, and its QR code.

    On the new machine: p2pfl join 'LINE'. The line contains no code and no signing key. Its only secret is a token,
    valid for a few days and for one request.
    """
    from p2pfl.config.invites import in_words  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.config.load import load_config  # noqa: PLC0415 - as above
    from p2pfl.features.members.publishing import issue, require_admin  # noqa: PLC0415 - as above
    from p2pfl.net.address import is_loopback, parse_address  # noqa: PLC0415 - as above

    found = load_config(federation)
    require_admin(found)
    made = issue(found, name, now=seconds_now(), days=days, replacing=replacing)
    line = made.line()
    click.echo(line)
    if not no_qr:
        _show_code(line)
    command = "replace" if replacing else "add"
    click.echo(
        f"on {name}: p2pfl join 'LINE'; its answer goes to p2pfl member {command} {federation} 'ANSWER'", err=True
    )
    if made.until is not None:
        click.echo(f"it is valid for one answer, until {in_words(made.until)}", err=True)
    if found.relays:
        text = f"{name} meets the members at relays, which open to a ticket only: `p2pfl member {command}` makes it"
        click.echo(f"{text}; then copy tickets.toml to {name}, beside its federation.toml", err=True)
    elif not made.contacts and not found.discovery:
        text = f"no member has an address, so that {name} cannot ask to be added: p2pfl member set"
        click.echo(f"{text} {federation} --address NAME=HOST:PORT, or discovery = true on one LAN", err=True)
    if made.contacts and all(is_loopback(parse_address(one.address, "address").host) for one in made.contacts):
        text = "the members' addresses are for this machine alone: no other machine can reach them; first"
        click.echo(f"{text} p2pfl member set {federation} --address NAME=HOST:PORT, and invite again", err=True)


def _show_code(line: str) -> None:
    """Print the QR code to stderr, so that stdout has only the line."""
    try:
        import segno  # noqa: PLC0415 - an extra, and only for this
    except ModuleNotFoundError:
        click.echo("no QR code: it needs segno (pip install '.[qr]' in a checkout)", err=True)
        return
    if sys.stderr.isatty():
        segno.make(line, error="l").terminal(out=sys.stderr, compact=True, border=SQUARES)


@click.command(epilog="\b\nExamples:\n  p2pfl join 'p2pfl:...' --from /media/usb/ward\n  p2pfl run ward --node pi4")
@click.argument("line", metavar="LINE")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--from", "source", type=click.Path(path_type=Path), help="A copy of federation.toml and its task file.")
@click.option("--address", metavar="HOST:PORT", help="Where others reach this machine; by default it finds out.")
def join(*, line: str, directory: Path | None, source: Path | None, address: str | None) -> None:
    """Create this machine's key and the folder DIR from the LINE that `p2pfl invite` printed.

    Prints a one-line request for `p2pfl member add`. By default DIR has the federation's name. The key never leaves
    this machine. The line contains no code: copy federation.toml and the task's file into DIR, before or after, or give
    their location with --from. They must be the files for which the invite was made.
    """
    from p2pfl.config.invites import read_invite, require_current  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.config.load import FILE_NAME, load_config  # noqa: PLC0415 - as above
    from p2pfl.config.model import MEMBER  # noqa: PLC0415 - as above
    from p2pfl.crypto.identity import fingerprint  # noqa: PLC0415 - as above
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above
    from p2pfl.features.members.new_folder import make_folder  # noqa: PLC0415 - as above

    found = read_invite(line)
    require_current(found, seconds_now())
    if address is not None:
        try:
            MEMBER["address"].read(address)
        except ValueError as reason:
            allowed = MEMBER["address"].allowed
            raise UserError(str(reason) or "not an address", key="--address", value=address, allowed=allowed) from None
    target = (directory or Path(found.federation_name)).absolute()
    joined = make_folder(found, target, source=source, address=address)
    shown = directory or Path(found.federation_name)
    click.echo(joined.line)
    click.echo(f"made {shown / found.name}: its key stays on this machine", err=True)
    text = "send the line above to whoever made the invite, for p2pfl member add, or replace"
    click.echo(f"{text}: what `p2pfl invite` has named there", err=True)
    click.echo(f"the command asks there whether the key is {fingerprint(joined.request.key)}: compare", err=True)
    if not (target / FILE_NAME).exists():
        text = f"still missing in {shown}: federation.toml and the task's file, as on any other node; copy them there"
        click.echo(text, err=True)
    elif load_config(target).relays:
        text = f"once it is added, ask for tickets.toml, and copy it to {shown}: relays open to a ticket only"
        click.echo(text, err=True)
    click.echo(f"then, before or after you are added: p2pfl run {shown} --node {found.name}", err=True)
