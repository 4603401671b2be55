"""Keeps the C heap from being given back and taken again with every chunk.

Sockets and sealing allocate and free blocks of 256 KiB all the time. The GNU C library maps blocks above a threshold
afresh, and trims its heap above another one, so that each block costs page faults, zeroing included: a third of the CPU
time of a large message. It raises both itself, to one and two times the size, when such a block is freed.
"""

from __future__ import annotations

HEAP_BYTES = 8 << 20


def keep_heap() -> None:
    """Blocks of up to 8 MiB stay in the heap from now on, of which 16 MiB may lie idle. This one is never touched."""
    bytes(HEAP_BYTES)
