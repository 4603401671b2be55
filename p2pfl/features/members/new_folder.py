"""A new machine's folder: its own key, which never leaves it, the copied files, and the request to become a member."""

from __future__ import annotations

import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from p2pfl.config.invites import Invite, JoinRequest, code_files, difference, read_invite, request_line
from p2pfl.config.load import FILE_NAME, federation_file, load_config
from p2pfl.config.members_file import members_file
from p2pfl.config.model import FederationConfig
from p2pfl.config.writing import NewMember, node_text
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import UserError
from p2pfl.net.address import free_ports, is_loopback, parse_address
from p2pfl.node.folders import KEY_FILE, appearing

INVITE_FILE = "invite"
USUAL_PORT = 8470
PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class NewFolder:
    """A new member's request; `line` is the request as people carry it."""

    request: JoinRequest
    line: str


def make_folder(invite: Invite, target: Path, *, source: Path | None, address: str | None) -> NewFolder:
    """Make a folder for the new member in `target`, and its request. `target` is new, or a copy of the federation's
    files.

    `source` is such a copy elsewhere. The files are checked against the invite. Raises UserError: the files differ, or
    the member has a folder there already.
    """
    is_copy = (target / FILE_NAME).exists()
    if is_copy and source is not None:
        text = "has a federation's files already"
        raise UserError(text, key="DIR", value=str(target), allowed="a new or an empty folder, or no --from")
    if is_copy and (target / invite.name).exists():
        text = f"{invite.name} has a folder there already: a member that joins again needs a new key"
        raise UserError(text, key="DIR", value=str(target / invite.name), allowed="a folder without it")
    files = target if is_copy else source
    federation = None if files is None else _check(load_config(files), invite)
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
    request = JoinRequest(
        federation=invite.federation, name=invite.name, key=identity.public, address=at, token=invite.token
    )
    return NewFolder(request, request_line(request, identity.sign))


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
    found = difference(federation, invite)
    if found is not None:
        allowed = "a copy from the machine that made the invite, or from a node"
        raise UserError(found.text, file=found.file, allowed=allowed)


def _check(federation: FederationConfig, invite: Invite) -> FederationConfig:
    require_same(federation, invite)
    return federation


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
