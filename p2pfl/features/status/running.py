"""Find running nodes and query them: by the address of a status page, or by a federation's folder on this machine.

A node keeps a file with its addresses next to its state, so that a reader of the folder need not know its ports. The
file is removed when the node ends cleanly. After a crash it stays, but its process no longer exists. If another process
has the same number, whatever answers at the address belongs to another node, or nothing answers.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec
from msgspec import Struct

from p2pfl.errors import StorageError, UserError
from p2pfl.foreign import UNREADABLE, fitting, read_file, read_json
from p2pfl.limits import MOST_STATUS_BYTES
from p2pfl.system import is_alive

if TYPE_CHECKING:
    from p2pfl.config.model import NodeConfig

log = logging.getLogger("p2pfl")

FILE_NAME = "address.json"
TOKEN_NAME = "page-token"  # noqa: S105 - the name of a file
TOKEN_BYTES = 18
MOST_FILE_BYTES = 4096
LOCAL = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - nothing is bound here
TIMEOUT_S = 5.0
ALLOWED = "http://HOST:PORT or HOST:PORT, as the node's log says with `p2pfl run -v`; or the folder of a federation"
DIED = "died: its process is gone and did not end cleanly"
NOT_HERE = "not running here"
REPLACED = "not here: the key in its folder is no longer the member's"
NOT_A_NODE = "not the status of a node"
STATUS, FEDERATION = "/status", "/federation"
NO_TOKEN = "needs the token: give the whole link from the node's log, in quotes"  # noqa: S105 - a reason


class NodeAddresses(msgspec.Struct, kw_only=True, frozen=True):
    """Addresses as host:port, with the ports that are actually bound."""

    federation: str
    node: str
    pid: int
    listen: str
    status: str | None
    """The address of `GET /status`; null if there is no page."""

    @property
    def is_running(self) -> bool:
        """Return True if its process exists, as far as this user can tell."""
        return is_alive(self.pid)


def address_at(listen: str, port: int) -> str:
    """Return `listen` with the bound port, and with a host that can be dialed from this machine."""
    host = listen.rpartition(":")[0]
    return f"{LOCAL.get(host, host)}:{port}"


@contextmanager
def keep_file(node: NodeConfig, federation: str, port: int, status: str | None) -> Iterator[None]:
    """Keep the file in place while the block runs. If it cannot be written, run without it."""
    from p2pfl.storage.disk import replace_file  # noqa: PLC0415 - `--help` stays instant

    listen = address_at(node.listen, port)
    there = NodeAddresses(federation=federation, node=node.name, pid=os.getpid(), listen=listen, status=status)
    try:
        replace_file(node.state_dir / FILE_NAME, [msgspec.json.encode(there)])
    except StorageError as error:
        log.warning("%s", error)
    try:
        yield
    finally:
        with suppress(OSError):
            (node.state_dir / FILE_NAME).unlink()


def read_addresses(folder: Path) -> NodeAddresses | None:
    """Read the file in a folder; return None if there is none, or if it cannot be read."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return msgspec.json.decode(file.read(MOST_FILE_BYTES), type=NodeAddresses)
    except (OSError, *UNREADABLE):
        return None


def find_running(folder: Path) -> NodeAddresses | None:
    """Find the node that runs in a folder; return None if none runs there, or if we may not read it."""
    there = read_addresses(folder)
    return there if there is not None and there.is_running else None


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def page_token(folder: Path) -> str:
    """Return the token for the page, which is created at the first start and then stored.

    If it cannot be stored, it is valid until the node ends.
    """
    from p2pfl.storage.disk import replace_file  # noqa: PLC0415 - `--help` stays instant

    token = read_token(folder)
    if token is None:
        token = new_token()
        with suppress(StorageError):
            replace_file(folder / TOKEN_NAME, [token.encode()])
    return token


def read_token(folder: Path) -> str | None:
    try:
        text = (folder / TOKEN_NAME).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return None
    return text if 16 <= len(text) <= 128 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAddress:
    """The address of a node's pages. `token` is the part of its link after the `#`."""

    netloc: str
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMember:
    """A member whose folder is on this machine. Without a `place`, `reason` says why it cannot be queried."""

    name: str
    place: PageAddress | None = None
    reason: str = ""
    result: dict[str, Any] | None = None
    """The result that it left behind, if it has ended."""


def is_folder(target: str) -> bool:
    """Return True for a folder, or for a federation file in it. An address is never mistaken for either."""
    return (bool(target) and Path(target).is_dir()) or (target.endswith(".toml") and Path(target).is_file())


