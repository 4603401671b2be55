"""Durable state: atomic snapshots in two generations and a write-ahead log between them."""

from p2pfl.storage.peek import peek
from p2pfl.storage.state import Loaded, Record, State
from p2pfl.storage.store import Durability, Store

__all__ = ["Durability", "Loaded", "Record", "State", "Store", "peek"]
