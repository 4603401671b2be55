"""SIGMA-I: two nodes prove who they are and agree on the keys of a session, which seals chunks. No I/O. Not audited.

    m1  I->R  E_I, mac1      E are X25519 ephemerals; mac1, keyed by R's public key, drops strangers before any curve
    m2  R->I  E_R, c2        c2 = R's introduction, sealed over th1 = H(th0, m1, E_R)
    m3  I->R  c3             c3 = I's introduction, sealed over th2 = H(th1, c2)
    keys of the session      from th3 = H(th2, c3) and the shared secret

There is one suite and no negotiation. The responder's first sealed message of the session confirms to the initiator
that it was accepted. Krawczyk, "SIGMA: the SIGn-and-MAc approach", CRYPTO 2003.

Hashes prefix every field with its length, and each use has its own BLAKE2b `person`, so that different inputs, or one
input used for two purposes, never produce the same hash. The federation's hashes can be compared without being
revealed: each is hashed again with the handshake's transcript and sent encrypted, which makes it worthless in any other
session. An eavesdropper learns nothing. But anyone who knows the responder's public key can dial it and test guesses at
a section: no comparison by section can prevent that.

A session has one libsodium secretstream per direction. Its first sealed chunk starts with the stream's 24-byte header.
A chunk that is lost, duplicated, reordered, changed or truncated is detected at once and ends the session. libsodium
releases the GIL, so large chunks belong in a worker thread: one call at a time per direction, but both directions at
once.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from nacl._sodium import ffi, lib  # type: ignore[import-not-found] # compiled
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_ABYTES,
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_aead_chacha20poly1305_ietf_NPUBBYTES,
    crypto_scalarmult,
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_state,
    crypto_secretstream_xchacha20poly1305_TAG_FINAL,
    crypto_secretstream_xchacha20poly1305_TAG_MESSAGE,
    crypto_secretstream_xchacha20poly1305_TAG_REKEY,
    sodium_memcmp,
)
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey
from nacl.signing import VerifyKey

from p2pfl.core.messages import PROTOCOL
from p2pfl.crypto import OTHERS, FederationMismatch, HandshakeFault, UnlistedKey
from p2pfl.crypto.identity import PUBLIC_BYTES, SIGNATURE_BYTES, Identity
from p2pfl.errors import PeerFault
from p2pfl.limits import CHUNK_BYTES, MAX_SECTIONS, REKEY_BYTES

KEY_BYTES = 32
TAG_BYTES = 16
M1_BYTES = KEY_BYTES + TAG_BYTES

# A key that seals only one message needs no nonce.
NONCE = bytes(crypto_aead_chacha20poly1305_ietf_NPUBBYTES)

PROOF_BYTES = SIGNATURE_BYTES + KEY_BYTES
"""The signature and the MAC, at the end of an introduction."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeys:
    """A 32-byte key for each direction, seen from this end.

    `session_id` (32 bytes) is public and the same at both ends.
    """

    send: bytes = field(repr=False)
    receive: bytes = field(repr=False)
    session_id: bytes
    peer_public: bytes


def m2_bytes(federation: FederationBinding) -> int:
    return KEY_BYTES + m3_bytes(federation)


def m3_bytes(federation: FederationBinding) -> int:
    return PUBLIC_BYTES + federation.blinded_bytes + PROOF_BYTES + crypto_aead_chacha20poly1305_ietf_ABYTES


class _Steps:
    """Base of both ends: each step runs once, in order. An object whose step failed cannot be used again."""

    def __init__(self, first: str) -> None:
        self._next = first

    def _begin(self, step: str) -> None:
        if self._next != step:
            raise RuntimeError(f"a handshake is used once, step by step: asked for {step}, state is {self._next}")
        self._next = "dead"


