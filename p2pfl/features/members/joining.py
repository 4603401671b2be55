"""`p2pfl invite` and `p2pfl join`: a new machine and the owner of the admin key exchange two lines.

The new machine gets a folder: its own key, which never leaves it, the copied files, and the request to become a member.
"""

from __future__ import annotations

import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path

import click

from p2pfl.config.charter import federation_id
from p2pfl.config.load import FILE_NAME, federation_file, load_config
from p2pfl.config.members import (
    Invite,
    JoinRequest,
    code_digest,
    code_files,
    in_words,
    members_file,
    read_invite,
    request_line,
    require_current,
)
from p2pfl.config.model import MEMBER, FederationConfig
from p2pfl.config.schemas import write_schemas
from p2pfl.config.writing import NewMember, node_text
from p2pfl.console import seconds_now
from p2pfl.crypto.identity import Identity, fingerprint, public_text
from p2pfl.errors import UserError
from p2pfl.features.members.publishing import issue, require_admin
from p2pfl.net.address import free_ports, is_loopback, parse_address
from p2pfl.node.folders import KEY_FILE, appearing

INVITE_FILE = "invite"
USUAL_PORT = 8470
PRIVATE = 0o700


def make_folder(invite: Invite, target: Path, *, source: Path | None, address: str | None) -> tuple[str, bytes]:
    """Make a folder for the new member in `target`. Return its request, as people carry it, and its public key.

    `target` is new, or a copy of the federation's files; `source` is such a copy elsewhere. The files are checked
    against the invite. Raises UserError: the files differ, or the member has a folder there already.
    """
    is_copy = (target / FILE_NAME).exists()
    if is_copy and source is not None:
        text = "has a federation's files already"
        raise UserError(text, key="DIR", value=str(target), allowed="a new or an empty folder, or no --from")
    if is_copy and (target / invite.name).exists():
        text = f"{invite.name} has a folder there already: a member that joins again needs a new key"
        raise UserError(text, key="DIR", value=str(target / invite.name), allowed="a folder without it")
    files = target if is_copy else source
    federation = None if files is None else load_config(files)
    if federation is not None:
        require_same(federation, invite)
    at = address or _place(invite, federation)
    identity = Identity.generate()
    if is_copy:
        with appearing(target / invite.name) as own:
            _fill(own, invite, identity, at)
    else:
        with appearing(target) as folder:
            (folder / invite.name).mkdir(mode=0o700)
            _fill(folder / invite.name, invite, identity, at)
            for file in [] if federation is None else files_of(federation):
                shutil.copyfile(file, folder / file.name)
    write_schemas(target)
    request = JoinRequest(
        federation=invite.federation, name=invite.name, key=identity.public, address=at, token=invite.token
    )
    return request_line(request, identity.sign), identity.public


def _fill(own: Path, invite: Invite, identity: Identity, address: str | None) -> None:
    own.chmod(PRIVATE)
    identity.save(own / KEY_FILE)
    member = NewMember(name=invite.name, key=public_text(identity.public), address=address)
    reachable = address is not None and not is_loopback(parse_address(address, "--address").host)
    (own / "node.toml").write_text(node_text(member, reachable=reachable), encoding="utf-8")
    (own / INVITE_FILE).write_text(f"{invite.line()}\n", encoding="utf-8")


def _place(invite: Invite, federation: FederationConfig | None) -> str | None:
    """Return the address to request, or None if members find each other, or meet at relays, and have no addresses."""
    finds = federation is None or federation.discovery or bool(federation.relays)
    return None if finds and not invite.contacts else own_address(invite)


def files_of(federation: FederationConfig) -> list[Path]:
    """Return the files that a new machine needs: the federation file, the code that it names, and any charter."""
    charter = members_file(federation)
    return [federation.path, *code_files(federation), *([charter] if charter.exists() else [])]


