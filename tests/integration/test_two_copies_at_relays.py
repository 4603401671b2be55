"""A federation behind two relays, at each of which one key has a node: one ends, and the edges agree."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from contextlib import asynccontextmanager
from functools import partial

import pytest
from ports import free_ports
from pushes_kit import PUSHES, check_edges
from relay_kit import nothing_listed

from p2pfl.features.relay import Admissions, ListedFederation, RelayServer, Switchboard, make_token, read_token
from p2pfl.net import Address, Limits, WebSocketTransport

DEADLINE_S = 90.0
IMPATIENT = {
    "retry_first_s": 0.05,
    "retry_ceiling_s": 0.5,
    "settled_s": 0.2,
    "silence_s": 4.0,
    "beat_s": 1.2,
    "drain_s": 1.0,
    "connect_s": 1.0,
    "handshake_s": 2.0,
}


class Relay:
    """A relay on a real socket that serves whoever knows the token."""

    def __init__(self, port: int, token: bytes) -> None:
        self.port = port
        self.server = RelayServer(
            Admissions([ListedFederation(name="ward", token=token)]), Switchboard(), nothing_listed()
        )

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/p2pfl"

    @asynccontextmanager
    async def running(self):
        transport = WebSocketTransport(Limits(), nothing_listed(), logging.getLogger("tests.relay"))
        transport.expect(16)

        await transport.open(Address("127.0.0.1", self.port), self.server.meet)
        running = asyncio.create_task(self.server.run())
        try:
            yield
        finally:
            running.cancel()
            await transport.close()


@pytest.fixture
def behind(ward, tmp_path, monkeypatch):
    """Make a federation whose nodes have no address and list two relays."""
    monkeypatch.setattr("p2pfl.node.application.Limits", partial(Limits, **IMPATIENT))
    monkeypatch.setattr("p2pfl.features.relay.link.WINDOW_BYTES", 5_000)
    monkeypatch.setattr("p2pfl.features.relay.link.CREDIT_BYTES", 1_000)

    def behind(nodes: int, **tables):
        make_token(tmp_path / "relay.token")
        token = read_token(tmp_path / "relay.token")
        first, second = (Relay(port, token) for port in free_ports(2))
        task, training = {"name": "pushes.py:task"}, {"rounds": 30, "method": "plain"}
        field = ward(nodes, task=task, training=training, **tables)
        field.tables["network"] = {"relays": [first.url, second.url]}
        text = re.sub(r"(?m)^address = .*\n", "", field.write().read_text(encoding="utf-8"))
        (field.folder / "federation.toml").write_text(text, encoding="utf-8")
        (field.folder / "pushes.py").write_text(PUSHES, encoding="utf-8")
        for name in field.names:
            network = f"[network]\nrelay_token = {json.dumps(str(tmp_path / 'relay.token'))}\n"
            (field.folder / name / "node.toml").write_text(f'[node]\nlisten = "127.0.0.1:0"\n{network}', "utf-8")
        return field, first, second

    return behind


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_of_two_copies_of_one_key_at_two_relays_one_ends_and_the_edges_agree(behind, start, monkeypatch):
    """The copy is alone at the second relay; its neighbors are at both."""
    monkeypatch.setattr("p2pfl.core.limits.RESYNC_HOLD_S", 2.0)
    field, first, second = behind(3)
    copy = field.folder.with_name("copy")
    shutil.copytree(field.folder, copy, ignore=shutil.ignore_patterns("state"))
    for folder, url in ((field.folder / "node1", first.url), (copy / "node1", second.url)):
        text = (folder.parent / "federation.toml").read_text(encoding="utf-8")
        (folder.parent / "one.toml").write_text(re.sub(r"relays = .*", f'relays = ["{url}"]', text), encoding="utf-8")
    async with first.running(), second.running():
        nodes = start(field, 0, 2)
        (original,) = start(field, 1, file="one.toml")
        await nodes[0].until(lambda: min(node.rounds for node in (*nodes, original)) >= 4, DEADLINE_S)
        place = field.folder
        field.folder = copy
        (double,) = start(field, 1, file="one.toml")
        field.folder = place
        async with asyncio.timeout(DEADLINE_S):
            ended, _ = await asyncio.wait([double.task, original.task], return_when=asyncio.FIRST_COMPLETED)
        (task,) = ended
        assert task.result().resigned
        last = original if task is double.task else double
        assert "two-places" in task.result().alarms
        (field.folder / "go").touch()
        (copy / "go").touch()
        async with asyncio.timeout(DEADLINE_S):
            results = await asyncio.gather(*(asyncio.shield(node.task) for node in (*nodes, last)))
    assert all(result.finished for result in results)
    if last is double:
        shutil.rmtree(field.folder / "node1" / "state")
        shutil.copytree(copy / "node1" / "state", field.folder / "node1" / "state")
    check_edges(field.folder)
