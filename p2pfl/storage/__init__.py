"""Durable state: atomic snapshots in two generations and a write-ahead log between them.

This package handles names, arrays and bytes without knowing what they mean.
"""

from p2pfl.storage.disk import Flush, Record
from p2pfl.storage.store import Durability, Loaded, State, Store, peek

__all__ = ["Durability", "Flush", "Loaded", "Record", "State", "Store", "peek"]
