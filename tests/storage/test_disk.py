"""Files of the state folder: for their owner alone, and never written through a link that was put there."""

from __future__ import annotations

import os

import pytest

from p2pfl.errors import StorageError, UserError
from p2pfl.storage import Store
from p2pfl.storage.disk import Wal, create_file, lock_folder, read_log, replace_file, truncate_file

MINE = b"somebody's own file"


@pytest.fixture
def victim(tmp_path):
    """A file elsewhere that this user may write, and that a link planted in the state folder names."""
    path = tmp_path / "elsewhere"
    path.write_bytes(MINE)
    return path


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("name", ["result.json", "result.json.tmp"])
def test_a_file_is_replaced_and_what_a_link_names_stays(state, victim, name, hard):
    (state / name).hardlink_to(victim) if hard else (state / name).symlink_to(victim)
    replace_file(state / "result.json", [b"new"])
    assert (state / "result.json").read_bytes() == b"new"
    assert not (state / "result.json").is_symlink()
    assert victim.read_bytes() == MINE
    assert sorted(path.name for path in state.iterdir()) == ["result.json"]


def test_a_state_folder_that_is_a_link_is_refused_and_its_place_named(state, tmp_path):
    (tmp_path / "link").symlink_to(state)
    with pytest.raises(UserError, match="symbolic link") as caught:
        lock_folder(tmp_path / "link")
    assert str(state) in caught.value.allowed
    assert list(state.iterdir()) == []


def test_what_a_crash_has_left_is_no_obstacle(state):
    (state / "result.json.tmp").write_bytes(b"half of a much longer result")
    replace_file(state / "result.json", [b"new"])
    assert (state / "result.json").read_bytes() == b"new"


def test_what_is_written_is_for_its_owner_alone_whatever_the_umask(state):
    (state / "result.json").touch(0o644)
    before = os.umask(0)
    try:
        replace_file(state / "result.json", [b"new"])
        create_file(state / "log", b"head")
        os.close(lock_folder(state))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in state.iterdir()} == {0o600}


def test_a_new_file_is_never_made_where_a_link_points(state, victim):
    for target in (victim, victim.with_name("nothing")):
        (state / "log").symlink_to(target)
        with pytest.raises(StorageError, match="File exists"):
            create_file(state / "log", b"head")
        (state / "log").unlink()
    assert victim.read_bytes() == MINE
    assert not victim.with_name("nothing").exists()


def test_a_log_that_is_a_link_is_neither_cut_nor_continued(state, tmp_path):
    Wal.create(tmp_path / "other", bytes(32)).close()
    log = read_log(tmp_path / "other")
    (state / "log").symlink_to(tmp_path / "other")
    before = (tmp_path / "other").read_bytes()
    with pytest.raises(StorageError):
        truncate_file(state / "log", 3)
    with pytest.raises(StorageError):
        Wal(state / "log", end=log.end, size_bytes=log.valid_bytes)
    assert (tmp_path / "other").read_bytes() == before


def test_a_lock_that_is_a_link_is_refused(state, victim):
    (state / "lock").symlink_to(victim.with_name("new"))
    with pytest.raises(UserError, match="cannot be used"):
        lock_folder(state)
    assert not victim.with_name("new").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused_with_what_to_do(state, mode):
    state.chmod(mode)
    with pytest.raises(UserError, match="others may write") as refused:
        Store.open(state, durability="exchange")
    assert refused.value.file == str(state)
    assert refused.value.value == f"mode {mode:o}"
    assert f"chmod 700 {state}" in refused.value.allowed
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_a_folder_that_only_its_owner_can_write_to_is_taken(state, mode):
    state.chmod(mode)
    Store.open(state, durability="exchange").close()


def test_a_folder_of_another_user_is_refused_and_one_of_root_is_not(state, monkeypatch):
    there = state.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: there + 1)
    if there:
        with pytest.raises(UserError, match="belongs to another user"):
            lock_folder(state)
    else:
        os.close(lock_folder(state))
        os.chown(state, 12345, -1)
        with pytest.raises(UserError, match="belongs to another user") as refused:
            lock_folder(state)
        assert refused.value.value == "user 12345"


def test_a_new_folder_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        Store.open(tmp_path / "new" / "state", durability="exchange").close()
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "state").stat().st_mode & 0o777 == 0o700
