"""A federation with admin keys in memory, and charters of it that were signed, or almost."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from p2pfl.config import Charter, FederationConfig, Mistakes, amended, federation_from, signed, successor, with_member
from p2pfl.crypto.identity import Identity, public_text

ADMIN, SECOND_ADMIN, STRANGER = (Identity(bytes([number]) * 32) for number in (101, 102, 103))


@cache
def key_of(number: int) -> Identity:
    return Identity(number.to_bytes(2, "big") * 16)


def ward(count: int = 3, **head: object) -> FederationConfig:
    """The federation by its file alone; node i has the key `key_of(i)`."""
    nodes = [
        {"name": f"pi{index}", "key": public_text(key_of(index).public), "address": f"10.0.0.{index}:8470"}
        for index in range(count)
    ]
    admin = [public_text(ADMIN.public), public_text(SECOND_ADMIN.public)]
    document = {"federation": {"name": "ward", "topology": "keyed-rings", "admin": admin} | head, "node": nodes}
    mistakes = Mistakes(Path("ward/federation.toml"))
    federation = federation_from(document, mistakes)
    assert not mistakes.errors, mistakes.errors
    return federation


def sign(charter: Charter, who: Identity = ADMIN) -> Charter:
    return signed(charter, who.public, who.sign)


def first(federation: FederationConfig) -> Charter:
    return sign(successor(federation))


def added(federation: FederationConfig, number: int) -> Charter:
    """Signed: with the member `pi<number>` too."""
    key = key_of(number).public
    return sign(with_member(federation, name=f"pi{number}", key=key, address=f"10.0.0.{number}:8470"))


def after(federation: FederationConfig, *charters: Charter) -> FederationConfig:
    for charter in charters:
        federation = amended(federation, charter)
    return federation
