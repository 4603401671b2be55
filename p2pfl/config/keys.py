"""The text of a public identity in a federation file. The layer that makes identities lies above this one."""

from __future__ import annotations

import base64
import re
from typing import Any

from p2pfl.config.kinds import Kind

TEXT = re.compile(r"[A-Za-z0-9_-]{43}")
ALLOWED = "the public key that `p2pfl key` prints, 43 characters"


def public_key() -> Kind:
    """32 bytes from base64url without padding. Most slips of the pen give no point of the curve."""
    return Kind(ALLOWED, _read)


def _read(value: Any) -> bytes:
    from nacl.bindings import crypto_core_ed25519_is_valid_point  # noqa: PLC0415 - for who reads a federation only

    if not isinstance(value, str) or not TEXT.fullmatch(value):
        raise ValueError
    public = base64.urlsafe_b64decode(value + "=")
    canonical = base64.urlsafe_b64encode(public).decode("ascii").rstrip("=")
    if canonical != value or not crypto_core_ed25519_is_valid_point(public):
        raise ValueError
    return public
