"""A federation that has changed under a running node: the permitted differences, and the event for its core."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace

from p2pfl.config.model import Edges, FederationConfig, Member
from p2pfl.core.events import Amended
from p2pfl.core.staleness import turns_of
from p2pfl.errors import UserError
from p2pfl.net.address import parse_address
from p2pfl.node.assembly import Setup, settings_for

FREE = ("path", "members", "edges", "schedule", "topology", "notices", "edge_compressors", "signed")
"""The fields in which an amended federation may differ; in `training`, its rounds may differ too."""


def check_amended(before: FederationConfig, after: FederationConfig) -> None:
    """Check that a running node can adopt the change.

    Raises UserError, naming the section: more has changed than a running node can adopt.
    """
    rounds = before.training.rounds
    if rounds is not None and after.training.rounds is not None:
        after = replace(after, training=replace(after.training, rounds=rounds))
    for each in fields(FederationConfig):
        if each.name not in FREE and getattr(before, each.name) != getattr(after, each.name):
            raise _refusal(after, each.name, "cannot change while nodes run", "what it was")
    for edge in set(before.edges).intersection(after.edges):
        if before.compressor_of(*edge) != after.compressor_of(*edge):
            raise _refusal(after, "edge_compressors", "an existing edge has another compressor", "what it was")
    _check_members(before, after)
    lost = sorted({node for edge in after.edges for node in edge} & after.retired)
    if lost:
        raise _refusal(after, "edges", f"{after.members[lost[0]].name} was removed and has edges", "edges of members")


def _check_members(before: FederationConfig, after: FederationConfig) -> None:
    if len(after.members) < len(before.members):
        raise _refusal(after, "members", "a member's row is missing", "every previous row, removed members as retired")
    for known, member in zip(before.members, after.members, strict=False):
        if member.key != known.key or (known.retired and not member.retired):
            text = f"row {known.index} was {known.name}, and now is another member or a removed one"
            raise _refusal(after, "members", text, "new members in new rows")
    for row, member in enumerate(after.members):
        if member.index != row:
            raise _refusal(after, "members", f"{member.name} has the index {member.index}", f"that of its row, {row}")
        if member.address is not None and not member.retired:
            parse_address(member.address, f"address of {member.name}")


def _refusal(federation: FederationConfig, section: str, text: str, allowed: str) -> UserError:
    return UserError(text, file=federation.path, key=section, allowed=allowed)


def amended(setup: Setup) -> Amended:
    """Return the event that gives the node's core its new settings."""
    federation, index = setup.federation, setup.member.index
    return Amended(neighbors=setup.peers, turns=turns_of(index, federation.schedule), settings=settings_for(setup))


def keys_with_session(federation: FederationConfig) -> dict[bytes, int]:
    """Return the keys that may have a session, those of members not removed, with their indices."""
    return {member.key: member.index for member in federation.members if not member.retired}


def with_federation(setup: Setup, federation: FederationConfig) -> Setup:
    return replace(setup, federation=federation, member=federation.members[setup.member.index])


def without_members(federation: FederationConfig, keys: Collection[bytes]) -> FederationConfig:
    """Return the federation with these members and their edges removed; it is not signed anew."""
    members = tuple(replace(one, retired=True) if one.key in keys else one for one in federation.members)
    gone = {member.index for member in members if member.retired}

    def kept(edges: Edges) -> Edges:
        return tuple(edge for edge in edges if gone.isdisjoint(edge))

    return replace(
        federation, members=members, edges=kept(federation.edges), schedule=tuple(map(kept, federation.schedule))
    )


def in_words(before: FederationConfig, after: FederationConfig, index: int) -> str:
    """Describe what has changed, as that member sees it: for its log, and for its page."""
    here, there = ({member.index: member for member in one.present} for one in (before, after))
    was, now = set(before.neighbors(index)), set(after.neighbors(index))
    lists = (
        ("joined:", [there[one].name for one in sorted(there.keys() - here.keys())]),
        ("removed:", [here[one].name for one in sorted(here.keys() - there.keys())]),
        ("another key:", [there[one].name for one in _in_both(here, there) if here[one].key != there[one].key]),
        (
            "another address:",
            [_address_text(there[one]) for one in _in_both(here, there) if here[one].address != there[one].address],
        ),
        ("new neighbors:", [after.members[peer].name for peer in sorted(now - was)]),
        ("no longer neighbors:", [after.members[peer].name for peer in sorted(was - now)]),
    )
    parts = [f"{what} {', '.join(names)}" for what, names in lists if names]
    if before.training.rounds != after.training.rounds:
        parts.append(f"{after.training.rounds} rounds to do instead of {before.training.rounds}")
    if before.topology != after.topology:
        parts.append(f"the graph is {after.topology}")
    return "; ".join([f"{len(there)} members", *parts])


def _in_both(here: Mapping[int, Member], there: Mapping[int, Member]) -> list[int]:
    return sorted(here.keys() & there.keys())


def _address_text(member: Member) -> str:
    return f"{member.name} ({member.address or 'none'})"
