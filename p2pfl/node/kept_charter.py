"""The charter that a node has kept on this machine, read from outside: who the members are by the newest one here."""

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


def stored(folder: Path, federation: FederationConfig) -> Charter | None:
    """The charter that was kept in a state folder; None where there is none that can be used, which the log then says.

    A damaged one is not trusted, and no reason not to start: neighbors have it.
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
    """The federation by the newer one of two charters: beside the federation file, or kept in the state `folder`."""
    charter = stored(folder, federation) if federation.admin else None
    if charter is None or charter.edition <= (federation.edition or NONE):
        return federation
    return amended(federation, charter)


def newest_here(federation: FederationConfig) -> FederationConfig:
    """The federation by the newest charter on this machine: beside the federation file, or kept by a node that has its
    folder there. A node that was taken in later stands in its own alone. Raises UserError: a node file is wrong.
    """
    keys = sorted(federation.path.parent.glob(f"*/{KEY_FILE}")) if federation.admin else []
    for folder in [key.parent for key in keys]:
        federation = newest(federation, load_stranger(folder, folder.name).state_dir)
    return federation
