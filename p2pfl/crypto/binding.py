"""Which federation a handshake is for, in a form that can be compared without being shown.

Each hash travels encrypted, and hashed once more together with the handshake's transcript: it is worth nothing in
another session. An eavesdropper learns nothing. Whoever knows the responder's public key can dial it and then test
guesses at a section, which is all that a comparison by section can hide.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.crypto.transcript import KEY_BYTES, digest

MAX_SECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationBinding:
    """The hash of the whole federation and of each of its named sections, 32 bytes each."""

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

    def blinded(self, transcript: bytes) -> bytes:
        """The id and then every section in order, each hashed with its name and with `transcript` (32 bytes)."""
        sections = [digest("section", transcript, name.encode(), value) for name, value in self.sections]
        return b"".join([digest("federation", transcript, self.federation_id), *sections])

    def differences(self, transcript: bytes, theirs: bytes) -> tuple[str, ...]:
        """Names of the sections in which a peer's blinded binding differs; "federation" if only the id does."""
        ours = self.blinded(transcript)
        if ours == theirs:
            return ()
        names = []
        for place, (name, _) in enumerate(self.sections, start=1):
            here = slice(place * KEY_BYTES, (place + 1) * KEY_BYTES)
            if ours[here] != theirs[here]:
                names.append(name)
        return tuple(names) or ("federation",)
