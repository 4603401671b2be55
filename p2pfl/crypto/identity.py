"""A node's long-term Ed25519 key, its file and its text form.

The file is one line, `p2pfl-key-1:` and the seed in base64url, readable only by its owner. Error messages never quote
the file, whose content may be secret.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import stat
import string
from pathlib import Path

from nacl.signing import SigningKey

from p2pfl.errors import StorageError, UserError
from p2pfl.system import BINARY, HAS_MODES, NO_WAIT, is_own_group, sync, sync_folder

PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
TEXT_LENGTH = 43
FINGERPRINT_BYTES, FINGERPRINT_LENGTH = 15, 20
BASE64URL = frozenset(string.ascii_letters + string.digits + "-_")
FILE_PREFIX = "p2pfl-key-1:"
ALLOWED_CONTENT = f"one line: {FILE_PREFIX} and {TEXT_LENGTH} characters of base64url"
ALLOWED_MODE = "a file that only its owner can read: chmod 600"


class Identity:
    """The key that proves a node's identity. `public` (32 bytes) identifies the node in the federation."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        self._key = SigningKey(seed)
        self.public = bytes(self._key.verify_key)

    def __repr__(self) -> str:
        return f"Identity({public_text(self.public)})"

    @classmethod
    def generate(cls) -> Identity:
        return cls(bytes(SigningKey.generate()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read a key file.

        Raises UserError if the file is missing or not a key file, or if other users may read it or replace the key or
        the task.
        """
        text = read_private(Path(path))
        _refuse_open_folder(Path(path).absolute().parent)
        try:
            return cls(_parse_file(text))
        except ValueError:
            # The cause is dropped on purpose: it might quote a damaged seed.
            content = f"{len(text)} characters of something else"
            raise UserError("not a key file", file=path, value=content, allowed=ALLOWED_CONTENT) from None

    def secret_for(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose, which only the holder of this key can compute."""
        seed = bytes(self._key)
        return hashlib.blake2b(purpose.encode(), key=seed, digest_size=32, person=b"p2pfl-own-secret").digest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new key file durably; an existing one is never overwritten.

        Raises UserError if the file exists or its folder does not, StorageError if the disk refuses.
        """
        path = Path(path)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600)
        except OSError as error:
            reason = f"the key file cannot be created: {error.strerror}"
            raise UserError(reason, file=path, allowed="a new file in a folder that exists") from error
        try:
            with os.fdopen(descriptor, "w", encoding="ascii", newline="\n") as file:
                file.write(f"{FILE_PREFIX}{_encode(bytes(self._key))}\n")
                file.flush()
                sync(file.fileno())
            sync_folder(path.parent)
        except OSError as error:
            # Half a key would block the next attempt.
            with contextlib.suppress(OSError):
                path.unlink()
            raise StorageError(f"{path}: the key could not be written: {error.strerror}") from error

    def sign(self, statement: bytes) -> bytes:
        """Return the bare 64-byte signature."""
        return self._key.sign(statement).signature


def public_text(public: bytes) -> str:
    """Return a 32-byte public key as 43 characters of base64url, as in a federation file."""
    if len(public) != PUBLIC_BYTES:
        raise ValueError(f"a public key has {PUBLIC_BYTES} bytes, not {len(public)}")
    return _encode(public)


def fingerprint(public: bytes) -> str:
    """Return 100 bits of a hash of a public key as five groups of four letters or digits, for two people to compare."""
    hashed = hashlib.blake2b(public, digest_size=FINGERPRINT_BYTES, person=b"p2pfl-finger").digest()
    text = base64.b32encode(hashed).decode("ascii").lower()[:FINGERPRINT_LENGTH]
    return "-".join(text[start : start + 4] for start in range(0, FINGERPRINT_LENGTH, 4))


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def _decode(text: str) -> bytes:
    if len(text) != TEXT_LENGTH:
        raise ValueError(f"a key has {TEXT_LENGTH} characters of base64url, not {len(text)}")
    if not set(text) <= BASE64URL:
        raise ValueError("a key consists of the characters A-Z a-z 0-9 - _ only")
    raw = base64.urlsafe_b64decode(text + "=")
    # The last character has two unused bits: only one of its four spellings is valid.
    if _encode(raw) != text:
        raise ValueError("the last character of the key is not one that base64url would write")
    return raw


def _parse_file(text: str) -> bytes:
    if not text.startswith(FILE_PREFIX):
        raise ValueError(f"a key file begins with {FILE_PREFIX}")
    return _decode(text.removeprefix(FILE_PREFIX).removesuffix("\n"))


def read_private(path: Path, what: str = "key") -> str:
    """Return the beginning of a file, longer than any key file, decoded leniently.

    Raises UserError if it cannot be read, or if others can read it; `what` is "key", "password" or "token".
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | NO_WAIT), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(256) if stat.S_ISREG(mode) else b""
    except OSError as error:
        reason = "the key file cannot be read" if what == "key" else f"the {what} file cannot be read"
        allowed = f"a {what} file that this user may read"
        raise UserError(f"{reason}: {error.strerror}", file=path, allowed=allowed) from error
    if not stat.S_ISREG(mode):
        raise UserError("not a regular file", file=path, allowed=ALLOWED_CONTENT if what == "key" else "a file")
    if HAS_MODES and mode & 0o077:
        bits = f"mode {stat.S_IMODE(mode):o}"
        raise UserError(f"others may read this secret {what}", file=path, value=bits, allowed=ALLOWED_MODE)
    return raw.decode("ascii", errors="replace")


def _refuse_open_folder(folder: Path) -> None:
    """Check that nobody else can rename files in the folder: no other user, and no group with other members.

    In a folder with the sticky bit, such as /tmp, a user cannot replace another user's file.
    """
    try:
        there = folder.stat()
    except OSError:
        return  # it disappeared after the key was read
    shared = there.st_mode & stat.S_IWGRP and not is_own_group(there.st_gid, there.st_uid)
    if HAS_MODES and (there.st_mode & stat.S_IWOTH or shared) and not there.st_mode & stat.S_ISVTX:
        raise UserError(
            "others may replace the secret key in this folder",
            file=folder,
            value=f"mode {stat.S_IMODE(there.st_mode):o}",
            allowed=f"a folder that only its owner can write: chmod 700 {folder}",
        )