class Initiator(_Steps):
    """The end that dials: `first`, `second`, then `keys`. `ephemeral` is only for test vectors.

    If `visiting`, it does not ask for a session but only exchanges the charter, which is itself signed; the two ends
    may then train different things.
    """

    def __init__(
        self,
        identity: Identity,
        peer_public: bytes,
        federation: FederationBinding,
        *,
        ephemeral: PrivateKey | None = None,
        control: bool = False,
    ) -> None:
        super().__init__("first")
        self._control = control
        if len(peer_public) != PUBLIC_BYTES or peer_public == identity.public:
            raise ValueError("a node dials the public key of another node")
        self._identity = identity
        self._peer_public = peer_public
        self._federation = federation
        self._ephemeral: PrivateKey | None = ephemeral or PrivateKey.generate()
        self._m1 = b""
        self._keys: SessionKeys | None = None

    @property
    def keys(self) -> SessionKeys:
        if self._keys is None:
            raise RuntimeError("there are no keys before the handshake is complete")
        return self._keys

    def first(self) -> bytes:
        """Return m1, 48 bytes."""
        self._begin("first")
        public = bytes(_unused(self._ephemeral).public_key)
        self._m1 = public + opening_tag(self._peer_public, public)
        self._next = "second"
        return self._m1

    def second(self, m2: bytes) -> bytes:
        """Check the responder and make m3.

        Raises HandshakeFault if m2 is not from the dialed node in this handshake. Raises FederationMismatch if it is,
        but that node trains something else; its `farewell` must still be sent.
        """
        self._begin("second")
        _expect_sections("m2", m2, m2_bytes(self._federation), self._federation)
        ephemeral, c2 = m2[:KEY_BYTES], m2[KEY_BYTES:]
        # Always, because anyone who finds the ephemeral key later could open a recorded session.
        ours, self._ephemeral = _unused(self._ephemeral), None
        secrets = agree(ours, ephemeral, self._m1, ephemeral)
        responder = examine(Leg.of_responder(secrets), c2, self._federation)
        if responder.public != self._peer_public:
            raise HandshakeFault("another node answered than the one that was dialed")
        th2 = digest("th2", secrets.th1, c2)
        m3 = introduce(Leg.of_initiator(secrets, th2), self._identity, self._federation)
        if responder.differences and not self._control:
            raise FederationMismatch(responder.public, responder.differences, farewell=m3)
        self._keys = _session_keys(secrets, th2, m3, peer_public=responder.public, initiating=True)
        self._next = "complete"
        return m3


class Responder(_Steps):
    """The end that answers: `first`, `third`. `allowed` says whether a key may take part.

    If `receives`, a peer that proves its identity but may not have a session gets keys too, only to exchange the
    charter. `refusal` then says why it may not have a session; the caller must raise it.
    """

    def __init__(
        self,
        identity: Identity,
        allowed: Callable[[bytes], bool],
        federation: FederationBinding,
        *,
        ephemeral: PrivateKey | None = None,
        receives: bool = False,
    ) -> None:
        super().__init__("first")
        self._receives = receives
        self.refusal: HandshakeFault | None = None
        self._identity = identity
        self._allowed = allowed
        self._federation = federation
        self._ephemeral = ephemeral
        self._pending: tuple[Secrets, bytes] | None = None

    def check_opening(self, m1: bytes) -> None:
        """Check the opening tag, which costs two hashes and changes nothing.

        Raises HandshakeFault if m1 was not meant for this node.
        """
        _expect_length("m1", m1, M1_BYTES)
        theirs, tag = m1[:KEY_BYTES], m1[KEY_BYTES:]
        if not sodium_memcmp(tag, opening_tag(self._identity.public, theirs)):
            raise HandshakeFault("the opening tag is wrong: the dialer does not know this node's key")

    def first(self, m1: bytes) -> bytes:
        """Return m2. The opening tag is checked before any curve arithmetic.

        Raises HandshakeFault if m1 was not meant for this node, or carries a point of low order.
        """
        self._begin("first")
        self.check_opening(m1)
        theirs = m1[:KEY_BYTES]
        ephemeral, self._ephemeral = self._ephemeral or PrivateKey.generate(), None
        ours = bytes(ephemeral.public_key)
        secrets = agree(ephemeral, theirs, m1, ours)
        c2 = introduce(Leg.of_responder(secrets), self._identity, self._federation)
        self._pending = secrets, digest("th2", secrets.th1, c2)
        self._next = "third"
        return ours + c2

    def third(self, m3: bytes) -> SessionKeys:
        """Check the initiator and return the session's keys.

        Raises HandshakeFault if m3 does not belong to this handshake, UnlistedKey if its sender may not take part, and
        FederationMismatch if it may but trains something else.
        """
        self._begin("third")
        _expect_sections("m3", m3, m3_bytes(self._federation), self._federation)
        (secrets, th2), self._pending = _unused(self._pending), None
        initiator = examine(Leg.of_initiator(secrets, th2), m3, self._federation)
        if initiator.public == self._identity.public:
            raise HandshakeFault("the initiator claims to be this node itself")
        if not self._allowed(initiator.public):
            self.refusal = UnlistedKey(initiator.public)
        elif initiator.differences:
            self.refusal = FederationMismatch(initiator.public, initiator.differences)
        if self.refusal is not None and not self._receives:
            raise self.refusal
        self._next = "complete"
        return _session_keys(secrets, th2, m3, peer_public=initiator.public, initiating=False)


