"""The address file beside a node's state, and the token of its page."""

from __future__ import annotations

import os
import stat
from types import SimpleNamespace

import pytest

from p2pfl.features.status import (
    TOKEN_NAME,
    NodeAddresses,
    address_at,
    keep_file,
    page_token,
    read_addresses,
    read_token,
)


def there(pid=None):
    return NodeAddresses(
        federation="ward", node="pi1", pid=pid or os.getpid(), listen="10.0.0.1:8470", status="127.0.0.1:8480"
    )


def test_what_is_written_is_read_and_removed(tmp_path):
    node = SimpleNamespace(name="pi1", listen="10.0.0.1:8470", state_dir=tmp_path)
    with keep_file(node, "ward", 8470, "127.0.0.1:8480"):
        assert read_addresses(tmp_path) == there()
        assert read_addresses(tmp_path).is_running
    assert read_addresses(tmp_path) is None


def test_a_process_that_is_gone_is_recognized():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert not there(child).is_running


def test_a_process_of_another_user_may_run():
    assert there(1).is_running


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:0", "127.0.0.1:81"),
        ("0.0.0.0:80", "127.0.0.1:81"),
        ("[::]:0", "[::1]:81"),
        ("pi1.local:1", "pi1.local:81"),
    ],
)
def test_an_address_can_be_dialed_from_here(listen, address):
    assert address_at(listen, 81) == address


def test_a_token_is_kept_for_the_owner_alone(tmp_path):
    token = page_token(tmp_path)
    assert page_token(tmp_path) == token == read_token(tmp_path)
    assert len(token) >= 24
    assert stat.S_IMODE((tmp_path / TOKEN_NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 1000, b"\xff" * 30])
def test_a_broken_token_is_made_anew(tmp_path, content):
    (tmp_path / TOKEN_NAME).write_bytes(content)
    assert page_token(tmp_path) == read_token(tmp_path) != content.decode(errors="replace")


def test_a_disk_that_refuses_costs_no_start(tmp_path):
    (tmp_path / TOKEN_NAME).mkdir()
    assert page_token(tmp_path)
