"""The first start of a newcomer: it waits until a charter lists it, which it asks the members for."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path

from p2pfl.config.charter import Charter, CharterError, amended, checked
from p2pfl.config.invites import Contact, Invite
from p2pfl.config.load import load_stranger, node_file
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.net.errands import Errand, UnreachableError
from p2pfl.runtime.charters import FILE_NAME, newest
from p2pfl.runtime.joining import find_invite, require_same
from p2pfl.storage.disk import replace_file

notice = logging.getLogger("p2pfl.notice")

PAUSE_S = 2.0, 3.0
"""Between two rounds of asking: members answer one address about as often for long."""
SAY_AGAIN_S = 600.0
MOST_ASKED = 8


def arrive(federation: FederationConfig, name: str, config: Path | None = None) -> FederationConfig:
    """The federation by the newest charter that this node can have; for a newcomer not before one lists it.

    Raises UserError: its node file or key is wrong, or the files here are not those that it was invited with.
    """
    if not federation.admin:
        return federation
    node = load_stranger(config or node_file(federation, name), name)
    federation = newest(federation, node.state_dir)
    invite = find_invite(federation.path, name)
    if invite is None:
        return federation
    identity = Identity.load(node.key_file)
    is_listed = any(member.key == identity.public for member in federation.members)
    if not (is_listed and node.state_dir.exists()):
        require_same(federation, invite)  # later on the file may change, as on every other node
    if is_listed:
        return federation
    return asyncio.run(wait_for_charter(federation, identity, invite, node.state_dir))


async def wait_for_charter(
    federation: FederationConfig, identity: Identity, invite: Invite, folder: Path
) -> FederationConfig:
    """Returns when some member has a charter that lists this node, which is kept in `folder`."""
    said_at = float("-inf")
    while True:
        for contact in _contacts(federation, invite, identity.public):
            federation = await _ask(federation, identity, contact, folder)
            if any(member.key == identity.public for member in federation.members):
                return federation
        if time.monotonic() - said_at >= SAY_AGAIN_S:
            said_at = time.monotonic()
            text = "not a member yet, or no member can be reached: waits until `p2pfl member add` takes in the key %s"
            notice.info(text, public_text(identity.public))
        await asyncio.sleep(random.uniform(*PAUSE_S))


def _contacts(federation: FederationConfig, invite: Invite, own: bytes) -> Iterator[Contact]:
    found = {contact.key: contact for contact in invite.contacts}
    for member in federation.present:
        if member.address is not None:
            found[member.key] = Contact(member.key, member.address)
    found.pop(own, None)
    yield from list(found.values())[:MOST_ASKED]


async def _ask(federation: FederationConfig, identity: Identity, contact: Contact, folder: Path) -> FederationConfig:
    """The federation by what this member has, if that is newer; then it is on disk too."""
    version = 0 if federation.edition is None else federation.edition.version
    try:
        raw = await Errand.of(federation, identity).ask(contact.address, contact.key, version)
        charter = None if raw is None else checked(raw, federation)
    except (UnreachableError, CharterError):
        return federation
    if charter is None or charter.edition.version <= version:
        return federation
    _keep(folder, charter)
    return amended(federation, charter)


def _keep(folder: Path, charter: Charter) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(folder / FILE_NAME, [charter.packed()])
