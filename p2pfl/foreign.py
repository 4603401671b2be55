"""Data from other machines: opened without waiting, read up to a bound, decoded, and shown in printable text."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.errors import UserError
from p2pfl.system import NO_WAIT

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of decoders of JSON and msgpack: other content, text that is not UTF-8, endless nesting."""


def printable(text: str, keep: str = "") -> str:
    """Return the text without signs that would steer a terminal, in one line; the signs in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else "?" for sign in text)


def read_json(content: bytes) -> Any:
    """Decode JSON, with printable texts and numbers of at most 64 bits. Raises one of UNREADABLE."""
    return _plain(msgspec.json.decode(content))


def _plain(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {printable(key): _plain(each) for key, each in value.items()}
        case int() if value.bit_length() > 64:
            raise ValueError("a number of more than 64 bits")
    return value


def fitting(values: Mapping[str, Any], form: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of `form` that are there and have its types: another version may lack or change some."""
    fields: dict[str, Any] = {}
    for each in msgspec.structs.fields(form):
        if each.name in values:
            with suppress(*UNREADABLE):
                msgspec.convert(values[each.name], each.type)
                fields[each.name] = values[each.name]
    return fields


def refuse_special(path: Path) -> None:
    """Refuse a path on which a reader could wait for ever: a named pipe, a socket, a device. A missing path passes.

    Raises UserError: it is one of these.
    """
    with suppress(OSError, ValueError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UserError("is a pipe, a socket or a device", file=path, allowed="a regular file")


def read_file(path: Path, most_bytes: int | None = None, allowed: str | None = None) -> bytes:
    """Return the content of a file that may come from others. Raises UserError: it cannot be read, or is too large."""
    try:
        refuse_special(path)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | NO_WAIT)) as file:
            raw = file.read(-1 if most_bytes is None else most_bytes + 1)
    except (OSError, ValueError) as error:  # a ValueError: a path that no system knows
        raise UserError(f"cannot be read: {getattr(error, 'strerror', error)}", file=path, allowed=allowed) from None
    if most_bytes is not None and len(raw) > most_bytes:
        raise UserError("is too large to be read", file=path, allowed=f"at most {most_bytes:,} bytes")
    return raw
