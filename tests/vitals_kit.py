"""A row of vitals about which nothing is special, for tests that change what they care about."""

from __future__ import annotations

from p2pfl.reporting import Vitals

ROW = Vitals(
    member=0,
    counter=0,
    life=1,
    phase="training",
    rounds=0,
    accuracy=None,
    loss=None,
    distance=None,
    staleness=None,
    bytes_sent=0,
    bytes_received=0,
    exchanges=0,
    live=b"",
    alarms=0,
    standing=(),
    charter=0,
    software="0.1.0",
)
