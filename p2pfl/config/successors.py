"""Make the next charter, not signed yet: the changed member list and the corresponding graph.

An index is never reused: a new member gets the next one, a removed member keeps its row. A replacement takes over the
edges of the member that it replaces. After any other change of members, the topology's spec is resolved again for the
current ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from p2pfl.config.charter import FEWEST, MOST_MEMBERS, Charter, realm_of
from p2pfl.config.graph import read_graph
from p2pfl.config.load import find_member
from p2pfl.config.model import Edges, FederationConfig, Member
from p2pfl.config.tables import Mistakes
from p2pfl.errors import UserError


def successor(federation: FederationConfig) -> Charter:
    """Keep the members and the graph and increase the version; this also makes the first charter of a federation
    without one.
    """
    edition = federation.edition
    return Charter(
        realm=realm_of(federation),
        version=1 if edition is None else edition.version + 1,
        previous=b"" if edition is None else edition.digest,
        topology=federation.topology,
        rounds=federation.training.rounds,
        members=federation.members,
        edges=federation.edges,
        schedule=federation.schedule,
    )


def with_member(federation: FederationConfig, *, name: str, key: bytes, address: str | None) -> Charter:
    """Add a member. Raises UserError: the name or the key is taken, or there is no such graph with one more member."""
    _require_new(federation, name=name, key=key)
    _require_free(federation.present, name, address)
    newcomer = Member(index=len(federation.members), name=name, key=key, address=address)
    return _resolved(federation, (*federation.members, newcomer), federation.topology)


def without_member(federation: FederationConfig, name: str) -> Charter:
    """Remove a member. Raises UserError: there is no such member, or no such graph with one member fewer."""
    leaving = find_member(federation, name)
    if len(federation.present) <= FEWEST:
        raise UserError("too few members would be left", key="NAME", value=name, allowed=f"{FEWEST} or more")
    members = _retired(federation.members, leaving)
    return _resolved(federation, members, federation.topology)


def with_replacement(federation: FederationConfig, *, name: str, key: bytes, address: str | None) -> Charter:
    """Replace the key of a name; the neighbors stay the same. Raises UserError: there is no such member, or the key is
    taken.

    Without an `address` it keeps the one of the member that it replaces.
    """
    leaving = find_member(federation, name)
    _require_new(federation, key=key)
    _require_free([one for one in federation.present if one is not leaving], name, address)
    index = len(federation.members)
    newcomer = Member(index=index, name=name, key=key, address=address or leaving.address)

    def moved(edges: Edges) -> Edges:
        ends = (tuple(index if end == leaving.index else end for end in edge) for edge in edges)
        return tuple(sorted((min(edge), max(edge)) for edge in ends))

    return replace(
        successor(federation),
        members=(*_retired(federation.members, leaving), newcomer),
        edges=moved(federation.edges),
        schedule=tuple(moved(edges) for edges in federation.schedule),
    )


def with_settings(
    federation: FederationConfig,
    *,
    rounds: int | None = None,
    topology: str | None = None,
    addresses: Sequence[tuple[str, str | None]] = (),
) -> Charter:
    """Change the rounds, the graph, or the addresses of members by name, possibly to none. Raises UserError: this is
    impossible.
    """
    if rounds is not None and federation.training.rounds is None:
        raise UserError("training is limited by time, not by rounds", file=federation.path, key="training.time_s")
    new = {find_member(federation, name).index: address for name, address in addresses}
    members = tuple(replace(one, address=new.get(one.index, one.address)) for one in federation.members)
    for index, address in new.items():
        others = [one for one in members if one.index != index and not one.retired]
        _require_free(others, members[index].name, address)
    charter = replace(successor(federation), members=members)
    if topology is not None:
        charter = _resolved(federation, members, topology)
    return charter if rounds is None else replace(charter, rounds=rounds)


def _require_new(federation: FederationConfig, *, key: bytes, name: str | None = None) -> None:
    for member in federation.members:
        if member.key == key:
            gone = " and was removed: a key does not come back" if member.retired else ""
            text = f"{member.name} has this key{gone}"
            raise UserError(text, key="REQUEST", allowed="the key of a new member, which makes it itself: `p2pfl join`")
        if member.name == name and not member.retired:
            allowed = f"another name, or `p2pfl member replace` if this is the new {name}"
            raise UserError("the name is taken", key="REQUEST", value=name, allowed=allowed)
    if len(federation.members) >= MOST_MEMBERS:
        raise UserError("too many members, including those that were removed", allowed=f"at most {MOST_MEMBERS}")


def _require_free(others: Sequence[Member], name: str, address: str | None) -> None:
    """Refuse an address that is taken. Raises UserError: one of the `others` already has it."""
    for other in others:
        if address is not None and other.address == address:
            text = f"{other.name} already has the address given for {name}"
            raise UserError(text, key="address", value=address, allowed="a different one for each member")


def _retired(members: Sequence[Member], leaving: Member) -> tuple[Member, ...]:
    return tuple(replace(one, retired=one.retired or one is leaving) for one in members)


def _resolved(federation: FederationConfig, members: tuple[Member, ...], topology: str) -> Charter:
    mistakes = Mistakes(federation.path)
    edges, schedule, _ = read_graph(topology, members, federation.seed, mistakes)
    for mistake in mistakes.found:
        raise mistake
    return replace(successor(federation), members=members, topology=topology, edges=edges, schedule=schedule)
