"""Members come and go by commands on a laptop; whatever is wrong is one line, exit code 2, and nothing half made."""

from __future__ import annotations

import csv
import io
import json
import shutil
import stat
import sys
import time

import pytest

from p2pfl import load_federation
from p2pfl.config import load_config, load_stranger, read_request
from p2pfl.crypto.identity import Identity, fingerprint
from p2pfl.features.members import show_qr
from p2pfl.net import UnreachableError
from tests.cli.conftest import contents


@pytest.fixture
def ward(p2pfl, tmp_path):
    assert p2pfl("new", "ward", "--nodes", "pi1,pi2,pi3", "--task", "digits", "--admin").code == 0
    return tmp_path / "ward"


@pytest.fixture
def ask(p2pfl):
    """The request of a new machine, which makes its folder."""

    def ask(name, folder, *more):
        line = p2pfl("invite", "ward", name, *more).out.strip()
        outcome = p2pfl("join", line, folder, "--from", "ward", "--address", "127.0.0.1:9")
        assert outcome.code == 0, outcome.err
        return outcome.out.strip()

    return ask


@pytest.fixture
def nodes(monkeypatch):
    """Sets what nodes answer that are asked for their charter, and what they say to one that is brought."""

    def nodes(ask, bring):
        monkeypatch.setattr("p2pfl.net.websocket.OneShotClient.ask", ask)
        monkeypatch.setattr("p2pfl.net.websocket.OneShotClient.bring", bring)

    return nodes


@pytest.fixture
def member(p2pfl):
    def member(command, *arguments):
        more = () if command == "list" else ("--offline",)
        more += ("--yes",) if command in ("add", "replace") else ()
        return p2pfl("member", command, "ward", *arguments, *more)

    return member


def test_a_new_federation_with_an_admin_has_a_charter_and_a_key_that_only_its_owner_reads(p2pfl, ward):
    federation = load_config(ward)
    assert federation.edition.version == 1
    assert [member.name for member in federation.members] == ["pi1", "pi2", "pi3"]
    assert Identity.load(ward / "admin.key").public == federation.admin[0]
    assert stat.S_IMODE((ward / "admin.key").stat().st_mode) == 0o600
    assert p2pfl("check", "ward").code == 0


def test_without_admin_there_is_neither(p2pfl, tmp_path):
    p2pfl("new", "ward", "--nodes", "pi1,pi2", "--task", "digits")
    assert not {"admin.key", "members.toml"} & {path.name for path in (tmp_path / "ward").iterdir()}
    assert load_config(tmp_path / "ward").edition is None
    outcome = p2pfl("member", "remove", "ward", "pi1")
    assert outcome.code == 2
    assert "federation.admin" in outcome.err


def test_a_new_machine_joins(ward, ask, member, p2pfl, tmp_path):
    request = ask("pi4", "there")
    copied = {".schema", "federation.toml", "members.toml"}
    assert {path.name for path in (tmp_path / "there").iterdir()} == {*copied, "pi4"}
    outcome = member("add", request)
    assert outcome.code == 0, outcome.err
    assert "version 2 of the members: 4 of them, 6 edges (+3 -0)" in outcome.err
    federation = load_config(ward)
    newcomer = federation.member("pi4")
    assert newcomer.key == Identity.load(tmp_path / "there" / "pi4" / "node.key").public
    assert (newcomer.index, newcomer.address) == (3, "127.0.0.1:9")
    assert p2pfl("check", "ward").code == 0


def test_a_removed_member_keeps_its_row_and_a_replacement_its_neighbors(ward, ask, member):
    before = load_config(ward).neighbors(1)
    assert member("replace", ask("pi2", "new-pi2", "--replace")).code == 0
    federation = load_config(ward)
    assert federation.member("pi2").index == 3
    assert federation.neighbors(3) == before
    assert member("remove", "pi3").code == 0
    rows = json.loads(member("list", "--format", "json").out)
    assert [(row["name"], row["state"]) for row in rows] == [
        ("pi1", "member"),
        ("pi2", "removed"),
        ("pi3", "removed"),
        ("pi2", "member"),
    ]
    as_csv = list(csv.DictReader(io.StringIO(member("list", "--format", "csv").out)))
    assert [row["key"] for row in as_csv] == [row["key"] for row in rows]
    assert "version 3 of its members" in member("list").out


def test_rounds_graph_and_addresses_change(ward, member):
    assert member("set", "--rounds", "77", "--topology", "path", "--address", "pi1=10.1.1.1:7").code == 0
    federation = load_config(ward)
    assert (federation.training.rounds, federation.edges) == (77, ((0, 1), (1, 2)))
    assert federation.member("pi1").address == "10.1.1.1:7"


