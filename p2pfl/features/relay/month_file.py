"""The volume that a relay has passed on this month, kept in a file so that a restart does not begin it anew.

The months are those of UTC. What is wrong with the file or the disk is a warning: a relay goes on without.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from p2pfl.errors import StorageError, UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl.relay")

FILE_NAME = "month.json"
MOST_BYTES = 1 << 20
WRITE_S = 60.0
"""How often the file is written while the volume grows: what a crash forgets."""


class _Kept(Struct, frozen=True):
    month: str
    bytes: dict[str, Annotated[int, Meta(ge=0, lt=2**62)]]


def month_of(now_s: float) -> int:
    """Return the number of the month, which grows by one from each to the next."""
    date = time.gmtime(now_s)
    return 12 * date.tm_year + date.tm_mon


def month_name(now_s: float) -> str:
    return time.strftime("%Y-%m", time.gmtime(now_s))


class MonthFile:
    """The file in a folder, which is made if there is none. Raises UserError: it cannot be made."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._written: Mapping[str, int] = {}
        self._refused = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            text = f"cannot be made: {error.strerror}"
            raise UserError(text, key="--state", value=str(folder), allowed="a folder in which to write") from None

    def read(self, now_s: float) -> Mapping[str, int]:
        """Return the bytes of each federation in this month; empty, with a warning, if the file cannot be used."""
        try:
            with self._path.open("rb") as file:
                kept = msgspec.json.decode(file.read(MOST_BYTES), type=_Kept)
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as error:
            text = "%s cannot be read, so the month's volume begins at 0: %s; it is written anew"
            log.warning(text, self._path, error)
            return {}
        return kept.bytes if kept.month == month_name(now_s) else {}

    def write(self, volumes: Mapping[str, int], now_s: float) -> None:
        """Write the volumes atomically, if they have changed. A disk that refuses is asked again later."""
        if volumes == self._written:
            return
        content = msgspec.json.encode(_Kept(month_name(now_s), dict(volumes)))
        try:
            replace_file(self._path, [content])
        except StorageError as error:
            if not self._refused:
                log.warning("the month's volume is not on disk, and a restart would begin it anew: %s", error)
            self._refused = True
        else:
            self._written, self._refused = dict(volumes), False

    async def keep(self, volumes: Callable[[], Mapping[str, int]], clock: Callable[[], float]) -> None:
        """Write from time to time, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_S)
            self.write(volumes(), clock())
