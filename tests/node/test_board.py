"""What a board says of its card, its supply and its heat becomes alarms, and what a machine does not say none."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from p2pfl.features.status import Board

LIFE, RESERVE = (f"block/mmcblk0/device/{name}" for name in ("life_time", "pre_eol_info"))
FIRMWARE = "devices/platform/soc/soc:firmware/get_throttled"
PI5 = "devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"
KERNEL, ZONES = "class/hwmon/hwmon", "class/thermal/thermal_zone"


@pytest.fixture
def board(tmp_path):
    board = Board(tmp_path, tmp_path / "sys")

    def write(name, text):
        file = tmp_path / "sys" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return SimpleNamespace(look=board.look, write=write)


def card(life_time, reserve="0x01"):
    return {LIFE: life_time, RESERVE: reserve}


def volts(low, name, low_elsewhere):
    other = {f"{KERNEL}0/name": "cpu_thermal", f"{KERNEL}0/in0_lcrit_alarm": low_elsewhere}
    return other | {f"{KERNEL}1/name": name, f"{KERNEL}1/in0_lcrit_alarm": low}


def heat(milli_c):
    other = {f"{ZONES}1/type": "x86_pkg_temp", f"{ZONES}1/temp": "99000"}
    return other | {f"{ZONES}0/type": "cpu-thermal", f"{ZONES}0/temp": milli_c}


CASES = {
    "a machine that says nothing": ({}, []),
    **{f"unreadable {text!r}": (card(text, text) | {FIRMWARE: text} | heat(text), []) for text in ("", "0xZZ", "\xff")},
    "a new card": (card("0x00 0x00", "0x00"), []),
    "a card at 8 tenths of its life": (card("0x01 0x09"), []),
    "a card at 9 tenths of its life": (card("0x01 0x0a"), ["card-worn"]),
    "a card beyond its life": (card("0x0B 0x01"), ["card-worn"]),
    "a card whose reserve runs out": (card("0x01 0x01", "0x02"), ["card-worn"]),
    "a voltage that the kernel calls low": (volts("1", "rpi_volt", "0"), ["under-voltage"]),
    "a low voltage elsewhere": (volts("0", "rpi_volt", "1"), []),
    "79.9 degrees": (heat("79900"), []),
    "80.1 degrees": (heat("80100"), ["board-hot"]),
}
for firmware in (FIRMWARE, PI5):
    bits = {"0": [], "1": ["under-voltage"], "0x50005": ["under-voltage", "board-hot"], "8": ["board-hot"], "f0000": []}
    CASES |= {f"{firmware}: {text}": ({firmware: text}, kinds) for text, kinds in bits.items()}


@pytest.mark.parametrize(("files", "kinds"), CASES.values(), ids=CASES)
def test_what_holds_now_is_an_alarm_and_what_was_before_the_node_or_is_not_said_is_none(board, files, kinds):
    for name, text in files.items():
        board.write(name, f"{text}\n")
    assert list(board.look()) == kinds


def test_a_driver_that_fails_or_tells_nonsense_does_not_end_the_node(board, monkeypatch):
    for name, text in heat("9" * 4000).items():
        board.write(name, text)
    assert board.look() == {}

    def fail(*_):
        raise OSError(errno.EIO, "the bus is gone")

    monkeypatch.setattr(os, "scandir", fail)
    assert board.look() == {}


def test_a_file_system_that_was_remounted_read_only_is_an_alarm(board, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    assert board.look().keys() == {"card-read-only"}


def test_what_came_and_went_between_two_looks_is_an_alarm_once(board):
    for bits, alarms in (("0", {}), ("50000", {"under-voltage": "the supply voltage was too low"}), ("50000", {})):
        board.write(FIRMWARE, bits)
        seen = board.look()
        seen.pop("board-hot", None)
        assert seen == alarms