def test_what_is_edited_in_the_federation_file_and_counts_for_nothing_is_said(ward, member, p2pfl):
    file = ward / "federation.toml"
    assert "are ignored" not in p2pfl("check", "ward").out
    file.write_text(file.read_text(encoding="utf-8").replace("127.0.0.1:8470", "10.0.0.1:8470"), encoding="utf-8")
    assert "its addresses are ignored" in p2pfl("check", "ward").out
    member("set", "--address", "pi1=10.0.0.1:8470")
    assert "are ignored" not in p2pfl("check", "ward").out


def test_a_change_that_reached_nobody_is_handed_over_later_and_nothing_new_is_signed(ward, member, p2pfl, nodes):
    there = {}

    async def ask(_self, address, _key, _version):
        if address not in there:
            raise UnreachableError("Connection refused")

    async def bring(_self, address, _key, raw):
        await ask(_self, address, _key, 0)
        there[address] = raw
        return 2

    nodes(ask, bring)
    member("set", "--rounds", "77")
    before = contents(ward)
    outcome = p2pfl("member", "hand", "ward")
    assert outcome.code == 1
    assert "no node could be reached" in outcome.err
    assert "pi1: Connection refused" in outcome.err
    there["127.0.0.1:8471"] = None
    outcome = p2pfl("member", "hand", "ward")
    assert (outcome.code, outcome.err.split("\n")[0]) == (0, "handed to pi2, who pass it on")
    assert there["127.0.0.1:8471"] == load_config(ward).charter
    assert contents(ward) == before


def test_what_nodes_have_already_is_written_down_and_handed_on(ward, member, p2pfl, nodes):
    """The laptop's copy is an old one."""
    old = (ward / "members.toml").read_bytes()
    member("set", "--rounds", "77")
    newer = load_config(ward).charter
    (ward / "members.toml").write_bytes(old)
    handed = []

    async def ask(_self, _address, _key, _version):
        return newer

    async def bring(_self, _address, _key, raw):
        handed.append(raw)
        return 2

    nodes(ask, bring)
    outcome = p2pfl("member", "hand", "ward")
    assert outcome.code == 0, outcome.err
    assert "the nodes have version 2 already" in outcome.err
    assert set(handed) == {newer}
    assert load_config(ward).training.rounds == 77


def test_there_is_nothing_to_hand_over_without_a_list(ward, p2pfl):
    (ward / "members.toml").unlink()
    outcome = p2pfl("member", "hand", "ward")
    assert outcome.code == 2
    assert "nothing to hand over" in outcome.err


def test_on_a_machine_that_joined_later_the_list_is_the_one_that_its_node_has_kept(ward, ask, member, p2pfl, tmp_path):
    """Its members.toml is a copy from before it was taken in, by which it would not be there at all."""
    member("add", ask("pi4", "there"))
    state = tmp_path / "there" / "pi4" / "state"
    state.mkdir()
    rows = json.loads(p2pfl("member", "list", "there", "--format", "json").out)
    assert [row["name"] for row in rows] == ["pi1", "pi2", "pi3"]
    (state / "charter").write_bytes(load_config(ward).charter)
    rows = json.loads(p2pfl("member", "list", "there", "--format", "json").out)
    assert [row["name"] for row in rows] == ["pi1", "pi2", "pi3", "pi4"]
    shown = json.loads(p2pfl("status", "there", "--format", "json").out)
    assert "pi4" in [row["node"] for row in (shown if isinstance(shown, list) else shown["nodes"])]
    told = p2pfl("doctor", "there", "--format", "json")
    assert told.out, told.err
    found = json.loads(told.out)
    assert "pi4" in json.dumps(found)


def test_the_qr_code_fits_a_terminal_and_says_what_it_needs(ward, p2pfl, capsys, monkeypatch):
    pytest.importorskip("segno")
    line = p2pfl("invite", "ward", "pi4").out.strip()
    show_qr(line)
    assert 20 < max(map(len, capsys.readouterr().err.splitlines())) <= 79
    monkeypatch.setitem(sys.modules, "segno", None)
    show_qr(line)
    assert "it needs segno" in capsys.readouterr().err


# --- what is wrong --------------------------------------------------------------------------------------------------


def refused(outcome, *words):
    assert outcome.code == 2
    assert outcome.err.count("error:") == 1
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err, outcome.err


