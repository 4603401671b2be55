"""Whole nodes whose rounds are sums: how they are started, and broken off at a point of their rounds."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("kit_of_nodes", Path(__file__).parent / "integration" / "conftest.py")
_kit = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _kit
_spec.loader.exec_module(_kit)
ward, start = _kit.ward, _kit.start


@pytest.fixture
def hasty(monkeypatch):
    """Wait less for members that are missing."""
    monkeypatch.setattr("p2pfl.features.sums.rounds.FIRST_S", 0.5)
    monkeypatch.setattr("p2pfl.features.sums.rounds.SHARE_S", 0.0)


def crash_at(monkeypatch, owner, name, index, when, *, after):
    """Break node `index` off, once, before or after a method of its rounds in which `when` holds."""
    method, crashed = getattr(owner, name), asyncio.Event()

    async def crash():
        crashed.set()
        crashed.break_off()
        await asyncio.Event().wait()

    async def broken(rounds, *arguments, **keywords):
        is_now = rounds._node.setup().member.index == index and not crashed.is_set() and when(rounds)
        if is_now and not after:
            await crash()
        found = await method(rounds, *arguments, **keywords)
        if is_now:
            await crash()
        return found

    monkeypatch.setattr(owner, name, broken)
    return crashed


async def broken_off(node, crashed):
    """Wait until a node was broken off at the point of `crash_at`."""
    crashed.break_off = node.task.cancel
    await asyncio.wait([node.task])
    assert crashed.is_set()
