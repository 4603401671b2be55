"""Diagnose why nodes do not find or reach each other: check the LAN and each member's answer, and suggest a remedy.

This starts nothing, does not disturb the sessions of running nodes, and needs neither a key nor root. `Prober` finds
out which node answers at an address by the first two messages of a handshake, with a key made for the occasion: only
the third would reveal it. So anyone who has the federation file can ask, even while a node with the same files runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import aiohttp

from p2pfl.config.load import find_member, load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, Member, NodeConfig
from p2pfl.config.tables import port_of
from p2pfl.crypto import WHOLE_SECTIONS, FederationMismatch, HandshakeFault
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding, Initiator
from p2pfl.errors import PeerFault
from p2pfl.features.lan.discovery import INSTALL, Announced, Overhearing, Tally, member_of, prefix_of
from p2pfl.features.lan.interfaces import Interface, all_interfaces, cover, own_addresses
from p2pfl.features.status.running import ask_status, find_running, place_of
from p2pfl.net.address import Address, is_hidden, parse_address
from p2pfl.net.dial_paths import DialError, Outlet, UnreachedError, outlet_of
from p2pfl.net.transport import GoneError, Line
from p2pfl.net.websocket import LEARNED, control_binding, dial_websocket, open_browserless
from p2pfl.node.folders import newest_here
from p2pfl.system import IS_LINUX

CONNECT_S = 4.0
ANSWER_S = 4.0
MOST_TRIES = 64
"""The most members tried, with one handshake each, to find out which one answers in place of the expected."""


class AnswerKind(Enum):
    """The kinds of answer from an address."""

    MEMBER = "answers"
    OTHER_MEMBER = "another member answers"
    OTHER_NODE = "a node that is not a member, or has another version of the protocol"
    NO_NODE = "something other than p2pfl answers"
    REFUSED = "nothing listens on that port"
    SILENT = "no answer"
    PROXY = "a proxy does not let it through"
    CERTIFICATE = "its certificate is not accepted"


KINDS = {
    DialError.REFUSED: AnswerKind.REFUSED,
    DialError.PROXY: AnswerKind.PROXY,
    DialError.CERTIFICATE: AnswerKind.CERTIFICATE,
    DialError.NOT_A_NODE: AnswerKind.NO_NODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    kind: AnswerKind
    detail: str = ""
    """The reason why there is no answer, as the system reports it; or the index of the other member."""
    differences: tuple[str, ...] = ()
    """The keys in which its federation file differs."""
    round_trip_s: float | None = None
    """The time until the first answer of the handshake."""
    remedy: str = ""
    """The advice if nothing was reached, as far as there is one."""


class Prober:
    """An async context that probes addresses. `keys` are the members' keys, by index."""

    def __init__(
        self,
        keys: Sequence[bytes],
        binding: FederationBinding,
        *,
        ignored: frozenset[str],
        outlet: Outlet | None = None,
    ) -> None:
        self._keys, self._binding, self._ignored = keys, binding, ignored
        self.outlet = outlet or Outlet()
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._http = open_browserless(self.outlet)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, toward: Address, index: int) -> Answer:
        """Find out whether member `index` answers there, and if not, which one does."""
        answer = await self._try(toward, index)
        if answer.kind is not AnswerKind.OTHER_NODE:
            return answer
        for other in [other for other in range(len(self._keys)) if other != index][:MOST_TRIES]:
            if (await self._try(toward, other)).kind is AnswerKind.MEMBER:
                return Answer(kind=AnswerKind.OTHER_MEMBER, detail=str(other))
        return answer

    async def _try(self, toward: Address, index: int) -> Answer:
        try:
            async with asyncio.timeout(CONNECT_S):
                line = await dial_websocket(self._http, toward)
        except TimeoutError:
            return Answer(kind=AnswerKind.SILENT, detail=f"nothing in {CONNECT_S:g} s")
        except UnreachedError as error:
            kind = KINDS.get(error.kind, AnswerKind.SILENT)
            return Answer(kind=kind, detail="" if kind is AnswerKind.REFUSED else error.text, remedy=error.remedy)
        except GoneError as error:
            return Answer(kind=AnswerKind.NO_NODE, detail=str(error))
        try:
            return await self._shake(line, index)
        finally:
            await line.close(1.0)

    async def _shake(self, line: Line, index: int) -> Answer:
        initiator = Initiator(Identity.generate(), self._keys[index], self._binding)
        try:
            async with asyncio.timeout(ANSWER_S):
                began = time.monotonic()
                await line.send(initiator.first())
                reply = await line.receive()
                round_trip_s = time.monotonic() - began
            initiator.second(reply)
        except FederationMismatch as mismatch:
            differences = tuple(name for name in mismatch.sections if name not in self._ignored)
            return Answer(kind=AnswerKind.MEMBER, differences=differences, round_trip_s=round_trip_s)
        except (TimeoutError, GoneError, HandshakeFault) as error:
            return Answer(kind=AnswerKind.OTHER_NODE, detail=str(error))
        except PeerFault as fault:
            return Answer(kind=AnswerKind.NO_NODE, detail=str(fault))
        return Answer(kind=AnswerKind.MEMBER, round_trip_s=round_trip_s)