def test_an_invite_is_good_for_one_request(ward, ask, member, tmp_path):
    request = ask("pi4", "there")
    assert member("add", request).code == 0
    before = contents(ward)
    own = fingerprint(Identity.load(tmp_path / "there" / "pi4" / "node.key").public)
    refused(member("add", request), "already been used", own, "this very request", "nothing to do")
    assert contents(ward) == before


def test_who_was_not_first_learns_which_key_was_and_what_to_do(ward, member, p2pfl, tmp_path):
    """The line of the invite was seen by somebody else, who has answered it sooner."""
    line = p2pfl("invite", "ward", "pi4").out.strip()
    finder, newcomer = (p2pfl("join", line, folder, "--from", "ward").out.strip() for folder in ("finder", "there"))
    assert member("add", finder).code == 0
    before = contents(ward)
    taken = fingerprint(Identity.load(tmp_path / "finder" / "pi4" / "node.key").public)
    outcome = member("add", newcomer)
    refused(outcome, "already been used", taken, "p2pfl member remove ward pi4", "p2pfl invite ward pi4")
    assert contents(ward) == before
    assert member("remove", "pi4").code == 0
    outcome = member("add", newcomer)
    refused(outcome, "already been used", taken, "p2pfl invite ward pi4")
    assert "member remove" not in outcome.err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_whose_key_and_address_is_added_is_shown_and_asked(ward, ask, p2pfl, monkeypatch, tmp_path):
    """And `join` has printed the same fingerprint, for two people to compare."""
    line = p2pfl("invite", "ward", "pi4").out.strip()
    joined = p2pfl("join", line, "there", "--from", "ward", "--address", "10.0.0.4:8470")
    shown = fingerprint(Identity.load(tmp_path / "there" / "pi4" / "node.key").public)
    assert shown in joined.err
    before = contents(ward)
    for answer in ("n\n", "\n"):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        outcome = p2pfl("member", "add", "ward", joined.out.strip(), "--offline")
        assert outcome.code == 1
        for word in ("pi4", shown, "10.0.0.4:8470", "nothing was changed"):
            assert word in outcome.err, outcome.err
        assert contents(ward) == before
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert p2pfl("member", "add", "ward", joined.out.strip(), "--offline").code == 0
    assert load_config(ward).member("pi4").address == "10.0.0.4:8470"


def test_a_replacement_is_shown_beside_the_member_that_it_replaces(ward, ask, p2pfl, monkeypatch):
    old = load_config(ward).member("pi2")
    request = ask("pi2", "new-pi2", "--replace")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    outcome = p2pfl("member", "replace", "ward", request, "--offline")
    assert outcome.code == 1
    for word in ("127.0.0.1:9", fingerprint(old.key), old.address):
        assert word in outcome.err


@pytest.mark.parametrize("command", ["add", "replace"])
def test_without_a_terminal_nobody_is_taken_in_unseen(command, ward, ask, p2pfl, monkeypatch):
    request = ask("pi4", "there") if command == "add" else ask("pi2", "there", "--replace")
    before = contents(ward)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    refused(p2pfl("member", command, "ward", request, "--offline"), "no terminal", "--yes")
    assert contents(ward) == before
    assert p2pfl("member", command, "ward", request, "--offline", "--yes").code == 0


DAY_S = 86_400.0


