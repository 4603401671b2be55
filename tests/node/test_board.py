"""What a board says of its card, its supply and its heat becomes alarms, and what a machine does not say none."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from p2pfl.features.status import Board

THROTTLED = "devices/platform/soc/soc:firmware/get_throttled"
PI5 = "devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"


@pytest.fixture
def board(tmp_path):
    (tmp_path / "sys").mkdir()
    board = Board(tmp_path, tmp_path / "sys")

    def write(name, text):
        file = tmp_path / "sys" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return SimpleNamespace(look=board.look, write=write)


def card(board, life_time, pre_eol_info="0x01\n"):
    board.write("block/mmcblk0/device/life_time", life_time)
    board.write("block/mmcblk0/device/pre_eol_info", pre_eol_info)


def test_a_machine_that_says_nothing_has_no_alarm(board):
    assert board.look() == {}


@pytest.mark.parametrize("text", ["", "0xZZ\n", "\xff\xfe", "-\n"])
def test_what_cannot_be_read_is_no_alarm(board, text):
    card(board, text, text)
    board.write(THROTTLED, text)
    board.write("class/thermal/thermal_zone0/type", "cpu-thermal\n")
    board.write("class/thermal/thermal_zone0/temp", text)
    assert board.look() == {}


@pytest.mark.parametrize(
    ("life_time", "reserve", "worn"),
    [
        ("0x00 0x00\n", "0x00\n", False),
        ("0x01 0x09\n", "0x01\n", False),
        ("0x01 0x0a\n", "0x01\n", True),
        ("0x0B 0x01\n", "0x01\n", True),
        ("0x01 0x01\n", "0x02\n", True),
    ],
)
def test_a_card_is_worn_at_nine_tenths_of_its_life_or_when_its_reserve_runs_out(board, life_time, reserve, worn):
    card(board, life_time, reserve)
    assert board.look().keys() == ({"card-worn"} if worn else set())


def test_a_file_system_that_was_remounted_read_only_is_an_alarm(board, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    assert board.look().keys() == {"card-read-only"}
    monkeypatch.undo()
    assert board.look() == {}


@pytest.mark.parametrize("file", [THROTTLED, PI5])
@pytest.mark.parametrize(
    ("bits", "kinds"),
    [
        ("0\n", set()),
        ("1\n", {"under-voltage"}),
        ("0x50005\n", {"under-voltage", "board-hot"}),
        ("8\n", {"board-hot"}),
        ("f0000\n", set()),
    ],
)
def test_the_firmwares_bits_of_now_are_alarms_and_those_of_before_the_node_are_not(board, file, bits, kinds):
    board.write(file, bits)
    assert board.look().keys() == kinds


def test_what_came_and_went_between_two_looks_is_an_alarm_once(board):
    board.write(THROTTLED, "0\n")
    board.look()
    board.write(THROTTLED, "50000\n")
    assert board.look()["under-voltage"] == "the supply voltage was too low"
    assert board.look() == {}


def test_a_kernel_without_the_firmwares_word_has_an_alarm_of_its_own(board):
    for place, name in (("hwmon0", "cpu_thermal"), ("hwmon1", "rpi_volt")):
        board.write(f"class/hwmon/{place}/name", f"{name}\n")
        board.write(f"class/hwmon/{place}/in0_lcrit_alarm", "0\n")
    assert board.look() == {}
    board.write("class/hwmon/hwmon0/in0_lcrit_alarm", "1\n")
    assert board.look() == {}
    board.write("class/hwmon/hwmon1/in0_lcrit_alarm", "1\n")
    assert board.look().keys() == {"under-voltage"}


def test_a_processor_at_80_degrees_is_hot_and_other_sensors_are_not_asked(board):
    for zone, kind in enumerate(("cpu-thermal", "x86_pkg_temp")):
        board.write(f"class/thermal/thermal_zone{zone}/type", f"{kind}\n")
        board.write(f"class/thermal/thermal_zone{zone}/temp", "99000\n" if zone else "79900\n")
    assert board.look() == {}
    board.write("class/thermal/thermal_zone0/temp", "80100\n")
    assert board.look()["board-hot"].startswith("80 degrees")
