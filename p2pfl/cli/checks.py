"""The checks of `p2pfl check` that no feature brings, beside those of features, in one list.

They find mistakes in the folders of the nodes that are here (settings, keys and ports), addresses whose names are
unknown, data and methods that will not do, and too little room on disk or in memory. `launch` makes those that need no
model before it starts a node; nothing here imports torch before a learner is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from p2pfl.config.load import load_node, node_file, node_mistakes
from p2pfl.config.members import members_file
from p2pfl.config.model import FederationConfig, Member, NodeConfig
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.engine.arithmetic import codecs_of
from p2pfl.engine.state import NodeState
from p2pfl.errors import UserError
from p2pfl.features import import_declared
from p2pfl.learn.figures import about_lone_classes, own_classes, unscaled
from p2pfl.learn.interface import Learner
from p2pfl.learn.load import make_learner
from p2pfl.learn.methods import method_of
from p2pfl.learn.privacy.plan import protection_of
from p2pfl.learn.table.rows import mistakes_of
from p2pfl.net.address import is_hidden, misses, parse_address, unknown_hosts
from p2pfl.net.dial_paths import SOON_DAYS, certificate_of, is_near, outlet_of, proxies_of
from p2pfl.node.assembly import durability_of, load_learner, memory_needs, program_bytes
from p2pfl.node.engine_thread import needs_of
from p2pfl.node.feature import Check, Inspected
from p2pfl.storage.disk import refuse_shared

OF_ROOM = ("node.state_dir", "node.durability", "node.memory_mb", "gossip.memory")
"""The keys of the mistakes that are about room."""


def checks_of(*last: Check) -> list[Check]:
    """Return all checks, in order; `last` come after those of features."""
    return [FolderCheck(), LearnerCheck(), *(kind() for kind in import_declared("CHECKS")), *last]


class FolderCheck(Check):
    def of_files(self, inspected: Inspected) -> None:
        self.before_launch(inspected)
        inspected.warnings += unknown_names(inspected.federation, inspected.here.values())

    def before_launch(self, inspected: Inspected) -> None:
        for member in inspected.federation.present:
            _look_into(inspected, member)


class LearnerCheck(Check):
    def of_learners(self, inspected: Inspected) -> None:
        """Load the learners, for the checks that follow, and look at their data, method and needs."""
        _load_learners(inspected)
        _warn_of_addresses(inspected)
        _warn_of_data(inspected)
        _look_for_room(inspected)
        _look_at_method(inspected)


def _look_into(inspected: Inspected, member: Member) -> None:
    federation = inspected.federation
    file = node_file(federation, member.name)
    if not file.parent.is_dir():
        return
    if mistakes := node_mistakes(file, federation):
        inspected.mistakes.extend(mistakes)
        return
    node = load_node(file, federation)
    if mistakes := _no_folders(node):
        inspected.mistakes.extend(mistakes)
        return
    inspected.here[member.index] = node
    _look_at_address(inspected, member, node)
    _look_at_tls(inspected, member, node)
    _look_at_key(inspected, member, node)


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


def _look_at_address(inspected: Inspected, member: Member, node: NodeConfig) -> None:
    if is_hidden(member.address, node.listen):
        text = f"{member.name} listens on {node.listen}, where nobody reaches its address {member.address}"
        inspected.warnings.append(f"{text}: set listen in {node.path}")
    if (mistake := wrong_port(inspected.federation, member, node)) is not None:
        inspected.mistakes.append(mistake)


def _look_at_tls(inspected: Inspected, member: Member, node: NodeConfig) -> None:
    """Look at the node's certificate, and at its proxy."""
    address = None if member.address is None else parse_address(member.address, "address")
    try:
        outlet_of(node)
        certificate = certificate_of(node)
    except UserError as error:
        inspected.mistakes.append(error)
        return
    if certificate is None:
        if address is not None and address.tls and parse_address(node.listen, "listen").port == address.port:
            text = f"others dial {member.name} by TLS at {address}, and it listens on {node.listen} without"
            inspected.warnings.append(f"{text}: set cert and key under [network] in {node.path}, or another listen")
        return
    if certificate.days_left < SOON_DAYS and not (address is not None and address.pin):
        when = f"expires in {certificate.days_left:.0f} days" if certificate.days_left >= 0 else INVALID
        inspected.warnings.append(f"the certificate of {member.name} {when}: renew {certificate.cert}")
    if address is not None and address.pin not in ("", certificate.pin):
        text = f"not the certificate that is pinned in the address of {member.name}"
        inspected.mistakes.append(UserError(text, file=certificate.cert, value=certificate.pin, allowed=address.pin))


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