@dataclass(frozen=True, slots=True)
class Leg:
    """One of the two introductions: the role that speaks, the transcript so far, and the keys for this message
    alone.
    """

    role: Literal["initiator", "responder"]
    transcript: bytes
    seal_key: bytes = field(repr=False)
    mac_key: bytes = field(repr=False)

    @classmethod
    def of_responder(cls, secrets: Secrets) -> Leg:
        th1 = secrets.th1
        return cls("responder", th1, secrets.key("seal responder", th1), secrets.key("mac responder", th1))

    @classmethod
    def of_initiator(cls, secrets: Secrets, th2: bytes) -> Leg:
        th1 = secrets.th1
        return cls("initiator", th2, secrets.key("seal initiator", th1), secrets.key("mac initiator", th1))

    def statement(self, public: bytes, blinded: bytes) -> bytes:
        """Return the bytes that are signed and authenticated."""
        return fields(PROTOCOL.encode(), self.role.encode(), self.transcript, public, blinded)


@dataclass(frozen=True, slots=True)
class Introduction:
    """A proven identity, and the sections in which its federation differs from ours (empty if none)."""

    public: bytes
    differences: tuple[str, ...]


def introduce(leg: Leg, identity: Identity, federation: FederationBinding) -> bytes:
    """Return the encrypted half of a handshake message: identity, federation, and the proof of both.

    Plaintext: identity (32) | blinded federation (32 + 32 per section) | Ed25519 signature (64) | MAC (32). The
    signature proves that the identity took part in exactly this transcript and role; the MAC proves that it knows the
    shared secret. Without the MAC, a signature could be lifted into somebody else's session (Krawczyk 2003).
    """
    blinded = federation.blind(leg.transcript)
    statement = leg.statement(identity.public, blinded)
    mac = digest("introduction", statement, key=leg.mac_key)
    plain = identity.public + blinded + identity.sign(statement) + mac
    return crypto_aead_chacha20poly1305_ietf_encrypt(plain, leg.transcript, NONCE, leg.seal_key)


def examine(leg: Leg, sealed: bytes, federation: FederationBinding) -> Introduction:
    """Decrypt and verify the peer's introduction; only its length has been checked so far.

    Raises HandshakeFault if any of it is not what `introduce` makes for this leg.
    """
    try:
        plain = crypto_aead_chacha20poly1305_ietf_decrypt(sealed, leg.transcript, NONCE, leg.seal_key)
    except CryptoError as error:
        raise HandshakeFault(f"the {leg.role}'s introduction was not sealed for this handshake") from error
    public, rest = plain[:PUBLIC_BYTES], plain[PUBLIC_BYTES:]
    blinded, proofs = rest[:-PROOF_BYTES], rest[-PROOF_BYTES:]
    signature, mac = proofs[:SIGNATURE_BYTES], proofs[SIGNATURE_BYTES:]
    statement = leg.statement(public, blinded)
    if not sodium_memcmp(mac, digest("introduction", statement, key=leg.mac_key)):
        raise HandshakeFault(f"the {leg.role}'s MAC is wrong")
    try:
        VerifyKey(public).verify(statement, signature)
    except CryptoError as error:
        raise HandshakeFault(f"the {leg.role}'s signature is wrong") from error
    return Introduction(public, federation.differences(leg.transcript, blinded))


def fields(*parts: bytes) -> bytes:
    """Return the parts, each preceded by its length as an unsigned 64-bit little-endian number."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def digest(use: str, *parts: bytes, key: bytes = b"", size: int = KEY_BYTES) -> bytes:
    """Return BLAKE2b over the length-prefixed parts, with `use` (at most 16 characters) as its person string."""
    return hashlib.blake2b(fields(*parts), digest_size=size, key=key, person=use.encode()).digest()


def opening_tag(responder_public: bytes, ephemeral: bytes) -> bytes:
    """Return mac1, 16 bytes: it proves that the dialer knows whom it is dialing, and costs two hashes to check."""
    key = digest("mac1 key", PROTOCOL.encode(), responder_public)
    return digest("mac1", ephemeral, key=key, size=TAG_BYTES)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Values that both ends derive from the ephemeral keys: th1 (public), prk (secret), 32 bytes each."""

    th1: bytes
    prk: bytes = field(repr=False)

    def key(self, label: str, transcript: bytes) -> bytes:
        """Return the 32-byte key for one purpose; each key seals or authenticates a single message or stream."""
        return digest(label, transcript, key=self.prk)