def test_an_invite_ends_after_three_days(ward, ask, member, p2pfl, monkeypatch):
    """The inviting machine's clock and record count; a request that comes later uses up nothing."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    request = ask("pi4", "there")
    before = contents(ward)
    monkeypatch.setattr(time, "time", lambda: now + 3 * DAY_S + 60)
    refused(member("add", request), "its invite ended", "p2pfl invite ward pi4")
    assert contents(ward) == before
    assert "until" in p2pfl("invite", "ward", "pi6").err


def test_a_new_machine_does_not_answer_an_invite_that_has_ended(ward, p2pfl, monkeypatch, tmp_path):
    line, now = p2pfl("invite", "ward", "pi4").out.strip(), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 4 * DAY_S)
    refused(p2pfl("join", line, "there"), "the invite ended", "clock")
    assert not (tmp_path / "there").exists()


def test_a_board_that_wakes_up_in_the_past_is_not_locked_out(ward, p2pfl, monkeypatch):
    line = p2pfl("invite", "ward", "pi4").out.strip()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert p2pfl("join", line, "there").code == 0


def test_two_newcomers_of_one_name(ward, ask, member):
    first, second = ask("pi4", "one"), ask("pi4", "two")
    assert member("add", first).code == 0
    before = contents(ward)
    refused(member("add", second), "the name is taken", "replace")
    assert contents(ward) == before


def test_a_request_for_another_federation_or_of_an_invite_from_elsewhere(ward, ask, member, p2pfl, tmp_path):
    request = ask("pi4", "there")
    (ward / "invites.json").unlink()
    refused(member("add", request), "does not answer an invite")
    p2pfl("new", "other", "--nodes", "2", "--task", "digits", "--admin")
    refused(p2pfl("member", "add", "other", request, "--offline", "--yes"), "another federation")


def test_join_with_other_files_than_those_of_the_invite(ward, p2pfl, tmp_path):
    line = p2pfl("invite", "ward", "pi4").out.strip()
    p2pfl("new", "other", "--nodes", "2", "--admin")
    refused(p2pfl("join", line, "there", "--from", "other"), "not the federation file")
    refused(p2pfl("join", line, "there", "--from", "nowhere"), "cannot be read")
    refused(p2pfl("join", line, "there", "--address", "nowhere"), "--address: not an address (found 'nowhere')")
    assert not (tmp_path / "there").exists()


def test_join_without_files_says_what_to_copy(ward, p2pfl, tmp_path):
    line = p2pfl("invite", "ward", "pi4").out.strip()
    outcome = p2pfl("join", line, "there")
    assert outcome.code == 0
    assert "federation.toml and the task's file" in outcome.err
    assert {path.name for path in (tmp_path / "there").iterdir()} == {".schema", "pi4"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("remove", "pi9"), ["no such node", "pi1, pi2, pi3"]),
        (("set",), ["nothing to change"]),
        (("set", "--topology", "rnig"), ["unknown topology"]),
        (("set", "--topology", "random-regular:degree=9"), ["random-regular:degree"]),
        (("set", "--address", "pi1=here"), ["not an address", "NAME=HOST:PORT"]),
        (("set", "--address", "pi1=127.0.0.1:8471"), ["pi2 already has the address given for pi1"]),
        (("set", "--address", "pi9=here:1"), ["no such node"]),
        (("add", "nonsense"), ["REQUEST"]),
        (("remove", "pi1", "--key", "ward/pi1/node.key"), ["not an admin key"]),
        (("remove", "pi1", "--key", "ward/none.key"), ["cannot be read"]),
    ],
)
def test_an_impossible_change_changes_nothing(command, words, ward, member):
    before = contents(ward)
    refused(member(*command), *words)
    assert contents(ward) == before


def test_a_disconnected_graph_is_not_signed(ward, member):
    (ward / "two.edges").write_text("pi1 pi2\n", encoding="utf-8")
    before = contents(ward)
    outcome = member("set", "--topology", "./two.edges")
    assert outcome.code == 3
    assert "parts" in outcome.err
    assert contents(ward) == before


def test_the_last_two_stay(ward, member):
    assert member("remove", "pi1").code == 0
    refused(member("remove", "pi2"), "too few members")


def test_a_graph_that_the_robust_rule_cannot_bear_is_refused_with_one_that_would_do(p2pfl, tmp_path):
    arguments = ["--nodes", "7", "--task", "digits", "--admin", "--rule", "trimmed-mean:b=1", "--topology", "complete"]
    assert p2pfl("new", "ward", *arguments).code == 0
    before = contents(tmp_path / "ward")
    outcome = p2pfl("member", "set", "ward", "--topology", "ring", "--offline")
    refused(outcome, "needs 3 neighbors at every node", "would have 2", "--topology keyed-rings:r=2")
    assert contents(tmp_path / "ward") == before
    assert p2pfl("member", "set", "ward", "--topology", "keyed-rings:r=2", "--offline").code == 0
    assert p2pfl("member", "set", "ward", "--topology", "complete", "--offline").code == 0
    for name in ("node0", "node1", "node2"):
        assert p2pfl("member", "remove", "ward", name, "--offline").code == 0
    refused(p2pfl("member", "remove", "ward", "node3", "--offline"), "4 members or more")


def test_a_changed_members_file_is_one_clear_error_everywhere(ward, p2pfl):
    path = ward / "members.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("rounds = 40", "rounds = 41"), encoding="utf-8")
    for command in (("check", "ward"), ("run", "ward", "--node", "pi1"), ("member", "list", "ward")):
        refused(p2pfl(*command), "members.toml", "changed after it was signed")


def test_in_one_process_it_runs_with_those_who_are_there(ward, member):
    member("remove", "pi1")
    member("set", "--rounds", "3")
    federation = load_federation(ward)
    assert [one.name for one in federation.config.members] == ["pi2", "pi3"]
    assert federation.config.admin == ()
    assert len(federation.run().nodes) == 2


def find_each_other(ward, member):
    """No member has an address any more."""
    file = ward / "federation.toml"
    file.write_text(file.read_text("utf-8").replace("# discovery = false", "discovery = true"), encoding="utf-8")
    assert member("set", *(f"--address=pi{number}=" for number in (1, 2, 3))).code == 0


def test_members_that_are_found_on_the_lan_need_no_address_nor_does_a_newcomer(ward, member, p2pfl, tmp_path):
    find_each_other(ward, member)
    assert {one.address for one in load_config(ward).members} == {None}
    assert "address" not in p2pfl("check", "ward").out.partition("warning")[2]
    line = p2pfl("invite", "ward", "pi4").out.strip()
    for folder, more in (("there", ()), ("bare", None)):
        outcome = p2pfl("join", line, folder, *(() if more is None else ("--from", "ward")))
        assert outcome.code == 0, outcome.err
        assert read_request(outcome.out.strip()).address is None
        assert load_stranger(tmp_path / folder / "pi4", "pi4").listen == "0.0.0.0:0"
    assert member("add", outcome.out.strip()).code == 0
    assert load_config(ward).member("pi4").address is None


def test_without_discovery_and_addresses_an_invite_says_that_nobody_can_be_asked(ward, member, p2pfl):
    member("set", *(f"--address=pi{number}=" for number in (1, 2, 3)))
    assert "no member has an address" in p2pfl("invite", "ward", "pi4").err


def test_a_change_is_handed_to_members_where_they_are_heard(ward, member, p2pfl, nodes, monkeypatch):
    find_each_other(ward, member)
    there = {one.key: (f"10.77.0.{one.index}:5000",) for one in load_config(ward).members if one.name != "pi3"}
    handed = {}

    async def nearby(federation, **_):
        return there

    async def ask(_self, address, key, _version):
        assert address in there[key]

    async def bring(_self, address, key, raw):
        handed[address] = raw
        return 3

    monkeypatch.setattr("p2pfl.features.members.changes.find_nearby", nearby)
    nodes(ask, bring)
    outcome = p2pfl("member", "set", "ward", "--rounds", "77")
    assert outcome.code == 0
    assert "handed to pi1, pi2, who pass it on" in outcome.err
    assert handed.keys() == {"10.77.0.0:5000", "10.77.0.1:5000"}


def test_where_nobody_has_an_address_the_laptop_needs_what_listens_for_them(ward, member, p2pfl, monkeypatch):
    find_each_other(ward, member)
    before = contents(ward)
    monkeypatch.setattr("p2pfl.features.lan.discovery.find_spec", lambda _: None)
    refused(p2pfl("member", "set", "ward", "--rounds", "77"), "network.discovery", "pip install '.[lan]'")
    assert contents(ward) == before


def test_a_machine_joins_in_the_copy_of_the_files_that_it_has_already(ward, member, p2pfl, tmp_path):
    """As docs/how-to/members.md says: copy federation.toml, task.py and members.toml, and join in that folder."""
    there = tmp_path / "there"
    there.mkdir()
    for name in ("federation.toml", "members.toml"):
        shutil.copy(ward / name, there)
    line = p2pfl("invite", "ward", "pi4").out.strip()
    outcome = p2pfl("join", line, "there", "--address", "127.0.0.1:9")
    assert outcome.code == 0, outcome.err
    assert "still missing" not in outcome.err
    assert {path.name for path in there.iterdir()} == {".schema", "federation.toml", "members.toml", "pi4"}
    assert stat.S_IMODE((there / "pi4").stat().st_mode) == 0o700
    assert member("add", outcome.out.strip()).code == 0
    before = contents(there)
    refused(p2pfl("join", line, "there"), "pi4 has a folder there already")
    refused(p2pfl("join", line, "there", "--from", "ward"), "has a federation's files already")
    assert contents(there) == before


def test_an_invite_names_the_command_for_its_answer_and_addresses_that_only_this_machine_reaches(p2pfl, member, ward):
    assert "p2pfl member replace ward" in p2pfl("invite", "ward", "pi2", "--replace").err
    said = p2pfl("invite", "ward", "pi4").err
    assert "p2pfl member add ward" in said
    assert "for this machine alone" in said
    member("set", *(f"--address=pi{number}=10.0.0.{number}:8470" for number in (1, 2, 3)))
    assert "for this machine alone" not in p2pfl("invite", "ward", "pi5").err
