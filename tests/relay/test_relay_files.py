"""The files that people write and copy: relays in federation.toml and node.toml, tickets, tokens, and the commands."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from p2pfl.config import NETWORK, federation_id, federation_mistakes, load_config, load_node, realm_of
from p2pfl.features.members import Delivery
from p2pfl.features.relay import Credentials, RelayCheck, RelayFeature, RelayLink, Relays, credentials_here, read_token
from p2pfl.net import Limits
from p2pfl.node import Inspected

URL = "ws://relay.example.org:8443/p2pfl"


def findings():
    """What `p2pfl check` finds about the relays of all nodes in the folder `ward`."""
    federation = load_config("ward")
    here = {member.index: load_node(f"ward/{member.name}", federation) for member in federation.present}
    inspected = Inspected(federation=federation, mistakes=[], here=here)
    RelayCheck().of_files(inspected)
    return inspected.mistakes, inspected.warnings


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([URL], (URL,)),
        ("ws://relay.example.org:8443", (URL,)),
        (["wss://relay.example.org/a/path"], ("wss://relay.example.org/a/path",)),
        (["ws://[2001:db8::1]:9/p2pfl"], ("ws://[2001:db8::1]:9/p2pfl",)),
        ([], ()),
    ],
)
def test_a_relay_is_a_url_whose_usual_path_may_be_left_out(written, read):
    assert NETWORK["relays"].read(written) == read


@pytest.mark.parametrize(
    "written",
    [1, ["relay.example.org:8443"], ["ws://"], ["ws://x:0"], ["ws://x:70000"], ["ws://a b"], [URL] * 2, [1], [URL] * 9],
)
def test_anything_else_is_a_mistake(written):
    with pytest.raises(ValueError):
        NETWORK["relays"].read(written)


def test_a_new_federation_with_an_admin_key_has_tickets_and_nothing_more_to_type(p2pfl, tmp_path):
    code, _, err = p2pfl("new", "ward", "--nodes", "clinic,lab", "--task", "digits", "--admin", "--relay", URL)
    assert code == 0
    assert "p2pfl relay --federation ward/federation.toml" in err
    federation = load_config("ward")
    assert federation.relays == (URL,)
    assert [member.address for member in federation.members] == [None, None]
    assert all(credentials_here(federation).ticket_of(member.key).is_genuine() for member in federation.members)
    assert load_node("ward/lab", federation).relays == (URL,)
    assert findings() == ([], [])


def test_without_an_admin_key_there_is_a_token_that_each_node_names(p2pfl, tmp_path):
    assert p2pfl("new", "ward", "--nodes", "clinic,lab", "--task", "digits", "--relay", URL)[0] == 0
    node = load_node("ward/clinic", load_config("ward"))
    assert len(read_token(node.relay_token)) == 32
    (tmp_path / "ward/relay.token").chmod(0o644)
    mistakes, warnings = findings()
    assert "others may read this secret" in str(mistakes[0])
    assert not warnings


def test_relays_may_differ_between_nodes_and_a_node_may_add_its_own(p2pfl, tmp_path):
    p2pfl("new", "ward", "--nodes", "clinic,lab", "--task", "digits")
    before = federation_id(load_config("ward"))
    file = tmp_path / "ward/federation.toml"
    file.write_text(file.read_text("utf-8").replace("# relays = []", f'relays = ["{URL}"]'), encoding="utf-8")
    federation = load_config("ward")
    assert federation_id(federation) == before
    own = tmp_path / "ward/lab/node.toml"
    own.write_text(own.read_text("utf-8") + f'[network]\nrelays = ["ws://near:1", "{URL}"]\n', encoding="utf-8")
    assert load_node("ward/lab", federation).relays == (URL, "ws://near:1/p2pfl")
    assert "lab has nothing that opens the relays" in findings()[1][1]
    file.write_text(file.read_text("utf-8").replace(URL, "https://x"), encoding="utf-8")
    assert "a relay is at wss://x" in str(federation_mistakes("ward")[0])


def test_tickets_are_renewed_with_the_members_and_check_says_when_they_end(p2pfl, monkeypatch):
    p2pfl("new", "ward", "--nodes", "clinic,lab,third", "--task", "digits", "--admin", "--relay", URL)
    assert p2pfl("member", "remove", "ward", "third", "--offline")[0] == 0
    before = credentials_here(load_config("ward"))
    assert len(before.rows) == 2 * 96
    code, _, err = p2pfl("member", "hand", "ward", "--offline")
    assert code == 0
    assert "2 tickets for a year" in err
    assert credentials_here(load_config("ward")).head.issued > before.head.issued
    monkeypatch.setattr("p2pfl.features.relay.feature.seconds_now", lambda: time.time() + 350 * 86_400)
    assert "the ticket of clinic expires at" in findings()[1][0]
    monkeypatch.setattr("p2pfl.features.relay.feature.seconds_now", lambda: time.time() + 400 * 86_400)
    mistakes, warnings = findings()
    assert not mistakes
    assert "the ticket of clinic expired at " in warnings[0]
    assert ", and by this machine's clock it is " in warnings[0]
    code, _, err = p2pfl("member", "ticket", "ward")
    assert (code, "p2pfl member hand" in err) == (2, True)


def test_tickets_are_for_the_members_that_the_nodes_know_even_if_another_admin_removed_one(
    p2pfl, tmp_path, monkeypatch
):
    p2pfl("new", "ward", "--nodes", "clinic,lab,third", "--task", "digits", "--admin", "--relay", URL)
    shutil.copytree(tmp_path / "ward", tmp_path / "other")
    assert p2pfl("member", "remove", "other", "third", "--offline")[0] == 0
    handed = []

    async def newest_from(*_):
        return load_config("other"), 1

    async def hand(_federation, _charter, _admin, _nearby, sheet):
        handed.append(sheet)
        return Delivery(["lab"])

    monkeypatch.setattr("p2pfl.features.members.changes.newest_from", newest_from)
    monkeypatch.setattr("p2pfl.features.members.changes.hand", hand)
    code, _, err = p2pfl("member", "hand", "ward")
    assert (code, "2 tickets" in err) == (0, True)
    federation = load_config("other")
    (sheet,) = (Credentials.unpack(raw, realm=realm_of(federation), admin=federation.admin) for raw in handed)
    assert sheet.head.removed == tuple(one.key for one in federation.members if one.name == "third")


def test_a_relay_for_nobody_does_not_start(p2pfl, tmp_path):
    code, _, err = p2pfl("relay")
    assert code == 2
    assert "no open relay" in err
    (tmp_path / "federation.toml").write_text('[federation]\nname = "ward"\n', encoding="utf-8")
    code, _, err = p2pfl("relay", "--federation", "federation.toml")
    assert code == 2
    assert "federation.admin" in err
    assert p2pfl("relay", "--make-token", "relay.token")[0] == 0
    code, _, err = p2pfl("relay", "--token", "relay.token", "--listen", "nowhere")
    assert code == 2
    assert "--listen" in err


@pytest.mark.long
def test_the_command_serves_until_it_is_stopped(tmp_path, p2pfl):
    p2pfl("relay", "--make-token", "relay.token")
    command = [sys.executable, "-m", "p2pfl.cli.main", "relay", "--listen", "127.0.0.1:0", "--token", "relay.token"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, cwd=tmp_path, env=os.environ)
    try:
        end = time.monotonic() + 60
        while "listening on port" not in (tmp_path / "log").read_text():
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
    finally:
        process.kill()


class FakeNode:
    """What the feature asks of a node."""

    def __init__(self):
        self.now, self.alarms, self.told = 0.0, [], []
        self.feed = self
        self.standing = ""
        node = SimpleNamespace(relay_token="relay.token")
        federation = SimpleNamespace(members=[])
        self.setup = lambda: SimpleNamespace(node=node, identity=SimpleNamespace(public=b""), federation=federation)

    def clock(self):
        return self.now

    def alarm(self, kind, peer, text):
        self.alarms.append((kind, text))
        self.standing = text

    def settle(self, event, peer):
        self.told.append(event)
        self.standing = ""

    def tell(self, event, peer, text):
        self.told.append(event)

    def reword(self, kind, peer, text):
        self.standing = text
        return True


def test_an_alarm_names_the_relays_that_are_away_and_ends_when_all_are_back():
    class Transport:
        relays = tuple(RelayLink(f"ws://{name}/p2pfl", PARTS) for name in ("one", "other"))

        def listen_for_doubts(self, told):
            self.told = told

    node, transport = FakeNode(), Transport()
    attached = Relays(node, transport)
    one, other = transport.relays
    ago = time.monotonic() - 20
    one.why, one._lost_at = "Connection refused", ago
    other.why, other._came_at = "", ago
    attached.look()
    assert not node.alarms
    node.now = 20.0
    attached.look()
    attached.look()
    assert node.alarms == [("relay-lost", "ws://one/p2pfl: Connection refused")]
    other.why, other._came_at, other._lost_at = "the name is unknown", None, ago
    attached.look()
    assert node.standing == (
        "no relay is left: ws://one/p2pfl: Connection refused; ws://other/p2pfl: the name is unknown"
    )
    assert len(node.alarms) == 2
    assert [row["registered"] for row in attached.status()["relays"]] == [False, False]
    assert [row["lines"] for row in attached.status()["relays"]] == [[], []]
    one.why = other.why = ""
    one._came_at = other._came_at = time.monotonic()
    attached.look()
    assert node.told == [], "they have been back for a moment only"
    one._came_at = other._came_at = ago
    attached.look()
    assert (node.told, node.standing) == (["relay-back", "relay-back"], "")


@pytest.mark.parametrize(
    ("back", "at", "alarms"),
    [("ws://other/p2pfl", 2.0, 1), ("ws://one/p2pfl", 2.0, 0), ("ws://other/p2pfl", 60.0, 0)],
)
def test_silence_of_a_lost_member_is_the_relays_fault_only_if_it_is_soon_back_another_way(back, at, alarms):
    node, one = FakeNode(), RelayLink("ws://one/p2pfl", PARTS)
    member, came = SimpleNamespace(name="clinic", key=bytes(32)), SimpleNamespace(relay=back)
    node.setup().federation.members.append(member)
    node.stands = lambda kind, peer: (kind, peer) == ("neighbor-lost", 0)
    node.network = SimpleNamespace(session=lambda _: None)
    attached = Relays(node, SimpleNamespace(relays=[], listen_for_doubts=lambda told: told(one, member.key, "silent")))
    attached._look_at_suspects(1.0)
    attached._look_at_suspects(at)
    node.network.session = lambda _: (2, came)
    attached._look_at_suspects(at)
    assert [kind for kind, _ in node.alarms] == ["relay-spoiled"] * alarms


PARTS = SimpleNamespace(limits=Limits())


def test_the_feature_does_nothing_where_no_relay_is_listed():
    usual, setup = object(), SimpleNamespace(node=SimpleNamespace(relays=()), federation=None, identity=None)
    assert RelayFeature().transport(setup, usual) is usual
    RelayFeature().check(setup)