def agree(ephemeral: PrivateKey, peer_ephemeral: bytes, m1: bytes, responder_ephemeral: bytes) -> Secrets:
    """Run X25519 and derive the session's root secret from the result and all messages so far.

    Raises HandshakeFault if the peer's point has low order, because anyone could then know the secret.
    """
    try:
        shared = crypto_scalarmult(bytes(ephemeral), peer_ephemeral)
    except CryptoError as error:
        raise HandshakeFault("the peer's ephemeral key is a point of low order") from error
    th0 = digest("th0", PROTOCOL.encode())
    th1 = digest("th1", th0, m1, responder_ephemeral)
    return Secrets(th1, digest("prk", th1, key=shared))


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationBinding:
    """Hashes of the whole federation and of each of its named sections, 32 bytes each."""

    federation_id: bytes
    sections: tuple[tuple[str, bytes], ...]

    def __post_init__(self) -> None:
        hashes = [self.federation_id, *(value for _, value in self.sections)]
        if any(len(value) != KEY_BYTES for value in hashes):
            raise ValueError(f"every hash of a federation has {KEY_BYTES} bytes")
        if len({name for name, _ in self.sections}) != len(self.sections) or len(hashes) > MAX_SECTIONS:
            raise ValueError(f"section names are distinct and fewer than {MAX_SECTIONS}")

    @property
    def blinded_bytes(self) -> int:
        return KEY_BYTES * (1 + len(self.sections))

    def blind(self, transcript: bytes) -> bytes:
        """Return the id followed by every section in order, each hashed with its name and `transcript` (32 bytes)."""
        sections = [digest("section", transcript, name.encode(), value) for name, value in self.sections]
        return b"".join([digest("federation", transcript, self.federation_id), *sections])

    def differences(self, transcript: bytes, theirs: bytes) -> tuple[str, ...]:
        """Return the names of the sections in which a peer's blinded binding differs.

        The result is "federation" if only the id differs, and includes OTHERS if the peer has all of our sections and
        more, for example an optional table.
        """
        ours = self.blind(transcript)
        if ours == theirs:
            return ()
        parts = [theirs[start : start + KEY_BYTES] for start in range(0, len(theirs), KEY_BYTES)]
        same_places = len(theirs) == len(ours)
        names = []
        for place, (name, _) in enumerate(self.sections, start=1):
            mine = ours[place * KEY_BYTES : (place + 1) * KEY_BYTES]
            if mine != parts[place] if same_places else mine not in parts:
                names.append(name)
        return tuple(names) or ("federation" if same_places else OTHERS,)


def _unused(secret: T | None) -> T:
    """Return a value that `_Steps` guarantees to exist: each secret is used by one step, which runs once."""
    if secret is None:
        raise AssertionError("this secret was used up by an earlier step")
    return secret


def _expect_sections(name: str, message: bytes, usual: int, federation: FederationBinding) -> None:
    """Check a message's length, which varies with the number of optional tables in the federation file."""
    more, rest = divmod(len(message) - usual, KEY_BYTES)
    if rest or not 0 <= len(federation.sections) + more < MAX_SECTIONS:
        _expect_length(name, message, usual)


def _expect_length(name: str, message: bytes, expected: int) -> None:
    if len(message) != expected:
        text = f"{name} has {len(message)} bytes instead of {expected}: another version of p2pfl?"
        raise HandshakeFault(text)


def _session_keys(secrets: Secrets, th2: bytes, m3: bytes, *, peer_public: bytes, initiating: bool) -> SessionKeys:
    th3 = digest("th3", th2, m3)
    forth, back = secrets.key("stream i2r", th3), secrets.key("stream r2i", th3)
    return SessionKeys(
        send=forth if initiating else back,
        receive=back if initiating else forth,
        session_id=secrets.key("session id", th3),
        peer_public=peer_public,
    )


_HEADER_BYTES = crypto_secretstream_xchacha20poly1305_HEADERBYTES
_OVERHEAD_BYTES = crypto_secretstream_xchacha20poly1305_ABYTES
_MESSAGE = crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
_REKEY = crypto_secretstream_xchacha20poly1305_TAG_REKEY
_FINAL = crypto_secretstream_xchacha20poly1305_TAG_FINAL

MAX_SEALED_BYTES = CHUNK_BYTES + _OVERHEAD_BYTES + _HEADER_BYTES


