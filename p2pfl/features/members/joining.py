"""`p2pfl invite` and `p2pfl join`: a new machine and the owner of the admin key exchange two lines.

The new machine gets a folder: its own key, which never leaves it, the copied files, and the request to become a member.
Where both have a terminal, files, request and answer travel by themselves (`pairing`); else people carry them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from p2pfl.config.charter import federation_id
from p2pfl.config.load import FILE_NAME, federation_file, load_config
from p2pfl.config.members import (
    Invite,
    JoinRequest,
    Meeting,
    code_digest,
    code_files,
    in_words,
    members_file,
    read_invite,
    read_request,
    request_line,
    require_current,
    require_valid,
)
from p2pfl.config.model import FederationConfig
from p2pfl.config.schemas import write_schemas
from p2pfl.config.writing import NewMember, node_text
from p2pfl.console import seconds_now
from p2pfl.crypto.identity import Identity, fingerprint, public_text
from p2pfl.errors import UserError
from p2pfl.features.members.pairing import BY_HAND, SERVED_S, VISIT_S, Answer, Inviter, ask_to_join, fetch, pack_files
from p2pfl.features.members.publishing import ADMIN_FILE, READABLE, issue, load_admin, require_admin
from p2pfl.features.relay.tickets import tickets_file
from p2pfl.foreign import printable
from p2pfl.net.address import free_ports, is_loopback, parse_address
from p2pfl.net.websocket import UnreachableError
from p2pfl.node.folders import KEY_FILE, appearing
from p2pfl.storage.disk import replace_file
from topologies.files.content import is_file

INVITE_FILE = "invite"
USUAL_PORT = 8470


def make_member(
    invite: Invite, target: Path, *, source: Path | None, address: str | None, identity: Identity | None = None
) -> tuple[str, bytes]:
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
    finds = federation is None or federation.discovery or bool(federation.relays)
    if address is None and (invite.contacts or not finds):  # else members find each other, or meet at relays
        address = own_address(invite)
    identity = identity or Identity.generate()
    member = NewMember(name=invite.name, key=public_text(identity.public), address=address)
    reachable = address is not None and not is_loopback(parse_address(address, "--address").host)
    with appearing(target / invite.name if is_copy else target) as folder:
        own = folder if is_copy else folder / invite.name
        own.mkdir(exist_ok=True)
        own.chmod(0o700)
        identity.save(own / KEY_FILE)
        (own / "node.toml").write_text(node_text(member, reachable=reachable), encoding="utf-8")
        (own / INVITE_FILE).write_text(f"{invite.line()}\n", encoding="utf-8")
        for file in [] if is_copy or federation is None else files_of(federation):
            shutil.copyfile(file, folder / file.name)
    write_schemas(target)
    request = JoinRequest(
        federation=invite.federation, name=invite.name, key=identity.public, address=address, token=invite.token
    )
    return request_line(request, identity.sign), identity.public


def files_of(federation: FederationConfig) -> list[Path]:
    """Return the files that a new machine needs: the federation file, code and files that it names, and any charter."""
    beside, charter, topology = federation.path.parent, members_file(federation), federation.topology
    words = [word for word in federation.task.options.values() if isinstance(word, str)]
    words += [topology] if is_file(topology) else []
    named = [beside / word for word in words if os.path.isfile(beside / word)]  # noqa: PTH113 - a long text is no error
    files = [federation.path, *code_files(federation), *named, *([charter] if charter.exists() else [])]
    return list(dict.fromkeys(files))


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
    met = () if invite.meeting is None else invite.meeting.addresses
    for place in (*(contact.address for contact in invite.contacts), *met):
        there = parse_address(place, "LINE")
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((there.host, there.port))  # nothing is sent
            host = probe.getsockname()[0]
            break
    with suppress(OSError):
        if not is_loopback(host):
            socket.create_server(("", USUAL_PORT)).close()
            return f"{host}:{USUAL_PORT}"
    return f"{host}:{free_ports(1)[0]}"


def invite(federation: Path, name: str, *, replacing: bool, key_file: Path | None) -> bool:
    """Print the line with which the new machine asks to become a member. On a terminal with the admin key, then hand it
    the files and add it. Return False if it waited in vain, or the answer was no.
    """
    described = load_config(federation)
    require_admin(described)
    packed = None
    if sys.stdin.isatty() and sys.stdout.isatty() and (key_file or (described.path.parent / ADMIN_FILE).exists()):
        admin = load_admin(described, key_file)
        try:
            packed = pack_files(files_of(described), described.path.parent)
        except UserError as error:
            click.echo(f"the files must be carried by hand: {error}", err=True)
    made = issue(described, name, now=seconds_now(), replacing=replacing)
    if packed is None:
        _show_line(federation, described, made, replacing=replacing)
        return True
    waiting = Inviter(federation=described, invite=made, packed=packed, admin=admin)

    def show(meeting: Meeting) -> None:
        _show_line(federation, described, msgspec.structs.replace(made, meeting=meeting), replacing=replacing)
        places = ", ".join(filter(None, (*meeting.addresses, meeting.relay.partition("#")[0])))
        text = f"\nor, while this waits ten minutes at {places} (Ctrl+C ends that):"
        click.echo(f"{text} p2pfl join 'LINE' on {name} fetches the files, and you are asked here", err=True)

    request = None
    with suppress(KeyboardInterrupt):
        request = asyncio.run(waiting.wait(SERVED_S, show))
    if request is None:
        click.echo("nobody has asked, and the files are not handed over any more", err=True)
        return False
    from p2pfl.features.members.changes import admit  # noqa: PLC0415 - for who adds a member only

    waiting.answer = Answer("the answer there was no, or an error, which stands on its screen")
    try:
        admit(federation, request, key_file, replaces=replacing, yes=False, offline=False)
    finally:  # the list says if it was added: Ctrl+C may come after it was signed
        if read_request(request).key in {member.key for member in load_config(federation).present}:
            newer = [file for file in (members_file(described), tickets_file(described)) if file.exists()]
            waiting.answer = Answer("", {file.name: file.read_bytes() for file in newer})
        if asyncio.run(waiting.wait(VISIT_S)) is None:
            click.echo(f"{name} has not fetched the answer: its screen will say what to do", err=True)
    return not waiting.answer.why


def _show_line(federation: Path, described: FederationConfig, made: Invite, *, replacing: bool) -> None:
    name = made.name
    click.echo(made.line())
    if sys.stderr.isatty():
        show_qr(made.line())
    command = "replace" if replacing else "add"
    by_hand = "" if made.meeting is None else " --from COPY, with the files carried by hand"
    click.echo(
        f"on {name}: p2pfl join 'LINE'{by_hand}; its answer goes to p2pfl member {command} {federation} 'ANSWER'",
        err=True,
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


def join(line: str, directory: Path | None, source: Path | None, address: str | None, *, yes: bool) -> bool:
    """Create this machine's key and its folder from a line, and print the request; or, if the inviter waits, fetch what
    is missing and ask it. Return False if the person did not want the files.
    """
    invited = read_invite(line)
    if address is not None:
        require_valid("address", address, "--address")
    shown = directory or Path(invited.federation_name)
    target = shown.absolute()
    if invited.meeting is not None and source is None and not (target / FILE_NAME).exists():
        return _pair(invited, invited.meeting, shown, address, yes=yes)
    require_current(invited, seconds_now())
    request, key = make_member(invited, target, source=source, address=address)
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
    return True


def _pair(invited: Invite, meeting: Meeting, shown: Path, address: str | None, *, yes: bool) -> bool:
    """Fetch the files, show them, make the folder, and ask the inviter to add this machine. Raises UserError."""
    if not yes and not sys.stdin.isatty():
        allowed = f"a terminal, to see which code would run; --yes, which trusts the inviter; or {BY_HAND}"
        raise UserError("there is no terminal to ask at", key="--yes", allowed=allowed)
    target, identity = shown.absolute(), Identity.generate()
    with tempfile.TemporaryDirectory(prefix="p2pfl-join-") as folder:
        source = Path(folder).resolve()
        for name, content in asyncio.run(fetch(invited, meeting, identity)).items():
            (source / name).write_bytes(content)
        _show_files(invited, source)
        if not yes and not click.confirm("use them, and ask to be added?", err=True):
            click.echo("nothing was changed", err=True)
            return False
        request, key = make_member(invited, target, source=source, address=address, identity=identity)
    click.echo(f"made {shown / invited.name}: its key stays on this machine", err=True)
    click.echo(f"the inviter is asked whether the key is {fingerprint(key)}: compare", err=True)
    try:
        answer = asyncio.run(ask_to_join(invited, meeting, identity, request))
    except (UnreachableError, KeyboardInterrupt) as error:
        text = f"no answer came: {printable(str(error)) or 'stopped here'}; if it was not added, give this line to"
        click.echo(f"{text} `p2pfl member add` there, or `replace` for an invite with --replace:", err=True)
        click.echo(request)
        return True
    if answer.why:
        shutil.rmtree(target)
        text = f"not added: {printable(answer.why)}; the new folder was removed again"
        raise UserError(text, key="LINE", value=invited.name, allowed="a new line from `p2pfl invite`")
    here = load_config(target)
    for file in (members_file(here), tickets_file(here)):
        if file.name in answer.files:
            replace_file(file, [answer.files[file.name]])
            file.chmod(READABLE)
    click.echo(f"added. Now: p2pfl run {shown} --node {invited.name}", err=True)
    return True


def _show_files(invited: Invite, source: Path) -> None:
    """Show what was fetched; nothing of it is imported. Raises UserError: it is not what the invite was made for."""
    federation = load_config(source)
    files = files_of(federation)
    if any(file.parent != source for file in files):
        allowed = "a line from somebody whom you trust"
        raise UserError("it names files outside of its folder", file=federation.path, allowed=allowed)
    require_same(federation, invited)
    click.echo(
        f"{invited.name} would be a member of {federation.name}; task: {printable(federation.task.name)}", err=True
    )
    for file in files:
        content, mark = file.read_bytes(), "   CODE that would run here" if file.suffix == ".py" else ""
        digest = hashlib.sha256(content).hexdigest()
        click.echo(f"  {file.name}: {len(content):,} bytes, sha256 {digest}{mark}", err=True)
    click.echo(f"nothing of it has run. Read it in {source}", err=True)
