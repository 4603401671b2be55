"""A member written from docs/reference/protocol.md alone, without this project's code, is served and has a session."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from nacl import bindings
from nacl.signing import SigningKey
from relay_kit import QUICK, TOKEN, RelayHere, by_relay, dialer

from p2pfl.core.messages import Hello
from p2pfl.crypto.identity import Identity
from p2pfl.features.relay.admissions import ListedFederation
from p2pfl.net.in_memory import MemoryNetwork

pack = msgspec.msgpack.encode
VERSION, NONCE = b"p2pfl/1", bytes(12)
CHALLENGE, REGISTER, WELCOME, OPEN, ACCEPT, DATA = 1, 2, 3, 5, 6, 7


def blake(data, person, size=32, key=b""):
    return hashlib.blake2b(data, digest_size=size, person=person.encode(), key=key).digest()


def lengths(*parts):
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def hashed(use, *parts, size=32, key=b""):
    return blake(lengths(*parts), use, size, key)


def frame(kind, line, payload):
    return bytes([kind]) + line.to_bytes(4, "little") + payload


class Outsider:
    """A member at a relay; `line` is its connection there."""

    def __init__(self, line, seed):
        self.line, self.key = line, SigningKey(seed)
        self.public = bytes(self.key.verify_key)

    async def register(self, relay, *, ticket=b"", token=b""):
        """Return the kind of the answer."""
        challenge = await self.line.receive()
        assert challenge[0] == CHALLENGE
        nonce = msgspec.msgpack.decode(challenge[5:])[1]
        name = blake(token, "p2pfl-relay-tok", 8) if token else b""
        signed = b"p2pfl-relay-member-1\n"
        signed += blake(pack([relay, nonce, self.public, ticket, name]), "p2pfl-relay-reg")
        proof = blake(signed, "p2pfl-relay-mac", key=token) if token else b""
        signature = self.key.sign(signed).signature
        rows = [1, relay, self.public, signature, ticket, name, proof, False]
        await self.line.send(frame(REGISTER, 0, pack(rows)))
        return (await self.line.receive())[0]

    async def say(self, data):
        await self.line.send(frame(DATA, 1, data))

    async def heard(self, kind=DATA):
        """Return what comes next on its line; the node may open lines, too."""
        while (raw := await self.line.receive())[:5] != frame(kind, 1, b""):
            pass
        return raw[5:]

    async def shake_hands(self, other, identity, sections):
        await self.line.send(frame(OPEN, 1, other))
        await self.heard(ACCEPT)
        ours, secret = bindings.crypto_box_keypair()
        m1 = ours + hashed("mac1", ours, size=16, key=hashed("mac1 key", VERSION, other))
        await self.say(m1)
        m2 = await self.heard()
        theirs, c2 = m2[:32], m2[32:]
        th1 = hashed("th1", hashed("th0", VERSION), m1, theirs)
        root = hashed("prk", th1, key=bindings.crypto_scalarmult(secret, theirs))
        key = lambda label, transcript: hashed(label, transcript, key=root)  # noqa: E731 - as the page has it
        plain = bindings.crypto_aead_chacha20poly1305_ietf_decrypt(c2, th1, NONCE, key("seal responder", th1))
        assert plain[:32] == other
        th2 = hashed("th2", th1, c2)
        blinded = hashed("federation", th2, identity)
        blinded += b"".join(hashed("section", th2, name.encode(), value) for name, value in sections)
        signed = lengths(VERSION, b"initiator", th2, self.public, blinded)
        mac = hashed("introduction", signed, key=key("mac initiator", th1))
        plain = self.public + blinded + self.key.sign(signed).signature + mac
        m3 = bindings.crypto_aead_chacha20poly1305_ietf_encrypt(plain, th2, NONCE, key("seal initiator", th1))
        await self.say(m3)
        th3 = hashed("th3", th2, m3)
        self.out, self.into = (bindings.crypto_secretstream_xchacha20poly1305_state() for _ in range(2))
        header = bindings.crypto_secretstream_xchacha20poly1305_init_push(self.out, key("stream i2r", th3))
        await self.seal(bytes([1]) + bytes(24), header)
        first = await self.heard()
        bindings.crypto_secretstream_xchacha20poly1305_init_pull(self.into, first[:24], key("stream r2i", th3))
        return [self.open(first[24:]), self.open(await self.heard())]

    async def seal(self, chunk, header=b""):
        await self.say(header + bindings.crypto_secretstream_xchacha20poly1305_push(self.out, chunk))

    def open(self, sealed):
        return bindings.crypto_secretstream_xchacha20poly1305_pull(self.into, sealed)[0]


async def test_a_member_registers_with_a_token_and_has_a_session_behind_the_relay(federation):
    network = MemoryNetwork()
    async with RelayHere(network) as relay:
        by = by_relay(network, federation.identities[0], relay.url)
        async with federation.node(0, limits=QUICK, neighbors=frozenset({1}), transport=by) as node:
            await node.until(lambda: node.links.transport.relays[0].is_registered)
            outsider = Outsider(await dialer(network)(relay.url), bytes([2]) * 32)
            assert await outsider.register("relay:1/p2pfl", token=TOKEN) == WELCOME
            known = node.links._greeter.binding
            greeting, verdict = await outsider.shake_hands(
                federation.identities[0].public, known.federation_id, known.sections
            )
            assert (greeting[0], verdict[0]) == (1, 2)
            first = [0, 0, None, b"", False, bytes(16), bytes(16), 0, None, None, False, False, 0, 0, 1, 0, 0, b"", b""]
            for version, kind, fields in ((9, 11, [9, 10, []]), (10, 1, first)):
                header = pack(fields)
                size = len(header).to_bytes(4, "little")
                await outsider.seal(b"p2" + bytes([version, kind, 0, 0]) + size + bytes(8) + header)
            await node.until(node.messages)
            assert isinstance(node.messages()[0], Hello)
            await outsider.seal(b"garbage")
            await node.until(node.reasons)
            assert node.links.counters.peers[1].faults == 1


@pytest.mark.parametrize("seed", [7, 8])
async def test_a_member_registers_with_a_ticket_of_the_admin_of_that_federation_alone(seed):
    admin, member = SigningKey(bytes([9]) * 32), Identity(bytes([2]) * 32)
    realm = blake(pack(["ward", 7]), "p2pfl-realm")
    listed = ListedFederation(name="ward", realm=realm, admin=(bytes(admin.verify_key),))
    rights = pack([blake(pack(["ward", seed]), "p2pfl-realm"), member.public, 2**33])
    ticket = bytes(admin.verify_key) + admin.sign(b"p2pfl-relay-ticket-1\n" + rights).signature + rights
    network = MemoryNetwork()
    async with RelayHere(network, listed=[listed]) as relay:
        outsider = Outsider(await dialer(network)(relay.url), bytes([2]) * 32)
        answer = await outsider.register("relay:1/p2pfl", ticket=ticket)
    assert (answer == WELCOME) == (seed == 7)
