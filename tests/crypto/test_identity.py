"""Key files and the text form of keys."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from nacl.signing import VerifyKey

from p2pfl.crypto.identity import FILE_PREFIX, Identity, public_text
from p2pfl.errors import StorageError, UserError

SEED_TEXT = "A" * 43


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "node.key"
    path.write_text(f"{FILE_PREFIX}{SEED_TEXT}\n")
    path.chmod(0o600)
    return path


def test_a_saved_identity_loads_as_the_same_node(tmp_path):
    identity = Identity.generate()
    identity.save(tmp_path / "node.key")
    loaded = Identity.load(tmp_path / "node.key")
    assert loaded.public == identity.public
    VerifyKey(identity.public).verify(b"statement", loaded.sign(b"statement"))


def test_a_key_file_is_readable_by_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        Identity.generate().save(tmp_path / "node.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600


def test_an_existing_key_is_never_overwritten(key_file):
    before = key_file.read_bytes()
    with pytest.raises(UserError, match="exists") as caught:
        Identity.generate().save(key_file)
    assert caught.value.file == str(key_file)
    assert key_file.read_bytes() == before


def test_saving_into_a_missing_folder_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        Identity.generate().save(tmp_path / "missing" / "node.key")


def test_a_key_that_could_not_be_written_leaves_no_file_behind(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="No space left"):
        Identity.generate().save(tmp_path / "node.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644])
def test_a_key_file_that_others_can_touch_is_refused(key_file, mode):
    key_file.chmod(mode)
    with pytest.raises(UserError, match="others may read") as caught:
        Identity.load(key_file)
    assert caught.value.file == str(key_file)
    assert caught.value.value == f"mode {mode:o}"
    assert "600" in caught.value.allowed


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o702, 0o770])
def test_a_key_in_a_folder_where_others_could_replace_it_is_refused(key_file, mode, monkeypatch):
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name="everybody", gr_mem=[]))
    key_file.parent.chmod(mode)
    with pytest.raises(UserError, match="others may replace") as caught:
        Identity.load(key_file)
    assert caught.value.file == str(key_file.parent)
    assert caught.value.value == f"mode {mode:o}"
    assert f"chmod 700 {key_file.parent}" in caught.value.allowed


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o1770, 0o500])
def test_a_key_in_a_folder_where_nobody_else_can_replace_it_is_taken(key_file, mode):
    key_file.parent.chmod(mode)
    Identity.load(key_file)
    key_file.parent.chmod(0o700)


@pytest.mark.parametrize(("members", "others"), [([], False), (["me"], False), (["me", "you"], True)])
def test_a_group_of_its_owner_alone_is_nobody_else(key_file, monkeypatch, members, others):
    """Where each user has such a group new folders are often open to it."""
    key_file.parent.chmod(0o775)
    there = key_file.parent.stat()
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me", pw_gid=there.st_gid))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name="me", gr_mem=members))
    with pytest.raises(UserError, match="others may replace") if others else nullcontext():
        Identity.load(key_file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"p2pfl-key-2:" + b"A" * 43,
        b"p2pfl-key-1:" + b"A" * 42,
        b"p2pfl-key-1:" + b"A" * 44,
        b"p2pfl-key-1:" + b"A" * 42 + b"B",
        b"p2pfl-key-1:" + b"A" * 42 + b"=",
        b"p2pfl-key-1:" + b"A" * 42 + b"+",
        b"p2pfl-key-1:" + b"A" * 43 + b"\n\n",
        b"p2pfl-key-1:" + b"A" * 43 + b"\r\n",
        b" p2pfl-key-1:" + b"A" * 43,
        b"p2pfl-key-1:" + b"\xff" * 43,
        os.urandom(10_000),
    ],
)
def test_a_malformed_key_file_is_refused_without_quoting_it(key_file, content):
    key_file.write_bytes(content)
    with pytest.raises(UserError, match="not a key file") as caught:
        Identity.load(key_file)
    assert "AAAA" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert FILE_PREFIX in caught.value.allowed


def test_a_missing_key_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        Identity.load(tmp_path / "missing")


def test_a_folder_or_a_pipe_is_no_key_file(tmp_path):
    with pytest.raises(UserError):
        Identity.load(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UserError, match="not a regular file"):
        Identity.load(tmp_path / "pipe")


def test_an_identity_shows_its_public_key_only():
    identity = Identity(bytes(32))
    assert repr(identity) == f"Identity({public_text(identity.public)})"


def test_the_text_of_a_known_key_is_pinned():
    """RFC 8032, section 7.1, test 1."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    text = public_text(Identity(seed).public)
    assert text == "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"


def test_only_32_bytes_have_a_text():
    with pytest.raises(ValueError, match="32 bytes"):
        public_text(bytes(31))
