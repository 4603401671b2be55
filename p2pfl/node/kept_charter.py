"""The charter that a node has kept on this machine, read from outside: the members by the newest one here."""

from __future__ import annotations

import logging
from pathlib import Path

from p2pfl.config.charter import MOST_BYTES, Charter, CharterError, amended, checked
from p2pfl.config.load import load_stranger
from p2pfl.config.model import Edition, FederationConfig
from p2pfl.node.folders import KEY_FILE

log = logging.getLogger("p2pfl")

FILE_NAME = "charter"
NONE = Edition(0, b"")


def load_kept(folder: Path, federation: FederationConfig) -> Charter | None:
    """Return the charter that was kept in a state folder; None if there is none that can be used, which the log then
    says.

    A damaged charter is not trusted, but does not prevent a start: neighbors have it.
    """
    file = folder / FILE_NAME
    try:
        with file.open("rb") as content:
            raw = content.read(MOST_BYTES + 1)
        return checked(raw, federation)
    except FileNotFoundError:
        return None
    except (OSError, CharterError) as error:
        log.warning("%s: the kept charter cannot be used: %s", file, error)
        return None


def newest(federation: FederationConfig, folder: Path) -> FederationConfig:
    """Return the federation by the newer of two charters: beside the federation file, or kept in the state `folder`."""
    charter = load_kept(folder, federation) if federation.admin else None
    if charter is None or charter.edition <= (federation.edition or NONE):
        return federation
    return amended(federation, charter)


def newest_here(federation: FederationConfig) -> FederationConfig:
    """Return the federation by the newest charter on this machine.

    It is beside the federation file, or kept by a node that has its folder there. A node that was added later stands in
    its own charter alone. Raises UserError: a node file is wrong.
    """
    keys = sorted(federation.path.parent.glob(f"*/{KEY_FILE}")) if federation.admin else []
    for folder in [key.parent for key in keys]:
        federation = newest(federation, load_stranger(folder, folder.name).state_dir)
    return federation
