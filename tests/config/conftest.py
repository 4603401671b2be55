"""A federation of three nodes as text, to be changed one line at a time."""

from __future__ import annotations

import pytest

from p2pfl.config import NewMember, federation_text
from p2pfl.crypto.identity import Identity, public_text

KEYS = [public_text(Identity(bytes([index]) * 32).public) for index in range(1, 5)]


@pytest.fixture
def keys():
    return KEYS


@pytest.fixture
def valid_text():
    members = [NewMember(name=f"pi{i}", key=KEYS[i], address=f"10.0.0.{i}:8470") for i in range(3)]
    text = federation_text(name="ward-7", topology="ring", task="digits", members=members)
    return text.replace("\nshare_frozen = false", "\n# share_frozen = true")  # as in a file from before that key


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "federation.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
