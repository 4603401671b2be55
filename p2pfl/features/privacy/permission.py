"""A person's permission for a node's privacy budget: a file next to its key, which the node removes after use.

It is outside the state folder, so that a wiped node does not restart a budget that others have seen spent.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pfl.config.sections import PRIVACY
from p2pfl.config.tables import Mistakes, choice, matching, parse_document, read_table, require
from p2pfl.errors import StorageError, UserError
from p2pfl.foreign import refuse_special
from p2pfl.learn.privacy.ledger import Promise
from p2pfl.storage.disk import replace_file, storage_errors, sync_folder

SUFFIX = ".budget"
WORD_BYTES = 16
MOST_BYTES = 1024
ALLOWED = "what `p2pfl privacy begin` writes; remove the file"
BEGINS, RAISES = "begins", "goes on"
_TEXT = """\
# Permission for this node to reveal this much about its data. The node removes this file at its next start.
word = "{word}"
budget = "{budget}"
"""


_KEYS = {
    "word": matching(re.compile(f"[0-9a-f]{{{2 * WORD_BYTES}}}"), f"{2 * WORD_BYTES} hexadecimal digits"),
    "budget": choice(BEGINS, RAISES),
    "after": matching(re.compile("[0-9a-z]{0,64}"), "the previous word, or nothing"),
    "planned": matching(re.compile("[ -~]{0,200}"), "rounds, steps and batches in words"),
    **{name: PRIVACY[name] for name in Promise._fields},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A permission. `name` is random: no two are the same. With `raises` it continues the current ledger; otherwise a
    new one begins.

    `after` is the ledger's latest permission at that time, empty if there was none. It reveals an old copy of a
    permission, which belongs to an earlier ledger. It is None if an earlier version wrote the permission.
    """

    name: str
    promise: Promise
    raises: bool = False
    after: str | None = None
    planned: str = ""
    """The settings that determine epsilon for a fixed noise, because epsilon is unknown until a node has read its
    rows.
    """


def beside(key_file: Path, suffix: str) -> Path:
    """Return the path of a file that belongs to a key. Two keys in the same folder never share a file."""
    return key_file.with_name(key_file.name.removesuffix(".key") + suffix)


def permission_file(key_file: Path) -> Path:
    """Return the path of the permission for the node with this key."""
    return beside(key_file, SUFFIX)


def give_permission(
    key_file: Path, promise: Promise, *, raises: bool = False, after: str | None = None, planned: str = ""
) -> None:
    """Permit, once, what the file promises now. `after` is the latest permission in the current ledger. The permission
    is durable on return.

    It belongs to the owner of the key, so that root may give it for a node that runs as another user. Raises
    StorageError: writing fails.
    """
    path = permission_file(key_file)
    text = _TEXT.format(word=secrets.token_hex(WORD_BYTES), budget=RAISES if raises else BEGINS)
    text += "" if after is None else f'after = "{after}"\n'
    told = {name: value for name, value in promise._asdict().items() if value is not None}
    told |= {"planned": planned} if promise.epsilon is None else {}
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())
    replace_file(path, [text.encode()])
    if os.geteuid() == 0 and key_file.exists():
        owner = key_file.stat()
        with storage_errors(path):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def read_permission(key_file: Path) -> Permission | None:
    """Return the pending permission, or None if there is none. Raises UserError: the file is not a permission."""
    path = permission_file(key_file)
    refuse_special(path)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = parse_document(file.read(MOST_BYTES).decode(), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path, key="word", allowed=ALLOWED) from None
    except (UnicodeDecodeError, UserError):
        found = {}
    return _permission_of(found, path)


def _permission_of(document: dict[str, Any], path: Path) -> Permission:
    mistakes = Mistakes(path)
    told = read_table(document, "", _KEYS, mistakes)
    if "word" not in told:
        raise UserError("has no word", file=path, key="word", allowed=ALLOWED)
    if document.keys() == {"word"}:
        text = "names no figures: an earlier version wrote it, so the permitted amount is unknown"
        allowed = "give permission again with `p2pfl privacy begin`, adding --again if it asks for that"
        raise UserError(text, file=path, key="epsilon", allowed=allowed)
    require(document, "", ("budget", "unit", "delta"), _KEYS, mistakes)
    for mistake in mistakes.found:
        raise mistake
    promise = Promise(told["unit"], told.get("epsilon"), told["delta"], told.get("noise"))
    raises, after, planned = told["budget"] == RAISES, told.get("after"), told.get("planned", "")
    return Permission(name=told["word"], promise=promise, raises=raises, after=after, planned=planned)


def discard_permission(key_file: Path) -> None:
    """Remove the permission durably. Raises UserError: it cannot be removed."""
    path = permission_file(key_file)
    try:
        with storage_errors(path):
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
    except StorageError as error:
        text = f"the node cannot remove it, so it would count again: {error}"
        raise UserError(text, file=path, key="word", allowed="a folder that the node may write to") from None
