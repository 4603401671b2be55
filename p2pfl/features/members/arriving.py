"""The first start of a new member: it asks the members for the charter, and waits until a charter lists it.

It asks the members whose addresses are in its invite or its files and, with discovery, those that it finds on the LAN.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path

from p2pfl.config.charter import Charter, CharterError, amended, checked
from p2pfl.config.load import load_stranger, node_file
from p2pfl.config.members import Contact, Invite
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity, fingerprint, public_text
from p2pfl.features.lan.discovery import Places, find_nearby
from p2pfl.features.members.joining import find_invite, require_same
from p2pfl.net.websocket import OneShotClient, UnreachableError
from p2pfl.node.folders import CHARTER_FILE, newest
from p2pfl.node.service import watched
from p2pfl.storage.disk import replace_file
from p2pfl.system import make_folder

notice = logging.getLogger("p2pfl.notice")

PAUSE_S = 2.0, 3.0
"""The pause between rounds of queries: members answer the same address only about this often in the long run."""
SAY_AGAIN_S = 600.0
SAY_NEWS_S = 60.0
"""The minimum time between log lines about what the new member waits for, even if the reason changes."""
MOST_SHOWN = 6
NOBODY = "no member has an address, here or in the invite"
NOBODY_NEAR = f"{NOBODY}, and none is heard on the LAN: `p2pfl doctor` says why"
AT_RELAYS = (
    "relays open to members only: once it is added, copy members.toml and tickets.toml here, beside federation.toml, "
    "and start it again"
)
MOST_ASKED = 8
"""The most members asked because of the local files, in addition to those in the invite."""


def arrive(federation: FederationConfig, name: str, config: Path | None = None) -> FederationConfig:
    """Return the federation as of the newest charter that this node can get. A new member waits until a charter lists
    it.

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
        require_same(federation, invite)  # later the file may change, as on any other node
    if is_listed:
        return federation
    interfaces = node.interfaces if node.discovery or federation.discovery else None
    waiting = wait_for_charter(federation, identity, invite, node.state_dir, interfaces)
    return asyncio.run(watched(waiting, lambda: "not a member yet"))


async def wait_for_charter(
    federation: FederationConfig,
    identity: Identity,
    invite: Invite,
    folder: Path,
    interfaces: Sequence[str] | None = None,
) -> FederationConfig:
    """Wait until a member has a charter that lists this node, store that charter in `folder`, and return the
    federation.

    `interfaces` are those on which to listen for members, empty for all usable ones. With None, do not listen.
    """
    said, said_at = "", float("-inf")
    while True:
        answers: list[str] = []
        client = OneShotClient.of(federation, identity)
        nearby = {} if interfaces is None else await find_nearby(federation, named=interfaces)
        for contact in _contacts(federation, invite, nearby, identity.public):
            try:
                federation = await _ask(federation, client, contact, folder)
            except (UnreachableError, CharterError) as error:
                answers.append(f"{_name_of(federation, contact)} at {contact.address.partition('#')[0]}: {error}")
                continue
            if any(member.key == identity.public for member in federation.members):
                return federation
            shown = contact.address.partition("#")[0]
            answers.append(f"{_name_of(federation, contact)} at {shown} has no newer list of members")
        answers = [AT_RELAYS, *answers] if federation.relays else answers
        reasons = "; ".join(answers[:MOST_SHOWN]) or (NOBODY if interfaces is None else NOBODY_NEAR)
        if time.monotonic() - said_at >= (SAY_AGAIN_S if reasons == said else SAY_NEWS_S):
            said, said_at = reasons, time.monotonic()
            text = "not a member yet: waits until `p2pfl member add` adds the key %s (%s). Asked: %s"
            notice.info(text, fingerprint(identity.public), public_text(identity.public), reasons)
        await asyncio.sleep(random.uniform(*PAUSE_S))


def _contacts(federation: FederationConfig, invite: Invite, nearby: Places, own: bytes) -> list[Contact]:
    """Return all known addresses of the members. Those in the invite, which is usually newer, come first."""
    heard = [Contact(key, place) for key, places in sorted(nearby.items()) for place in places]
    listed = [Contact(member.key, member.address) for member in federation.present if member.address is not None]
    contacts = dict.fromkeys([*invite.contacts, *heard, *listed])
    return [contact for contact in contacts if contact.key != own][: len(invite.contacts) + MOST_ASKED]


def _name_of(federation: FederationConfig, contact: Contact) -> str:
    return next((member.name for member in federation.members if member.key == contact.key), "a member of the invite")


async def _ask(federation: FederationConfig, client: OneShotClient, contact: Contact, folder: Path) -> FederationConfig:
    """Return the federation as of this member's charter, if that is newer; the charter is then on disk too.

    Raises UnreachableError; CharterError: the member sent no valid charter.
    """
    version = 0 if federation.edition is None else federation.edition.version
    raw = await client.ask(contact.address, contact.key, version)
    charter = None if raw is None else checked(raw, federation)
    if charter is None or charter.edition.version <= version:
        return federation
    _keep(folder, charter)
    return amended(federation, charter)


def _keep(folder: Path, charter: Charter) -> None:
    make_folder(folder)
    replace_file(folder / CHARTER_FILE, [charter.packed()])