def push(state: Any, chunk: bytes | memoryview, tag: int) -> bytes:
    """Encrypt the next chunk, a flat buffer of bytes, without a copy. `state` is PyNaCl's.

    PyNaCl's own functions take and return `bytes`: the copies made a fifth of what sealing and opening a large chunk
    cost. `nacl._sodium` is its compiled part and has libsodium's names, which are stable. The calls release the GIL.
    """
    size = len(chunk) + _OVERHEAD_BYTES
    if state.rawbuf is None or len(state.rawbuf) < size:
        state.rawbuf = ffi.new("unsigned char[]", size)
    plain = ffi.from_buffer(chunk)
    if lib.crypto_secretstream_xchacha20poly1305_push(
        state.statebuf, state.rawbuf, ffi.NULL, plain, len(chunk), ffi.NULL, 0, tag
    ):
        raise CryptoError("libsodium cannot seal a chunk")
    sealed: bytes = ffi.buffer(state.rawbuf, size)[:]
    return sealed


class Session:
    """Both directions of one session. After any failure, every later call raises PeerFault."""

    def __init__(self, keys: SessionKeys, *, rekey_bytes: int = REKEY_BYTES) -> None:
        self.session_id = keys.session_id
        self.peer_public = keys.peer_public
        self._alive = True
        self._outbound = crypto_secretstream_xchacha20poly1305_state()
        self._out_header = crypto_secretstream_xchacha20poly1305_init_push(self._outbound, keys.send)
        self._out_lock = threading.Lock()
        self._out_final = False
        self._unrekeyed_bytes = 0
        self._rekey_bytes = rekey_bytes
        self._inbound: crypto_secretstream_xchacha20poly1305_state | None = None
        self._in_key: bytes | None = keys.receive
        self._in_lock = threading.Lock()
        self._in_final = False

    def seal(self, chunk: bytes | memoryview, *, final: bool = False) -> bytes:
        """Encrypt the next chunk (at most CHUNK_BYTES). No chunk may follow a `final` one."""
        with self._turn(self._out_lock):
            if self._out_final or len(chunk) > CHUNK_BYTES:
                raise ValueError("a chunk is too long, or comes after the final one")
            sealed = push(self._outbound, chunk, self._next_tag(len(chunk), final=final))
            header, self._out_header = self._out_header, b""
            return header + sealed if header else sealed

    def open(self, sealed: bytes) -> tuple[bytes, bool]:
        """Decrypt the next chunk; the flag says whether it was the peer's last.

        Raises PeerFault if it is not the chunk that the peer sealed next.
        """
        with self._turn(self._in_lock):
            return self._pull(sealed)

    def _pull(self, sealed: bytes) -> tuple[bytes, bool]:
        if self._in_final:
            raise PeerFault("a chunk after the final one")
        sealed = self._strip_header(sealed)
        if not _OVERHEAD_BYTES <= len(sealed) <= CHUNK_BYTES + _OVERHEAD_BYTES or self._inbound is None:
            raise PeerFault(f"a sealed chunk of {len(sealed)} bytes")
        try:
            chunk, tag = crypto_secretstream_xchacha20poly1305_pull(self._inbound, sealed)
        except CryptoError as error:
            raise PeerFault("a chunk was changed, lost, doubled or reordered") from error
        if tag not in {_MESSAGE, _REKEY, _FINAL}:
            raise PeerFault(f"a chunk has the unknown tag {tag}")
        self._in_final = tag == _FINAL
        return chunk, self._in_final

    def _strip_header(self, sealed: bytes) -> bytes:
        if self._inbound is not None:
            return sealed
        if len(sealed) < _HEADER_BYTES or self._in_key is None:
            raise PeerFault("the first sealed chunk is too short for the stream's header")
        # Rekey the stream's state: a first key left in memory would open recorded chunks.
        key, self._in_key = self._in_key, None
        self._inbound = crypto_secretstream_xchacha20poly1305_state()
        crypto_secretstream_xchacha20poly1305_init_pull(self._inbound, sealed[:_HEADER_BYTES], key)
        return sealed[_HEADER_BYTES:]

    def _next_tag(self, size_bytes: int, *, final: bool) -> int:
        if final:
            self._out_final = True
            return _FINAL
        self._unrekeyed_bytes += size_bytes
        if self._unrekeyed_bytes < self._rekey_bytes:
            return _MESSAGE
        self._unrekeyed_bytes = 0
        return _REKEY

    def _check_alive(self) -> None:
        if not self._alive:
            raise PeerFault("the session is dead")

    @contextmanager
    def _turn(self, lock: threading.Lock) -> Iterator[None]:
        """Allow one call at a time: two at once would seal two chunks with the same nonce."""
        if not lock.acquire(blocking=False):
            raise RuntimeError("two calls at once for one direction of a session")
        try:
            self._check_alive()
            yield
        except BaseException:
            self._alive = False
            raise
        finally:
            lock.release()
