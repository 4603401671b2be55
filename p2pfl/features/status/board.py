"""A board's health, as Linux tells it under /sys: wear of its card, a file system that no longer takes writes, supply
voltage and heat. What a machine does not tell raises nothing.

- An eMMC estimates the life that it has used in steps of 10%, 0x0b if more than all, and says if its reserve runs out
  (JEDEC JESD84-B51, EXT_CSD 267 to 269; in sysfs since Linux 4.11, as read when the board started). SD cards say
  nothing: one that fails becomes read-only (ext4's `errors=remount-ro`).
- A Raspberry Pi's firmware has a word of bits: 0 under-voltage, 1 frequency capped, 2 throttled, 3 soft temperature
  limit; 16 to 19, the same since the start (raspberrypi.com, `vcgencmd get_throttled`). Mainline kernels have an alarm
  for the first alone (Documentation/hwmon/raspberrypi-hwmon.rst).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from p2pfl.reporting.alarms import AlarmText

SYS = Path("/sys")
WORN = 0x0A
"""The estimate from which on a card is worn: 90% of its life."""
NEAR_END = 2
"""The state of the reserve of blocks from which on a card is worn: 80% are used."""
HOT_C = 80.0
"""Where a Raspberry Pi begins to slow down, in degrees Celsius."""
LOW, SLOW = 0b0001, 0b1110
EVER, EVER_AFTER = 0b1111 << 16, 16

BOARD_ALARMS: Mapping[str, AlarmText] = {
    "card-worn": AlarmText(
        means="The board's eMMC has used 90% of the life that it was made for, or most of its spare blocks.",
        does="Keeps writing.",
        advice="Back up node.key, and replace the memory soon. `disk` in `p2pfl check` says what would write less.",
    ),
    "card-read-only": AlarmText(
        means="The file system of state_dir has become read-only: the system does that when a card fails.",
        does="Keeps training, and tries to write; what it has learned since is in memory alone.",
        advice="Read `journalctl -k`, replace the card, and restore node.key from its backup.",
    ),
    "under-voltage": AlarmText(
        means="The supply voltage is or was too low: the board slows down, and a write may fail.",
        does="Goes on.",
        advice="Use the board's own power supply and a short cable: this is what ruins cards.",
    ),
    "board-hot": AlarmText(
        means="The processor is so hot, or short of power, that the board slows it down.",
        does="Goes on, with longer rounds.",
        advice="Give the board a heat sink or a fan; or set fewer `threads`, or `hours`, in node.toml.",
    ),
}


class Board:
    """The board that has the folder `state`; `sysfs` is where /sys is."""

    def __init__(self, state: Path, sysfs: Path = SYS) -> None:
        self._state, self._sys = state, sysfs
        self._before = EVER
        """The bits of what was before the last look: what was before the node is not news."""

    def look(self) -> dict[str, str]:
        """Return the text for each kind of alarm that holds now or has since the last look."""
        with suppress(OSError, OverflowError):  # a driver fails, or tells nonsense
            return dict((*self._card(), *self._power()))
        return {}

    def _card(self) -> Iterator[tuple[str, str]]:
        for device in sorted(self._sys.glob("block/mmcblk*/device")):
            used, reserve = _numbers(device / "life_time"), _numbers(device / "pre_eol_info")
            if max(used, default=0) >= WORN or max(reserve, default=0) >= NEAR_END:
                yield "card-worn", f"{device.parent.name}: life_time {used}, pre_eol_info {reserve}"
        with suppress(OSError):
            if sys.platform != "win32" and os.statvfs(self._state).f_flag & os.ST_RDONLY:
                yield "card-read-only", f"the file system of {self._state} is read-only"

    def _power(self) -> Iterator[tuple[str, str]]:
        firmware = self._sys.glob("devices/platform/soc*/*firmware/get_throttled")
        bits = max((number for file in firmware for number in _numbers(file)), default=0)
        news = (bits & ~self._before & EVER) >> EVER_AFTER
        self._before = bits
        alarms = self._named("hwmon/hwmon*", "name", "rpi_volt")
        if (bits | news) & LOW or any(1 in _numbers(place / "in0_lcrit_alarm") for place in alarms):
            yield "under-voltage", f"the supply voltage {'is' if bits & LOW or not news else 'was'} too low"
        zones = self._named("thermal/thermal_zone*", "type", "cpu-thermal")
        heat_c = max((number / 1000 for zone in zones for number in _numbers(zone / "temp", 10)), default=0.0)
        if (bits | news) & SLOW or heat_c >= HOT_C:
            yield "board-hot", f"{heat_c:.0f} degrees Celsius, get_throttled {bits:#x}"

    def _named(self, places: str, file: str, name: str) -> list[Path]:
        return [place for place in self._sys.glob(f"class/{places}") if _text(place / file).strip() == name]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):  # there is none, or its driver fails
        return ""


def _numbers(file: Path, base: int = 16) -> list[int]:
    with suppress(ValueError):
        return [int(word, base) for word in _text(file).split()]
    return []
