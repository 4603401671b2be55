"""The month's volume survives a restart of the relay; a damaged file or a full disk is a warning."""

from __future__ import annotations

import logging

import pytest

from p2pfl.errors import StorageError, UserError
from p2pfl.features.relay import month_file
from p2pfl.features.relay.admissions import ListedFederation
from p2pfl.features.relay.month_file import MonthFile, month_of
from p2pfl.features.relay.relay_process import _month_kept
from p2pfl.features.relay.switchboard import Switchboard

NOVEMBER, DECEMBER = 1_795_000_000.0, 1_797_000_000.0


@pytest.fixture
def file(tmp_path):
    return MonthFile(tmp_path / "relay")


def test_what_was_written_is_read_in_the_same_month_alone(file, tmp_path):
    file.write({"ward": 12, "yard": 7}, NOVEMBER)
    again = MonthFile(tmp_path / "relay")
    assert again.read(NOVEMBER) == {"ward": 12, "yard": 7}
    assert again.read(DECEMBER) == {}
    assert month_of(DECEMBER) == month_of(NOVEMBER) + 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"month": 3}', b'{"month": "2026-11", "bytes": {"ward": -1}}', b"\xff"]
)
def test_a_damaged_file_is_a_warning_and_is_written_anew(file, tmp_path, content, caplog):
    (tmp_path / "relay" / "month.json").write_bytes(content)
    assert file.read(NOVEMBER) == {}
    assert "begins at 0" in caplog.text
    file.write({"ward": 1}, NOVEMBER)
    assert file.read(NOVEMBER) == {"ward": 1}


def test_a_disk_that_refuses_is_said_once_and_asked_again(file, monkeypatch, caplog):
    real = month_file.replace_file

    def refuse(*_):
        raise StorageError("full")

    monkeypatch.setattr(month_file, "replace_file", refuse)
    for volume in (1, 2):
        file.write({"ward": volume}, NOVEMBER)
    assert caplog.text.count("is not on disk") == 1
    monkeypatch.setattr(month_file, "replace_file", real)
    file.write({"ward": 2}, NOVEMBER)
    assert file.read(NOVEMBER) == {"ward": 2}


def test_a_folder_that_cannot_be_made_is_the_user_s_mistake(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--state"):
        MonthFile(tmp_path / "file" / "relay")


async def test_a_relay_goes_on_counting_where_it_stopped(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("p2pfl.features.relay.relay_process.seconds_now", lambda: NOVEMBER)
    listed = [ListedFederation(name="ward", token=b"t" * 32)]
    for expected in (0, 5, 10):
        board = Switchboard(month_bytes=100)
        async with _month_kept(MonthFile(tmp_path), board, listed):
            assert board.tenant("ward").month_bytes == expected
            board.tenant("ward").month_bytes += 5
    assert not caplog.records