def find_invite(federation: Path | str, name: str) -> Invite | None:
    """Return the invite with which the member `name` was created here, or None if it was not."""
    path = federation_file(federation).parent / name / INVITE_FILE
    try:
        return read_invite(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", file=path, allowed="the invite that `p2pfl join` took") from None


def require_same(federation: FederationConfig, invite: Invite) -> None:
    """Check that the copied files are the ones for which the invite was made. Raises UserError: they differ."""
    allowed = "a copy from the machine that made the invite, or from a node"
    if federation_id(federation) != invite.federation:
        text = "not the federation file that the invite was made for"
        raise UserError(text, file=federation.path, allowed=allowed)
    if code_digest(federation) != invite.code:
        named = ", ".join(file.name for file in code_files(federation))
        text = f"not the code that the invite was made for: {named}"
        raise UserError(text, file=federation.path.parent, allowed=allowed)


def own_address(invite: Invite) -> str:
    """Guess where others can reach this machine: its address on the route to a member, and a free port."""
    host = "127.0.0.1"
    for contact in invite.contacts:
        there = parse_address(contact.address, "LINE")
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((there.host, there.port))  # nothing is sent
            host = probe.getsockname()[0]
            break
    return f"{host}:{free_ports(1)[0] if is_loopback(host) or not _is_free(USUAL_PORT) else USUAL_PORT}"


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False


def invite(federation: Path, name: str, *, replacing: bool) -> None:
    """Print the line with which the new machine asks to become a member."""
    described = load_config(federation)
    require_admin(described)
    made = issue(described, name, now=seconds_now(), replacing=replacing)
    click.echo(made.line())
    if sys.stderr.isatty():
        show_qr(made.line())
    command = "replace" if replacing else "add"
    click.echo(
        f"on {name}: p2pfl join 'LINE'; its answer goes to p2pfl member {command} {federation} 'ANSWER'", err=True
    )
    click.echo(f"it is valid for one answer, until {in_words(made.until)}", err=True)
    if described.relays:
        text = f"{name} meets the members at relays, which open to a ticket only: `p2pfl member {command}` makes it"
        click.echo(f"{text}; then copy members.toml and tickets.toml to {name}, beside its federation.toml", err=True)
    elif not made.contacts and not described.discovery:
        text = f"no member has an address, so that {name} cannot ask to be added: p2pfl member set"
        click.echo(f"{text} {federation} --address NAME=HOST:PORT, or discovery = true on one LAN", err=True)
    if made.contacts and all(is_loopback(parse_address(contact.address, "address").host) for contact in made.contacts):
        text = "the members' addresses are for this machine alone: no other machine can reach them; first"
        click.echo(f"{text} p2pfl member set {federation} --address NAME=HOST:PORT, and invite again", err=True)


def show_qr(line: str) -> None:
    """Print the QR code to stderr, so that stdout has only the line."""
    try:
        import segno  # noqa: PLC0415 - an extra, and only for this
    except ModuleNotFoundError:
        click.echo("no QR code: it needs segno (pip install '.[qr]' in a checkout)", err=True)
        return
    segno.make(line, error="l").terminal(out=sys.stderr, compact=True, border=2)


def join(line: str, directory: Path | None, source: Path | None, address: str | None) -> None:
    """Create this machine's key and its folder from a line, and print the request."""
    invited = read_invite(line)
    require_current(invited, seconds_now())
    if address is not None:
        try:
            MEMBER["address"].read(address)
        except ValueError as reason:
            allowed = MEMBER["address"].allowed
            raise UserError(str(reason) or "not an address", key="--address", value=address, allowed=allowed) from None
    target = (directory or Path(invited.federation_name)).absolute()
    request, key = make_folder(invited, target, source=source, address=address)
    shown = directory or Path(invited.federation_name)
    click.echo(request)
    click.echo(f"made {shown / invited.name}: its key stays on this machine", err=True)
    text = "send the line above to whoever made the invite"
    click.echo(f"{text}, who gives it to the command that `p2pfl invite` printed there", err=True)
    click.echo(f"that command asks whether the key is {fingerprint(key)}: compare", err=True)
    if not (target / FILE_NAME).exists():
        text = f"still missing in {shown}: federation.toml and the task's file, as on any other node; copy them there"
        click.echo(text, err=True)
    elif load_config(target).relays:
        text = f"once it is added, ask for members.toml and tickets.toml, and copy both to {shown}"
        click.echo(text, err=True)
    click.echo(f"then, before or after you are added: p2pfl run {shown} --node {invited.name}", err=True)
