"""One key in two places, a card that was cloned say: one of the two processes ends, loudly, and the other goes on."""

from __future__ import annotations

import asyncio
import shutil
import sys

import pytest
from ports import free_ports

COMMAND = [sys.executable, "-m", "p2pfl.cli.main", "run", "--node", "node1"]
ENDLESS = {"rounds": 1_000_000}
HOLD_S = 2.0
"""The edge may rest so long after so many new beginnings."""


def clone_of(field):
    """The folder as it would be on another machine: all but the port is the same, and there is no state yet."""
    copy = field.folder.with_name("clone")
    shutil.copytree(field.folder, copy, ignore=shutil.ignore_patterns("state"))
    (port,) = free_ports(1)
    file = copy / "node1" / "node.toml"
    file.write_text(file.read_text(encoding="utf-8").replace(str(field.ports[1]), str(port)), encoding="utf-8")
    return copy


@pytest.mark.long
@pytest.mark.timeout(150)
async def test_a_second_process_with_the_key_of_a_node_ends_as_a_failure_and_the_first_goes_on(
    ward, start, monkeypatch
):
    monkeypatch.setattr("p2pfl.core.limits.RESYNC_HOLD_S", HOLD_S)
    field = ward(2, training=ENDLESS, task={"step_s": 0.005})
    nodes = start(field)
    await nodes[0].until(lambda: nodes[0].rounds >= 5)
    copy = clone_of(field)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, str(copy), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 1, said
    assert b"two-places: one key speaks from two places" in said
    assert nodes[0].status.alarms["two-places"] >= 1
    rounds = nodes[1].rounds
    goes_on = lambda: nodes[1].rounds > rounds + 20 and nodes[1].status.neighbors[0].live  # noqa: E731
    await nodes[1].until(goes_on, deadline_s=60.0)
    for node in nodes:
        result = await node.stop()
        assert not result.resigned
        assert "two-places" not in result.alarms or node is nodes[0]
