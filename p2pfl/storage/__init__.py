"""Durable state: atomic snapshots in two generations and a write-ahead log between them.

It knows names, arrays and bytes, and nothing of their meaning.
"""

from p2pfl.storage.snapshot import State
from p2pfl.storage.store import Durability, Loaded, Store, peek
from p2pfl.storage.wal import Record

__all__ = ["Durability", "Loaded", "Record", "State", "Store", "peek"]