def place_of(url: str) -> PageAddress:
    """Parse the address of a node's page. Raises UserError: it is not such an address."""
    text = url if "//" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "http" and parts.hostname and parts.port
    except ValueError:
        usable = False
    if not usable or parts.path.rstrip("/") not in ("", STATUS, FEDERATION) or parts.query or parts.username:
        raise UserError("not the address of a node's status page", key="URL", value=url, allowed=ALLOWED)
    if not parts.fragment.isprintable() or not parts.fragment.isascii():
        raise UserError("there is no token after #", key="URL", value=url, allowed=ALLOWED)
    return PageAddress(netloc=parts.netloc, token=parts.fragment)


def read_folder(target: str) -> tuple[str, list[LocalMember]]:
    """Return the name of the federation in a folder, and its members whose state is on this machine.

    Raises UserError: there is a mistake in the federation or in a node file.
    """
    from p2pfl.config.load import load_config, load_node, node_file  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.node.folders import newest_here  # noqa: PLC0415 - `--help` stays instant

    federation = newest_here(load_config(Path(target)))
    members = [member for member in federation.members if not getattr(member, "retired", False)]
    nodes = [(member, load_node(node_file(federation, member.name), federation, member.name)) for member in members]
    return federation.name, [
        LocalMember(name=member.name, reason=REPLACED)
        if _has_other_key(node.key_file, member.key)
        else _find_local_member(member.name, node.state_dir)
        for member, node in nodes
    ]


def _has_other_key(file: Path, key: bytes) -> bool:
    """Return True if the key in that folder is no longer the key of the member with that name."""
    from p2pfl.crypto.identity import Identity  # noqa: PLC0415 - `--help` stays instant

    try:
        return Identity.load(file).public != key
    except UserError:  # the key is somewhere else, or we may not read it
        return False


def _find_local_member(name: str, state: Path) -> LocalMember:
    """Find the address of a member's page from its state folder, or why it has none."""
    there = read_addresses(state)
    if there is None:
        return LocalMember(name=name, reason=NOT_HERE, result=_result(state))
    if not there.is_running:
        return LocalMember(name=name, reason=DIED)
    if there.status is None:
        return LocalMember(name=name, reason='runs without a page (status_listen = "none")')
    return LocalMember(name=name, place=PageAddress(netloc=there.status, token=read_token(state) or ""))


def _result(state: Path) -> dict[str, Any] | None:
    """Return the `result.json` of a node that has ended, with its phase, or None if there is no readable one."""
    from p2pfl.node.application import RESULT_FILE  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.reporting.status import NodeResult  # noqa: PLC0415 - `--help` stays instant

    try:
        result = _fields_of(read_file(state / RESULT_FILE, MOST_STATUS_BYTES), NodeResult)
    except UserError:
        return None
    if not frozenset({"node", "rounds"}) <= result.keys():
        return None
    return result | {"phase": "finished" if result.get("finished") else "stopped"}


def scores_of(said: dict[str, Any]) -> dict[str, Any]:
    """Return a node's scores on the common test set by name, the main one of its task first."""
    known = {"accuracy": said.get("accuracy"), "loss": said.get("test_loss"), **(said.get("metrics") or {})}
    names = [measure["name"] for measure in said.get("measures") or []]
    ordered = {name: known.get(name) for name in names} or known
    return {name: value for name, value in ordered.items() if value is not None}


def _fields_of(content: bytes, form: type[Struct]) -> dict[str, Any]:
    """Return the fields of a JSON object that are those of `form`, empty if it is none."""
    try:
        fields = read_json(content)
    except UNREADABLE:
        return {}
    return fitting(fields, form) if isinstance(fields, dict) else {}


def ask(place: PageAddress, path: str, form: type[Struct], *needed: str) -> dict[str, Any] | str:
    """Return the answer's fields of `form` if the `needed` ones are there; otherwise the reason why there is none."""
    headers = {"Authorization": f"Bearer {place.token}"} if place.token else {}
    request = Request(f"http://{place.netloc}{path}", headers=headers)
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=TIMEOUT_S) as answer:
            said = _fields_of(answer.read(MOST_STATUS_BYTES), form)
    except HTTPError as error:
        error.close()
        return NO_TOKEN if error.code == 401 else f"{NOT_A_NODE}: HTTP {error.code}"
    except URLError as error:
        return _reason(error.reason)
    except OSError as error:
        return _reason(error)
    except (HTTPException, ValueError):
        return NOT_A_NODE
    return said if said.keys() >= {*needed} else NOT_A_NODE


def ask_status(place: PageAddress) -> dict[str, Any] | str:
    from p2pfl.reporting.status import NodeStatus  # noqa: PLC0415 - `--help` stays instant

    return ask(place, STATUS, NodeStatus, "node", "phase", "rounds")


def ask_federation(place: PageAddress) -> dict[str, Any] | str:
    from p2pfl.reporting.vitals import FederationStatus  # noqa: PLC0415 - `--help` stays instant

    return ask(place, FEDERATION, FederationStatus, "federation", "node", "now", "members", "alarms", "events")


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {TIMEOUT_S:g} s"
    return (isinstance(error, OSError) and error.strerror) or str(error)
