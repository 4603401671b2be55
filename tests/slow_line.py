"""A cable between two network namespaces that delays each packet and loses some. It needs root, and no netem.

    slow_line.py NAMESPACE DEVICE OTHER_NAMESPACE OTHER_DEVICE DELAY_S LOSS

It makes a TAP device in each namespace, and passes what enters one out of the other, in order, DELAY_S later. It says
"ready" once both are there, and runs until it is killed; the devices go with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

NEW_NETWORK = 0x40000000
SET_DEVICE, TAP, WITHOUT_HEADER = 0x400454CA, 0x0002, 0x1000
FRAME_BYTES = 2048
MOST_WAITING = 4096
"""What is more is lost, as in a router."""


def open_tap(namespace: str, device: str) -> int:
    libc, place = ctypes.CDLL(None, use_errno=True), os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(place, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), f"no way into {namespace}")
    os.close(place)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, SET_DEVICE, struct.pack("16sH22x", device.encode(), TAP | WITHOUT_HEADER))
    return tap


def carry(one: int, other: int, delay_s: float, loss: float) -> None:
    """Pass frames between two devices; never returns."""
    chance, waiting = random.Random(), deque[tuple[float, int, bytes]]()
    target = {one: other, other: one}
    while True:
        wait_s = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
        for tap in select.select([one, other], [], [], wait_s)[0]:
            try:
                frame = os.read(tap, FRAME_BYTES)
            except OSError:  # the device is down
                continue
            if chance.random() >= loss and len(waiting) < MOST_WAITING:
                waiting.append((time.monotonic() + delay_s, target[tap], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, tap, frame = waiting.popleft()
            try:
                os.write(tap, frame)
            except OSError:  # as above
                continue


if __name__ == "__main__":
    ends = [open_tap(*sys.argv[place : place + 2]) for place in (1, 3)]
    print("ready", flush=True)  # noqa: T201 - who has started this waits for it
    carry(*ends, *map(float, sys.argv[5:]))
