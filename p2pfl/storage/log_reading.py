"""The write-ahead log, reading side: every whole record from the beginning, and what stands after the last one.

A crash may leave a torn tail: an incomplete record, or zeros where the file grew before its content came. That is
no damage, since nothing in it was ever durable. A bad record with further data after it is damage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.errors import StorageError
from p2pfl.storage import chain
from p2pfl.storage.state import Record

_decoder = msgspec.msgpack.Decoder(tuple[str, dict[str, Any], list[int]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """`previous` is what the chain was before this log, None if even the log's head is not whole.

    `end` is the chain after the last whole record, at byte `valid_bytes`; `surplus_bytes` stand after it.
    """

    previous: bytes | None
    records: list[Record]
    end: bytes
    valid_bytes: int
    surplus_bytes: int
    damaged: bool


def read_log(path: Path) -> Log:
    """Never raises for what stands in the file, only StorageError when it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    log = _read_head(content)
    if log.previous is None:
        return log
    position, link = log.valid_bytes, log.end
    while (found := _read_record(content, position, link)) is not None:
        record, link, position = found
        log.records.append(record)
    damaged = _damaged_at(content, position, link)
    return replace(log, end=link, valid_bytes=position, surplus_bytes=len(content) - position, damaged=damaged)


def _read_head(content: bytes) -> Log:
    if len(content) >= chain.LOG_HEAD.size:
        magic, previous, salt, check = chain.LOG_HEAD.unpack_from(content)
        if magic == chain.MAGIC and check == chain.log_check(previous, salt):
            end = chain.first_link(previous, salt)
            size = chain.LOG_HEAD.size
            return Log(previous=previous, records=[], end=end, valid_bytes=size, surplus_bytes=0, damaged=False)
    damaged = any(content[chain.LOG_HEAD.size :])
    return Log(previous=None, records=[], end=b"", valid_bytes=0, surplus_bytes=len(content), damaged=damaged)


def _read_record(content: bytes, position: int, link: bytes) -> tuple[Record, bytes, int] | None:
    """The record at a position, the chain and the position after it; None if it is not whole."""
    begin = position + chain.RECORD_HEAD.size
    if begin > len(content):
        return None
    length, check, digest = chain.RECORD_HEAD.unpack_from(content, position)
    if check != chain.length_check(link, length) or begin + length > len(content):
        return None
    body = memoryview(content)[begin : begin + length]
    if digest != chain.next_link(link, [body]):
        return None
    return _parse(body), digest, begin + length


def _damaged_at(content: bytes, position: int, link: bytes) -> bool:
    """Whether further data stand after the record at a position that is not whole."""
    begin = position + chain.RECORD_HEAD.size
    if begin >= len(content):
        return False
    length, check, _ = chain.RECORD_HEAD.unpack_from(content, position)
    end = begin + length if check == chain.length_check(link, length) else begin
    return any(content[end:])


def _parse(body: memoryview) -> Record:
    (size,) = chain.BODY_HEAD.unpack_from(body)
    begin = chain.BODY_HEAD.size + size
    kind, header, lengths = _decoder.decode(body[chain.BODY_HEAD.size : begin])
    blobs = []
    for length in lengths:
        blobs.append(body[begin : begin + length])
        begin += length
    return Record(kind=kind, header=header, blobs=blobs)
