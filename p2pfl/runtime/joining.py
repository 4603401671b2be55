"""A new machine's folder: its own key, which never leaves it, the copied files, and the request to be taken in."""

from __future__ import annotations

import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from p2pfl.config.invites import Invite, Request, code_files, difference, read_invite, request_line
from p2pfl.config.load import FILE_NAME, federation_file, load_config
from p2pfl.config.members_file import members_file
from p2pfl.config.model import FederationConfig
from p2pfl.config.writing import NewMember, node_text
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import UserError
from p2pfl.net.address import free_ports, is_loopback, parse_address
from p2pfl.runtime.folders import KEY_FILE, appearing

INVITE_FILE = "invite"
USUAL_PORT = 8470


@dataclass(frozen=True, slots=True)
class Joined:
    """`line` is the request as people carry it."""

    request: Request
    line: str


def make_folder(invite: Invite, target: Path, *, source: Path | None, address: str | None) -> Joined:
    """The folder `target` with a folder for the new member in it, and its request.

    `source` is a copy of the federation's files, which are checked by the invite and copied.
    Raises UserError: `target` is a federation already, or the files in `source` are others.
    """
    if (target / FILE_NAME).exists():
        text = "is a federation's folder already"
        raise UserError(text, key="DIR", value=str(target), allowed="a new or an empty folder")
    federation = None if source is None else _checked(load_config(source), invite)
    at = address or own_address(invite)
    identity = Identity.generate()
    with appearing(target) as folder:
        own = folder / invite.name
        own.mkdir(mode=0o700)
        identity.save(own / KEY_FILE)
        member = NewMember(name=invite.name, key=public_text(identity.public), address=at)
        reachable = not is_loopback(parse_address(at, "--address").host)
        (own / "node.toml").write_text(node_text(member, reachable=reachable), encoding="utf-8")
        (own / INVITE_FILE).write_text(f"{invite.line()}\n", encoding="utf-8")
        if federation is not None:
            for file in files_of(federation):
                shutil.copyfile(file, folder / file.name)
    request = Request(
        federation=invite.federation, name=invite.name, key=identity.public, address=at, token=invite.token
    )
    return Joined(request, request_line(request, identity.sign))


def files_of(federation: FederationConfig) -> list[Path]:
    """What a new machine needs: the federation file, the code that it names, and the charter if there is one."""
    charter = members_file(federation)
    return [federation.path, *code_files(federation), *([charter] if charter.exists() else [])]


def find_invite(federation: Path | str, name: str) -> Invite | None:
    """The invite by which the member `name` was made here; None where it was not."""
    path = federation_file(federation).parent / name / INVITE_FILE
    try:
        return read_invite(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", file=path, allowed="the invite that `p2pfl join` took") from None


def require_same(federation: FederationConfig, invite: Invite) -> None:
    """Raises UserError: the files that were copied are not those that the invite was made for."""
    found = difference(federation, invite)
    if found is not None:
        allowed = "a copy from the machine that made the invite, or from a node"
        raise UserError(found.text, file=found.file, allowed=allowed)


def _checked(federation: FederationConfig, invite: Invite) -> FederationConfig:
    require_same(federation, invite)
    return federation


def own_address(invite: Invite) -> str:
    """Where others will hopefully reach this machine: its address on the way to a member, and a free port."""
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
