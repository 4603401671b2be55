"""A person's word that a node's privacy budget begins: a file beside its key, which the node takes away for good.

It stands outside the state folder, so that a wiped node does not begin by itself what others have seen spent.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from p2pfl.errors import StorageError, UserError
from p2pfl.storage.disk import refusal_of, replace_file, sync_folder

SUFFIX = ".budget"
WORD_BYTES = 16
MOST_BYTES = 1024
ALLOWED = "what `p2pfl privacy begin` writes; remove the file"
_TEXT = """\
# A person has said that the privacy budget of this node begins. At its next start the node takes this file away.
word = "{word}"
"""
_WORD = re.compile(rf'^word = "([0-9a-f]{{{2 * WORD_BYTES}}})"$', re.MULTILINE)


def word_file(key_file: Path) -> Path:
    """Where a word for the node with that key stands."""
    return key_file.with_suffix(SUFFIX)


def give_word(key_file: Path) -> None:
    """Say once that the budget of the node with that key begins. Durable when this returns.

    Whoever owns the key owns the word: root may give it for a node that runs as another user. Raises StorageError: the
    disk refuses.
    """
    path = word_file(key_file)
    replace_file(path, [_TEXT.format(word=secrets.token_hex(WORD_BYTES)).encode()])
    if os.geteuid() == 0 and key_file.exists():
        owner = key_file.stat()
        with refusal_of(path):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def take_word(key_file: Path) -> str | None:
    """The word, which nobody finds any more once this returns; None: nobody has given one.

    Raises UserError: it cannot be taken away, and would count again; or the file is none of ours.
    """
    path = word_file(key_file)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = _WORD.search(file.read(MOST_BYTES).decode("utf-8", errors="replace"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path, key="word", allowed=ALLOWED) from None
    if found is None:
        raise UserError("holds no word", file=path, key="word", allowed=ALLOWED)
    try:
        with refusal_of(path):
            path.unlink()
            sync_folder(path.parent)
    except StorageError as error:
        text = f"the node cannot take it away, and so it would count again: {error}"
        raise UserError(text, file=path, key="word", allowed="a folder that the node may write to") from None
    return found[1]
