"""Files that a run writes at its end, looked at before it begins."""

from __future__ import annotations

import os
from pathlib import Path

from p2pfl.errors import UserError


def check_target(path: Path, *, key: str, coming: Path | None = None) -> None:
    """Check that a file can be written there, in place of an older one. `coming` is a folder that the run will create.

    Raises UserError: there is no such folder, it cannot be written to, or the path is a folder.
    """
    if path.is_dir():
        raise UserError("is a folder", key=key, value=str(path), allowed="a file")
    folder = path.absolute().parent
    if coming is not None and folder == coming.absolute():
        return
    if not folder.is_dir():
        raise UserError("no such folder", key=key, value=str(path.parent), allowed="a folder that exists")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("cannot be written to", key=key, value=str(folder), allowed="a folder of yours")
