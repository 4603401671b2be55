"""The first start of a newcomer: it asks the members for the charter, and waits until one lists it.

It asks the members whose address is in its invite or its files and, with discovery, those that it hears on the LAN.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from p2pfl.config.charter import Charter, CharterError, amended, checked
from p2pfl.config.invites import Contact, Invite
from p2pfl.config.load import load_stranger, node_file
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity, fingerprint, public_text
from p2pfl.features.members.nearby import Places, find_nearby
from p2pfl.features.members.new_folder import find_invite, require_same
from p2pfl.net.errands import Errand, UnreachableError
from p2pfl.node.kept_charter import FILE_NAME, newest
from p2pfl.storage.disk import replace_file

notice = logging.getLogger("p2pfl.notice")

PAUSE_S = 2.0, 3.0
"""The time between two rounds of asking: members answer one address only about as often over a long time."""
SAY_AGAIN_S = 600.0
SAY_NEWS_S = 60.0
"""The least time between two lines about what the newcomer waits for, where the reason has changed."""
MOST_SHOWN = 6
NOBODY = "no member has an address, here or in the invite"
NOBODY_NEAR = f"{NOBODY}, and none is heard on the LAN: `p2pfl doctor` says why"
MOST_ASKED = 8
"""The most members asked by the files here, beside those that the invite names."""


def arrive(federation: FederationConfig, name: str, config: Path | None = None) -> FederationConfig:
    """Return the federation by the newest charter that this node can get; a newcomer waits until one lists it.

    Raises UserError: its node file or key is wrong, or the files here are not those with which it was invited.
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
        require_same(federation, invite)  # later the file may change, as on every other node
    if is_listed:
        return federation
    interfaces = node.interfaces if node.discovery or federation.discovery else None
    return asyncio.run(wait_for_charter(federation, identity, invite, node.state_dir, interfaces))


async def wait_for_charter(
    federation: FederationConfig,
    identity: Identity,
    invite: Invite,
    folder: Path,
    interfaces: Sequence[str] | None = None,
) -> FederationConfig:
    """Return when some member has a charter that lists this node; the charter is kept in `folder`.

    `interfaces` are those on which to listen for members, empty for all that can be used; None: do not listen.
    """
    said, said_at = "", float("-inf")
    while True:
        found: list[str] = []
        nearby = {} if interfaces is None else await find_nearby(federation, named=interfaces)
        for contact in _contacts(federation, invite, nearby, identity.public):
            try:
                federation = await _ask(federation, identity, contact, folder)
            except (UnreachableError, CharterError) as error:
                found.append(f"{_name_of(federation, contact)} at {contact.address}: {error}")
                continue
            if any(member.key == identity.public for member in federation.members):
                return federation
            found.append(f"{_name_of(federation, contact)} at {contact.address} has no newer list of members")
        reasons = "; ".join(found[:MOST_SHOWN]) or (NOBODY if interfaces is None else NOBODY_NEAR)
        if time.monotonic() - said_at >= (SAY_AGAIN_S if reasons == said else SAY_NEWS_S):
            said, said_at = reasons, time.monotonic()
            text = "not a member yet: waits until `p2pfl member add` adds the key %s (%s). Asked: %s"
            notice.info(text, fingerprint(identity.public), public_text(identity.public), reasons)
        await asyncio.sleep(random.uniform(*PAUSE_S))


def _contacts(federation: FederationConfig, invite: Invite, nearby: Places, own: bytes) -> Iterator[Contact]:
    """Yield all addresses of a member where they differ: those of the invite, which is usually newer, first."""
    heard = [Contact(key, place) for key, places in sorted(nearby.items()) for place in places]
    listed = [Contact(one.key, one.address) for one in federation.present if one.address is not None]
    found = dict.fromkeys([*invite.contacts, *heard, *listed])
    yield from [contact for contact in found if contact.key != own][: len(invite.contacts) + MOST_ASKED]


def _name_of(federation: FederationConfig, contact: Contact) -> str:
    return next((member.name for member in federation.members if member.key == contact.key), "a member of the invite")


async def _ask(federation: FederationConfig, identity: Identity, contact: Contact, folder: Path) -> FederationConfig:
    """Return the federation by this member's charter, if that is newer; then it is on disk too.

    Raises UnreachableError; CharterError: the member sent no valid charter.
    """
    version = 0 if federation.edition is None else federation.edition.version
    raw = await Errand.of(federation, identity).ask(contact.address, contact.key, version)
    charter = None if raw is None else checked(raw, federation)
    if charter is None or charter.edition.version <= version:
        return federation
    _keep(folder, charter)
    return amended(federation, charter)


def _keep(folder: Path, charter: Charter) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(folder / FILE_NAME, [charter.packed()])
