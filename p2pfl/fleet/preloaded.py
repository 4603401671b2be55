"""Imported by a fork server, after all that nodes share: what a forked process must not share."""

from __future__ import annotations

import gc
import random

GENERATORS = [one for one in gc.get_objects() if issubclass(type(one), random.Random)]
"""Each would draw the same numbers in all nodes."""
gc.freeze()  # the garbage collector would write to the shared objects that it visits