LISTEN_S = 4.0
UNKNOWN_SECTIONS = frozenset(LEARNED)
"""The sections that are known only after the task has been loaded, such as the model's shape."""
MOST_PLACES = 8
"""The most addresses that are tried per member."""
SEE = "docs/how-to/relay.md, 'When it does not work'"
BLOCKED = (
    "Look in switch and access point for client isolation, IGMP snooping without a querier, or guest network; "
    "in firewalls for UDP port 5353. mDNS does not pass routers, VPNs or container networks. "
    "An address for each node always works: list it in federation.toml."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem; `remedy` says what to do about it."""

    text: str
    remedy: str


@dataclass(slots=True, kw_only=True)
class AddressTried:
    """One address at which a member may be.

    `via` is its source: "file", "state", or the interfaces on which it was received. `way` is "direct", "hint", or a
    proxy.
    """

    address: str
    via: tuple[str, ...]
    answer: Answer
    way: str = "direct"


@dataclass(slots=True, kw_only=True)
class Patient:
    """One member, and all that the doctor has learned about it."""

    member: Member
    here: bool
    """True if this is the node on this machine."""
    listens: str | None = None
    """The address on which it reports to listen, if it runs here."""
    hides: bool = False
    """True if its node.toml is on this machine and does not make it listen on the address that others use."""
    heard: list[Announced] = field(default_factory=list)
    places: list[AddressTried] = field(default_factory=list)
    has_session: bool = False
    """True if the node that runs here has a session with it, whoever dialed."""

    @property
    def answering(self) -> AddressTried | None:
        return next((place for place in self.places if place.answer.kind is AnswerKind.MEMBER), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNode:
    """The neighbors of the node that runs here, as it reports them, by their names."""

    sessions: frozenset[str] = frozenset()
    away: Mapping[str, str] | None = None
    """The relays at which it is not registered, and why; None if it does not say, or lists none."""


@dataclass(slots=True, kw_only=True)
class Diagnosis:
    federation: FederationConfig
    discovery: bool
    node: str | None
    tallies: list[Tally]
    skipped: list[Interface]
    patients: list[Patient]
    away: Mapping[str, str] | None = None
    """The relays at which the node that runs here is not registered, and why, as it reports."""
    problems: list[Problem] = field(default_factory=list)


async def examine(
    federation: FederationConfig, node: NodeConfig | None, own: OwnNode | None = None, *, listen_s: float = LISTEN_S
) -> Diagnosis:
    """Examine the members.

    If `node`, the node on this machine, is known, only its neighbors are examined. `own` holds its answers, if it runs.
    """
    own = own or OwnNode()
    discovery = federation.discovery if node is None else node.discovery
    listen = "0.0.0.0" if node is None else parse_address(node.listen, "listen").host  # noqa: S104 - as nodes do
    named = () if node is None else node.interfaces
    interfaces = cover(all_interfaces(), listen, named) if find_spec("zeroconf") is not None else []
    usable = [nic for nic in interfaces if nic.skipped is None]
    running = None if node is None else find_running(node.state_dir)
    members = list(federation.present)
    if node is not None:
        index = federation.member(node.name).index
        members = [member for member in federation.members if member.index in (index, *federation.neighbors(index))]
    diagnosis = Diagnosis(
        federation=federation,
        discovery=discovery,
        node=None if node is None else node.name,
        tallies=[],
        skipped=[nic for nic in interfaces if nic.skipped is not None],
        patients=[
            Patient(member=member, here=False, has_session=member.name in own.sessions)
            if node is None or member.name != node.name
            else Patient(
                member=member,
                here=True,
                listens=None if running is None else running.listen,
                hides=is_hidden(member.address, node.listen),
            )
            for member in members
        ],
        away=own.away,
    )
    if usable and discovery and IS_LINUX:
        overhearing = Overhearing(usable, own_addresses())
        await overhearing.run(listen_s)
        diagnosis.tallies = overhearing.tallies
        for patient in diagnosis.patients:
            prefix = prefix_of(federation.name, patient.member.key)
            patient.heard = [
                service for service in overhearing.announced.values() if member_of(service.name, (prefix,))
            ]
    await _probe(diagnosis, node)
    relays = [
        Problem(text=f"{diagnosis.node} is not registered at the relay {url}: {why}", remedy=SEE)
        for url, why in (diagnosis.away or {}).items()
    ]
    diagnosis.problems = [*_of_the_lan(diagnosis), *relays, *_of_members(diagnosis)]
    return diagnosis


async def _probe(diagnosis: Diagnosis, node: NodeConfig | None) -> None:
    """Send a query to every address where a member may be, by the way that the node would take."""
    federation = diagnosis.federation
    members, outlet = [member.key for member in federation.members], Outlet() if node is None else outlet_of(node)
    async with Prober(members, control_binding(federation), ignored=UNKNOWN_SECTIONS, outlet=outlet) as prober:

        async def probe(patient: Patient, address: Address, text: str, via: list[str]) -> None:
            answer, proxy = await prober.ask(address, patient.member.index), outlet.proxies.of(address)
            named = "direct" if {"file", "state"} & set(via) else "hint"
            named = named if proxy is None else f"proxy {proxy}"
            patient.places.append(AddressTried(address=text, via=tuple(via), answer=answer, way=named))

        async with asyncio.TaskGroup() as group:
            for patient in diagnosis.patients:
                for text, via in list(_places(patient).items())[:MOST_PLACES]:
                    address = replace(parse_address(text, "address"), direct="file" not in via)
                    group.create_task(probe(patient, address, text, via))
    for patient in diagnosis.patients:
        patient.places.sort(key=lambda tried: ("file" not in tried.via, tried.address, tried.way == "direct"))


def _places(patient: Patient) -> dict[str, list[str]]:
    """Return each address of a member, with its sources."""
    places: dict[str, list[str]] = {}
    if patient.member.address is not None:
        places[patient.member.address] = ["file"]
    if patient.listens is not None:
        places.setdefault(patient.listens, []).append("state")
    for service in patient.heard:
        for text in sorted(service.addresses):
            if service.port:
                places.setdefault(str(Address(text, service.port)), []).extend(sorted(service.interfaces))
    return places


# -- problems with the LAN ---------------------------------------------------------------------------------------


def _of_the_lan(diagnosis: Diagnosis) -> Iterator[Problem]:
    if not diagnosis.discovery:
        dials = any(patient.member.address is not None for patient in diagnosis.patients if not patient.here)
        nowhere = [
            patient.member.name
            for patient in diagnosis.patients
            if patient.member.address is None and not (patient.has_session or (patient.here and dials))
        ]
        if nowhere and not diagnosis.federation.relays:
            yield Problem(
                text=f"discovery is off, and no address is listed for {', '.join(nowhere)}",
                remedy="set `discovery = true` under [network] in federation.toml, or give each an address",
            )
        return
    if not IS_LINUX:
        yield Problem(
            text="discovery is on, which needs Linux: a node would not start here",
            remedy="set `discovery = false`, and give each an address",
        )
        return
    if find_spec("zeroconf") is None:
        yield Problem(
            text="discovery is on, and python-zeroconf is not installed here: a node would not start", remedy=INSTALL
        )
        return
    if not diagnosis.tallies:
        skipped = ", ".join(f"{nic.name} ({nic.skipped})" for nic in diagnosis.skipped) or "there are none"
        yield Problem(
            text=f"no network interface is used: {skipped}",
            remedy="plug in the network, or name the one to use in node.toml: [network] interfaces = [...]",
        )
    missing = any(patient.answering is None for patient in diagnosis.patients if not patient.here)
    if missing and diagnosis.tallies and all(tally.interface.loopback for tally in diagnosis.tallies):
        yield Problem(
            text=f"{diagnosis.node} listens on this machine only: no other machine can reach or discover it",
            remedy='set `listen = "0.0.0.0:PORT"` in its node.toml',
        )
    for tally in diagnosis.tallies:
        if problem := _of_interface(diagnosis, tally):
            yield problem


def _of_interface(diagnosis: Diagnosis, tally: Tally) -> Problem | None:
    name = tally.interface.name
    heard = f"sent {tally.sent} questions, heard {tally.heard_own} packets of this machine and none of others"
    if tally.failed and not tally.heard_others:
        return Problem(
            text=f"{name}: multicast cannot be used: {tally.failed}",
            remedy=f"look at `ip address show {name}` and `ip route get 224.0.0.251`",
        )
    if tally.heard_others or tally.interface.loopback:
        return None
    if not tally.heard_own:
        return Problem(
            text=f"{name}: multicast is blocked on this machine: {heard}",
            remedy="let UDP port 5353 in and out in this machine's firewall (ufw allow 5353/udp)",
        )
    near = [
        patient.member.name
        for patient in diagnosis.patients
        if not patient.here and (place := patient.answering) and _is_near(place.address, tally.interface)
    ]
    if near:
        return Problem(
            text=f"{name}: multicast is blocked on the way: {heard}; but {', '.join(near)} can be reached by address",
            remedy=f"{BLOCKED} Or discovery is off there.",
        )
    return Problem(
        text=f"{name}: no other node was heard: {heard}. There is none, or multicast is blocked on the way",
        remedy="run `p2pfl doctor` on another machine at the same time: each hears the other if multicast works. "
        + BLOCKED,
    )


def _is_near(address: str, interface: Interface) -> bool:
    try:
        return interface.reaches(parse_address(address, "address").host)
    except ValueError:  # a name
        return False


# -- problems with members -----------------------------------------------------------------------------------------


def _of_members(diagnosis: Diagnosis) -> Iterator[Problem]:
    for patient in diagnosis.patients:
        place = patient.answering
        if place is None:
            if not (patient.here or (patient.has_session and not patient.places)):
                yield _unreachable(diagnosis, patient)
            continue
        yield from _of_other_places(diagnosis.federation, patient, place)
        yield from _of_answer(diagnosis, patient, place.answer)


def _of_other_places(federation: FederationConfig, patient: Patient, works: AddressTried) -> Iterator[Problem]:
    """Report a listed address that does not work, if another one does."""
    if patient.hides:
        port = port_of(str(patient.member.address))
        yield Problem(
            text=f"{patient.member.name} listens on this machine only: no other can reach it at its listed address "
            f"{patient.member.address}",
            remedy=f'set `listen = "0.0.0.0:{port}"` in its node.toml, and start it again',
        )
        return
    for place in patient.places:
        if "file" in place.via and place.address != works.address:
            yield Problem(
                text=f"{patient.member.name} is not at its listed address {place.address} ({_why(place.answer)}), "
                f"but at {works.address}",
                remedy=f"{_another_address(federation, patient.member.name)}; with discovery it needs none",
            )


def _another_address(federation: FederationConfig, name: str) -> str:
    """Say how to change a member's address. If there is a charter, the address in the file is ignored."""
    if not federation.admin:
        return "change its address in federation.toml, everywhere"
    return f"`p2pfl member set {federation.path.parent.name} --address {name}=HOST:PORT` where the admin key is"


def _of_answer(diagnosis: Diagnosis, patient: Patient, answer: Answer) -> Iterator[Problem]:
    name, path = patient.member.name, diagnosis.federation.path
    if answer.differences:
        shown = ", ".join(WHOLE_SECTIONS.get(section, section) for section in answer.differences)
        if patient.here:
            yield Problem(
                text=f"{name} was started with another federation file than the one here: it differs in {shown}",
                remedy=f"restart {name}, if {path} is right now",
            )
        else:
            yield Problem(
                text=f"{name} has another federation file: it differs in {shown}",
                remedy=f"compare {path} with the file there, copy the right one over the other, and restart that node",
            )


def _unreachable(diagnosis: Diagnosis, patient: Patient) -> Problem:
    name = patient.member.name
    if not patient.places and diagnosis.federation.relays:
        of_logs = "the logs of both (`p2pfl run -v`) say at which relays they are registered"
        if diagnosis.away is None:
            return Problem(
                text=f"{name} has no address, and the doctor asks a node that runs here about relays: none does",
                remedy=f"start the node here, and run the doctor again; {of_logs}",
            )
        return Problem(text=f"{name} has no address, and no session with {diagnosis.node} at a relay", remedy=of_logs)
    if not patient.places:
        return Problem(
            text=f"{name}: its address is unknown: none is listed, and it was not found on the LAN",
            remedy="start it there, with discovery on; or list its address. Its log (`p2pfl run -v`) says where it "
            "announces itself",
        )
    place = patient.places[0]
    where = ", ".join(f"{_at(tried)} ({_why(tried.answer, diagnosis.federation)})" for tried in patient.places)
    if patient.has_session:
        change = _another_address(diagnosis.federation, name)
        return Problem(
            text=f"{name} has a session with {diagnosis.node}, but is not reached: {where}",
            remedy=f"they are connected; so that {diagnosis.node} can dial it too: {change}; or let TCP in there",
        )
    return Problem(text=f"{name} is not reached: {where}", remedy=_remedy(name, place, patient))


def _at(place: AddressTried) -> str:
    address = place.address.partition("#")[0]
    return f"{address} by {place.way}" if "proxy" in place.way else address


def _why(answer: Answer, federation: FederationConfig | None = None) -> str:
    match answer.kind:
        case AnswerKind.OTHER_MEMBER if federation is not None:
            return f"{federation.members[int(answer.detail)].name} answers there"
        case AnswerKind.NO_NODE | AnswerKind.SILENT:
            return f"{answer.kind.value}: {answer.detail}"
        case AnswerKind.PROXY | AnswerKind.CERTIFICATE:
            return answer.detail
        case kind:
            return str(kind.value)


def _remedy(name: str, place: AddressTried, patient: Patient) -> str:
    heard = bool(patient.heard)
    port = port_of(place.address)
    if place.answer.remedy:
        return place.answer.remedy
    match place.answer.kind:
        case AnswerKind.REFUSED if heard:
            return (
                f"it was heard on the LAN, maybe before it ended: is it running? Does its `listen` cover port {port}?"
            )
        case AnswerKind.REFUSED:
            return f"start {name} there, or change its address; `listen` in its node.toml must cover port {port}"
        case AnswerKind.SILENT if heard:
            return f"it was heard on the LAN, so it is on: do its firewall and `listen` let TCP port {port} in?"
        case AnswerKind.SILENT:
            return f"is that machine on, at that address? Does its firewall let TCP port {port} in?"
        case AnswerKind.OTHER_MEMBER:
            return "two addresses in federation.toml are swapped, or a machine has another's address"
        case AnswerKind.OTHER_NODE:
            return "compare `p2pfl key` and `p2pfl --version` there with the federation file and the version here"
        case _:
            return f"another program has port {port} there: stop it, or give the node another port and address"


# -- what is here ---------------------------------------------------------------------------------------------------


def diagnose(path: Path, name: str | None) -> Diagnosis:
    """Examine the members of the federation in a folder, as its node here does, if there is one."""
    federation = newest_here(load_config(path))
    node = node_here(federation, name)
    return asyncio.run(examine(federation, node, ask_here(node)))


def node_here(federation: FederationConfig, name: str | None) -> NodeConfig | None:
    """Return the named node, or the only one whose key is on this machine."""
    if name is None:
        folders = [member.name for member in federation.members if (federation.path.parent / member.name).is_dir()]
        own = [folder for folder in folders if (federation.path.parent / folder / "node.key").exists()]
        if len(own) != 1:
            return None
        name = own[0]
    find_member(federation, name)
    return load_node(node_file(federation, name), federation, name)


def ask_here(node: NodeConfig | None) -> OwnNode:
    """Return what the node that runs here says of its neighbors; nothing if none runs or it does not answer."""
    here = None if node is None else find_running(node.state_dir)
    if node is None or here is None or here.status is None:
        return OwnNode()
    said = ask_status(place_of(here.status))
    said = {} if isinstance(said, str) or said["node"] != node.name else said
    relays = (said.get("features", {}).get("relay") or {}).get("relays")
    return OwnNode(
        sessions=frozenset(neighbor["name"] for neighbor in said.get("neighbors", []) if neighbor.get("live")),
        away=relays and {relay["relay"]: relay["why"] for relay in relays if not relay["registered"]},
    )
