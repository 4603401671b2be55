"""The report file of an audit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click

from p2pfl.errors import StorageError


def write_report(found: Mapping[str, Any], path: Path) -> None:
    """Write the whole file or nothing, as JSON. Raises StorageError if it cannot be written."""
    from topologies.files import replace  # noqa: PLC0415 - `--help` stays instant

    content = json.dumps(found, indent=2).encode()

    def write(file: BinaryIO) -> None:
        file.write(content)

    try:
        replace(path, write)
    except OSError as error:
        raise StorageError(f"{path} could not be written: {error.strerror}") from error
    click.echo(f"report: {path}", err=True)