def _look_at_key(inspected: Inspected, member: Member, node: NodeConfig) -> None:
    try:
        with suppress(OSError):  # there is none yet, or only the node's user may read it
            refuse_shared(node.state_dir, user=node.state_dir.stat().st_uid)
        public = Identity.load(node.key_file).public
    except UserError as error:
        inspected.mistakes.append(error)
        return
    if public != member.key:
        text = f"not the key that {inspected.federation.path.name} lists for {member.name}"
        shown, allowed = public_text(public), public_text(member.key)
        inspected.mistakes.append(UserError(text, file=node.key_file, key="public key", value=shown, allowed=allowed))


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


def _load_learners(inspected: Inspected) -> None:
    """Load the learners. If no node's folder is here, load the first node's learner without data, for the model's
    size.
    """
    federation = inspected.federation
    alone = [0] if inspected.has_model else []
    indices = [index for index in sorted(inspected.here) or alone if index not in inspected.unusable]
    for index in indices:
        try:
            inspected.learners[index] = _learner(federation, federation.members[index], inspected.here.get(index))
        except UserError as error:
            about_data = (error.key or "").startswith("data")
            if inspected.here or not about_data:
                inspected.mistakes.extend(mistakes_of(error))
            if not about_data:
                return  # the mistake is the same for every node
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            inspected.warnings.append("torch is not installed: the task was not checked")
            return


def _learner(federation: FederationConfig, member: Member, node: NodeConfig | None) -> Learner:
    if node is not None:
        return load_learner(federation, node)
    return make_learner(
        federation.task,
        federation.training,
        seed=federation.seed,
        node_index=member.index,
        node_count=len(federation.members),
        node_name=member.name,
        base_dir=federation.path.parent,
        local={},
        local_dir=federation.path.parent,
        share=federation.gossip.patterns,
        file=federation.path,
        protection=protection_of(federation),
    )


def _warn_of_addresses(inspected: Inspected) -> None:
    federation = inspected.federation
    for i, j in federation.edges:
        first, second = federation.members[i], federation.members[j]
        if first.address is None and second.address is None and not (federation.discovery or federation.relays):
            text = f"neither {first.name} nor {second.name} has an address for the other to dial"
            ways = "discovery = true in [network] if they are on one LAN, or relays: docs/how-to/relay.md"
            inspected.warnings.append(f"{text}: write one, or {ways}")


def _warn_of_data(inspected: Inspected) -> None:
    """Warn about the data of nodes whose folders are here; about classes only if all are here."""
    federation = inspected.federation
    names = {member.index: member.name for member in federation.present}
    here = {names[index]: one for index, one in inspected.learners.items() if index in inspected.here}
    for name, learner in here.items():
        if text := unscaled(learner):
            inspected.warnings.append(f"{name}: {text}: scale the inputs alike on all nodes")
    if len({learner.shape_digest for learner in inspected.learners.values()}) > 1:
        inspected.warnings.append("the models of the nodes here differ in shape: such nodes cannot mix")
    if federation.privacy is not None:
        return  # if data are missing, other nodes may have these classes
    told = {name: own_classes(learner) for name, learner in here.items()}
    classes = {name: one for name, one in told.items() if one is not None}
    text = about_lone_classes(federation.gossip.rule, classes) if len(classes) == len(names) else None
    inspected.warnings += [] if text is None else [text]


def _look_for_room(inspected: Inspected) -> None:
    """Check that disks and memory have room for the nodes that are here."""
    federation = inspected.federation
    program = program_bytes(inspected.learners.values())
    for index in sorted(inspected.here.keys() & inspected.learners.keys()):
        node, learner = inspected.here[index], inspected.learners[index]
        peers = federation.neighbors(index)
        try:
            method, private = method_of(federation), federation.privacy is not None
            state = NodeState.new(learner.initial(), learner.samples, peers, learner.local_state(), method)
            codecs = codecs_of(federation, index)
            state.fit_replicas(codecs.need_replicas)
            if not (federation.in_step_by or federation.grows_trees):
                inspected.memory[index] = memory = memory_needs(
                    state, codecs, method, learner, program, mapped=federation.gossip.memory == "mapped"
                )
                memory.refuse_shortage(node)
                memory.refuse_full_disk(node)
            shortage = needs_of(state, durability_of(node, learner, private=private), codecs, method).shortage(node)
        except UserError as error:
            if error.key in OF_ROOM:  # other mistakes are reported elsewhere
                inspected.mistakes.append(error)
        else:
            inspected.warnings += [shortage] if shortage else []


def _look_at_method(inspected: Inspected) -> None:
    federation = inspected.federation
    inspected.warnings.extend(federation.notices)
    optimizer = federation.training.optimizer
    if optimizer != "sgd" and federation.method.startswith("variate"):
        text = f"its corrections have the size of steps of {optimizer}, beside which gradients are small: nodes may"
        inspected.warnings.append(f'method variate: {text} hardly learn. Write method = "plain" in [training]')
    if federation.method.startswith("fair"):
        text = "helps the worst node where no model suits all; where only labels differ, variate serves it better"
        inspected.warnings.append(f"method fair: {text}: docs/how-to/methods.md")
    try:
        method_of(federation)
    except UserError as error:
        inspected.mistakes.append(error)
