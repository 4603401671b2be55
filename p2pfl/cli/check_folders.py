"""Mistakes in the folders of the nodes that are here: settings, keys and ports; and addresses whose names are unknown.

`p2pfl check` uses this, and so does `launch` before it starts a node, so nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2pfl.config.load import load_node, node_file, node_mistakes
from p2pfl.config.members import members_file
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import UserError
from p2pfl.features import FEATURES, import_declared
from p2pfl.net.address import is_hidden, misses, parse_address, unknown_hosts
from p2pfl.net.dial_paths import SOON_DAYS, certificate_of, is_near, outlet_of, proxies_of
from p2pfl.node.feature import all_features
from p2pfl.storage.disk import refuse_shared

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig, Member, NodeConfig
    from p2pfl.node.feature import Findings, Inspected


@dataclass(slots=True)
class FoldersFound:
    """The findings. `here` has the settings of nodes whose folder is here and whose file is valid, by member index."""

    mistakes: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    here: dict[int, NodeConfig] = field(default_factory=dict)


def findings_of(inspected: Inspected) -> list[Findings]:
    """Return the findings of all features. A mistake in the user's own features is added to `inspected`."""
    said: list[Findings] = [kind() for kind in import_declared("FINDINGS")]
    if inspected.federation.plug_ins:
        try:
            added = all_features(inspected.federation, FEATURES)[len(FEATURES) :]
            said += [one for feature in added if (one := feature.findings()) is not None]
        except UserError as error:
            inspected.mistakes.append(error)
    return said


def look_into_folders(federation: FederationConfig) -> FoldersFound:
    found = FoldersFound()
    for member in federation.present:
        _look_into(federation, member, found)
    return found


def _look_into(federation: FederationConfig, member: Member, folders: FoldersFound) -> None:
    file = node_file(federation, member.name)
    if not file.parent.is_dir():
        return
    if mistakes := node_mistakes(file, federation):
        folders.mistakes.extend(mistakes)
        return
    node = load_node(file, federation)
    if mistakes := _no_folders(node):
        folders.mistakes.extend(mistakes)
        return
    folders.here[member.index] = node
    _look_at_address(federation, member, node, folders)
    _look_at_tls(member, node, folders)
    _look_at_key(federation, member, node, folders)


def _no_folders(node: NodeConfig) -> list[UserError]:
    """Return a mistake for each folder that the node cannot make. Who may write there shows when it runs: this may be
    another user.
    """
    found = []
    folders = {"state_dir": node.state_dir} | ({"checkpoint_dir": node.checkpoint_dir} if node.checkpoint_every else {})
    for key, folder in folders.items():
        there = next((one for one in (folder, *folder.parents) if one.exists()), None)
        if there is not None and not there.is_dir():
            where = f"{there} is a file"
            found.append(UserError(where, file=node.path, key=f"node.{key}", value=str(folder), allowed="a folder"))
    return found


def _look_at_address(federation: FederationConfig, member: Member, node: NodeConfig, folders: FoldersFound) -> None:
    if is_hidden(member.address, node.listen):
        text = f"{member.name} listens on {node.listen}, where nobody reaches its address {member.address}"
        folders.warnings.append(f"{text}: set listen in {node.path}")
    if (mistake := wrong_port(federation, member, node)) is not None:
        folders.mistakes.append(mistake)


def _look_at_tls(member: Member, node: NodeConfig, folders: FoldersFound) -> None:
    """Look at the node's certificate, and at its proxy."""
    address = None if member.address is None else parse_address(member.address, "address")
    try:
        outlet_of(node)
        certificate = certificate_of(node)
    except UserError as error:
        folders.mistakes.append(error)
        return
    if certificate is None:
        if address is not None and address.tls and parse_address(node.listen, "listen").port == address.port:
            text = f"others dial {member.name} by TLS at {address}, and it listens on {node.listen} without"
            folders.warnings.append(f"{text}: set cert and key under [network] in {node.path}, or another listen")
        return
    if certificate.days_left < SOON_DAYS and not (address is not None and address.pin):
        when = f"expires in {certificate.days_left:.0f} days" if certificate.days_left >= 0 else INVALID
        folders.warnings.append(f"the certificate of {member.name} {when}: renew {certificate.cert}")
    if address is not None and address.pin not in ("", certificate.pin):
        text = f"not the certificate that is pinned in the address of {member.name}"
        folders.mistakes.append(UserError(text, file=certificate.cert, value=certificate.pin, allowed=address.pin))


INVALID = "is not valid by the clock of this machine (timedatectl set-ntp true, if that is wrong)"


def wrong_port(federation: FederationConfig, member: Member, node: NodeConfig) -> UserError | None:
    """Return the mistake if others dial a port on which the node does not listen, and which no router forwards."""
    if member.address is None or not misses(member.address, node.listen, node.forwarded_port):
        return None
    signed = federation.edition is not None
    file = members_file(federation) if signed else federation.path
    text = f"others dial another port of {member.name}: its address in {file} is {member.address}"
    port = parse_address(member.address, "address").port
    there = "another address there" + (" (`p2pfl member set --address`)" if signed else "")
    allowed = f"port {port}; or {there}; or forwarded_port = {port}, where a router passes that one on to `listen`"
    key, value = ("listen", node.listen) if node.forwarded_port is None else ("forwarded_port", node.forwarded_port)
    return UserError(text, file=node.path, key=f"node.{key}", value=value, allowed=allowed)


def _look_at_key(federation: FederationConfig, member: Member, node: NodeConfig, folders: FoldersFound) -> None:
    try:
        with suppress(OSError):  # there is none yet, or only the node's user may read it
            refuse_shared(node.state_dir, user=node.state_dir.stat().st_uid)
        public = Identity.load(node.key_file).public
    except UserError as error:
        folders.mistakes.append(error)
        return
    if public != member.key:
        text = f"not the key that {federation.path.name} lists for {member.name}"
        shown, allowed = public_text(public), public_text(member.key)
        folders.mistakes.append(UserError(text, file=node.key_file, key="public key", value=shown, allowed=allowed))


def unknown_names(federation: FederationConfig, here: Iterable[NodeConfig]) -> list[str]:
    """Return a warning for each member whose name is unknown; none where a proxy may know it."""
    if any(node.network.proxy not in (None, "none") for node in here):
        return []
    proxies = proxies_of(None, None)
    asked = {}
    for member in federation.present:
        address = None if member.address is None else parse_address(member.address, "address")
        if address is not None and not is_near(address.host) and proxies.of(address) is None:
            asked[member.name] = address
    unknown = unknown_hosts(address.host for address in asked.values())
    return [
        f"the name in the address of {name}, {address}, is unknown here: correct it, or the DNS of this machine"
        for name, address in asked.items()
        if address.host in unknown
    ]
