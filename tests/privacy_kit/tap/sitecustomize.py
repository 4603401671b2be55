"""Keeps what this process opens of its sessions, as a curious member can. Python imports this file by its name.

It stands between the program and libsodium (PyNaCl). A record is `stream u64 | size u32 | chunk`, little-endian.
"""

import os
import struct
from pathlib import Path

import nacl.bindings as sodium

if "PRIVACY_KIT_TAP" in os.environ:
    OPENED = sodium.crypto_secretstream_xchacha20poly1305_pull
    FILE = Path(os.environ["PRIVACY_KIT_TAP"]).open("ab", buffering=0)  # noqa: SIM115 - for as long as the process

    def pull(state, sealed, ad=None):
        chunk, tag = OPENED(state, sealed, ad)
        FILE.write(struct.pack("<QI", id(state), len(chunk)) + chunk)
        return chunk, tag

    sodium.crypto_secretstream_xchacha20poly1305_pull = pull
