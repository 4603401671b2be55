"""`p2pfl check` says what a federation would do, and finds what is wrong in the file and in the nodes' folders."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import closing

import pytest

from p2pfl.crypto.identity import Identity, public_text
from p2pfl.features.lan import discovery
from p2pfl.learn.privacy import Spend, epsilon_of
from p2pfl.reporting import MESSAGE_BYTES
from p2pfl.storage import State, Store
from tests.cli.conftest import change as changed


@pytest.fixture
def change(ward):
    return lambda name, right, wrong: changed(ward / name, right, wrong)


def report_of(outcome):
    return json.loads(outcome.out)


def test_a_round_sends_one_compressed_model_to_each_neighbor(p2pfl, ward, change):
    change("federation.toml", 'compressor = "q4"', 'compressor = "none"')
    traffic = report_of(p2pfl("check", ward, "--format", "json"))["traffic"]
    assert traffic["message_bytes"] == 4 * 2_410
    sent = traffic["message_bytes"] + MESSAGE_BYTES
    assert traffic["bytes_per_round_busiest_node"] == [2 * sent, 4 * sent]
    assert traffic["bytes_per_round_all_nodes"] == [8 * sent, 16 * sent]


def test_zstd_where_its_library_is_not_installed_is_a_mistake_and_not_a_crash_of_the_first_exchange(
    p2pfl, ward, change, monkeypatch
):
    def missing():
        raise ModuleNotFoundError("No module named 'backports.zstd'", name="backports.zstd")

    monkeypatch.setattr("p2pfl.compress.entropy._library", missing)
    change("federation.toml", 'compressor = "q4"', 'compressor = "q4+zstd"')
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert "federation.toml: gossip.compressor: zstd is not installed here (found 'q4+zstd')" in outcome.err


@pytest.mark.parametrize("command", [("check", "ward"), ("run", "ward", "--node", "node0")])
def test_discovery_where_its_library_is_not_installed_is_a_mistake_that_says_what_to_install(
    p2pfl, ward, change, monkeypatch, command
):
    find_spec = discovery.find_spec
    monkeypatch.setattr(discovery, "find_spec", lambda name: None if name == "zeroconf" else find_spec(name))
    change("federation.toml", "# discovery = false", "discovery = true")
    outcome = p2pfl(*command)
    assert outcome.code == 2
    assert "network.discovery: needs python-zeroconf, which is not installed" in outcome.err
    assert "pip install '.[lan]'" in outcome.err
    assert not (ward / "node0/state").exists()


def test_with_discovery_no_address_is_needed(p2pfl, ward, change):
    file = ward / "federation.toml"
    text = re.sub("(?m)^address = .*$", "", file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")

    def warned():
        warnings = report_of(p2pfl("check", ward, "--format", "json"))["warnings"]
        return sum("has an address for the other to dial" in warning for warning in warnings)

    assert warned() == 4
    change("federation.toml", "# discovery = false", "discovery = true")
    assert warned() == 0


@pytest.fixture
def override(ward):
    """Give an edge a compressor of its own."""

    def override(first, second, spec):
        with (ward / "federation.toml").open("a", encoding="utf-8") as file:
            file.write(f'\n[[edge]]\nbetween = ["{first}", "{second}"]\ncompressor = "{spec}"\n')

    return override


def test_an_edge_of_its_own_has_its_own_bytes_and_enters_the_sums(p2pfl, ward, override):
    before = report_of(p2pfl("check", ward, "--format", "json"))["traffic"]
    override("node1", "node2", "none")
    traffic = report_of(p2pfl("check", ward, "--format", "json"))["traffic"]
    assert traffic["edges"] == [
        {"between": ["node1", "node2"], "compressor": "none", "message_bytes": 9_640, "exact": True}
    ]
    more = 9_640 - before["message_bytes"]
    assert traffic["bytes_per_round_busiest_node"][0] == before["bytes_per_round_busiest_node"][0] + more
    assert traffic["bytes_per_round_all_nodes"][0] == before["bytes_per_round_all_nodes"][0] + 2 * more


def test_what_is_shared_and_what_is_personal_is_counted(p2pfl, ward, change):
    change("federation.toml", '# share = "*"', 'share = "0.*"')
    outcome = p2pfl("check", ward, "--format", "json")
    traffic = report_of(outcome)["traffic"]
    assert outcome.code == 0
    assert (traffic["parameters"], traffic["personal_parameters"]) == (64 * 32 + 32, [330, 330])
    assert traffic["share"] == ["0.*"]


def test_compressors_that_do_not_fit_are_all_told_with_the_other_mistakes(p2pfl, ward, change, override):
    change("federation.toml", 'compressor = "q4"', 'compressor = "random-k:3000"')
    change("node3/node.toml", "# threads = 1", "threads = 0")
    override("node1", "node2", "top-k:2411")
    outcome = p2pfl("check", ward, "--format", "json")
    assert outcome.code == 2
    assert report_of(outcome)["traffic"] is None
    assert [(mistake["key"], mistake["value"]) for mistake in report_of(outcome)["mistakes"]] == [
        ("node.threads", 0),
        ("gossip.compressor", "random-k:3000"),
        ("edge[0].compressor", "top-k:2411"),
    ]
    assert {mistake["file"] for mistake in report_of(outcome)["mistakes"][1:]} == {str(ward / "federation.toml")}


def test_a_filter_that_matches_nothing_is_one_mistake_beside_those_of_compressors(
    p2pfl, ward, change, override, monkeypatch
):
    monkeypatch.setattr("p2pfl.compress.chains.zstd_is_installed", lambda: False)
    change("federation.toml", '# share = "*"', 'share = ["0.*", "head.*"]')
    override("node1", "node2", "q8+zstd")
    outcome = p2pfl("check", ward, "--format", "json")
    assert outcome.code == 2
    found = [(mistake["key"], mistake["value"]) for mistake in report_of(outcome)["mistakes"]]
    assert found == [("gossip.share", "head.*"), ("edge[0].compressor", "q8+zstd")]


def test_of_a_schedule_the_graph_is_the_union_and_the_traffic_that_of_a_round(p2pfl, ward, change):
    change("federation.toml", 'topology = "ring"', 'topology = "one-peer-hypercube"')
    outcome = p2pfl("check", ward, "--format", "json")
    assert outcome.code == 0
    report = report_of(outcome)
    assert (report["graph"]["edges"], report["graph"]["algebraic_connectivity"]) == (4, pytest.approx(2.0))
    message = report["traffic"]["message_bytes"] + MESSAGE_BYTES
    assert report["traffic"]["bytes_per_round_busiest_node"] == [message, 2 * message]
    assert report["traffic"]["bytes_per_round_all_nodes"] == [4 * message, 8 * message]


def test_mean_is_said_to_be_no_protection(p2pfl, ward):
    outcome = p2pfl("check", ward)
    assert outcome.code == 0
    assert "no protection against malicious neighbors" in outcome.out
    assert outcome.out.startswith("no mistakes, 1 warning\n")


def test_a_disconnected_graph_is_shown_and_ends_with_3_unless_a_worse_mistake_is_there(p2pfl, ward, change):
    change("federation.toml", '"ring"', '"circulant:offsets=2"')
    outcome = p2pfl("check", ward, "--format", "json")
    assert outcome.code == 3
    assert report_of(outcome)["graph"]["components"] == 2
    change("node1/node.toml", "# threads = 1", "threads = 0")
    assert p2pfl("check", ward).code == 2


def test_a_key_of_another_is_found(p2pfl, ward):
    other = Identity.generate()
    (ward / "node2" / "node.key").unlink()
    other.save(ward / "node2" / "node.key")
    (mistake,) = report_of(p2pfl("check", ward, "--format", "json"))["mistakes"]
    assert mistake["file"] == str(ward / "node2" / "node.key")
    assert mistake["value"] == public_text(other.public)


def test_a_missing_and_an_open_key_are_found(p2pfl, ward):
    (ward / "node1" / "node.key").unlink()
    (ward / "node2" / "node.key").chmod(0o640)
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert [line.split(": ")[1] for line in outcome.err.splitlines()] == [
        f"{ward}/node1/node.key",
        f"{ward}/node2/node.key",
    ]


def test_folders_that_others_may_write_to_are_found(p2pfl, ward):
    (ward / "node1" / "state").mkdir()
    (ward / "node1" / "state").chmod(0o777)
    (ward / "node2").chmod(0o777)
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert [line.split(": ")[1] for line in outcome.err.splitlines()] == [f"{ward}/node1/state", f"{ward}/node2"]
    assert f"chmod 700 {ward}/node1/state" in outcome.err


def test_a_folder_that_is_not_here_is_no_mistake(p2pfl, ward):
    (ward / "node3").rename(ward.parent / "elsewhere")
    outcome = p2pfl("check", ward, "--format", "json")
    assert outcome.code == 0
    assert [member["here"] for member in report_of(outcome)["members"]] == [True, True, True, False]


def test_a_task_that_cannot_be_imported_is_one_mistake(p2pfl, ward, change):
    change("task.py", "import torch", "import torhc")
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert outcome.err.count("error: ") == 1
    assert "torhc" in outcome.err
    assert "not known before the mistakes are mended" in outcome.out


def test_data_that_is_not_there_is_the_mistake_of_its_node(p2pfl, ward, change):
    change("task.py", "load_digits()\n    rows", 'load_digits()\n    node.path("table_path")\n    rows')
    for index in (0, 1, 3):
        change(f"node{index}/node.toml", '# path = "data.npz"', 'table_path = "x.npz"')
    (mistake,) = report_of(p2pfl("check", ward, "--format", "json"))["mistakes"]
    assert (mistake["file"], mistake["key"]) == (str(ward / "node2" / "node.toml"), "data.table_path")


def test_two_neighbors_without_addresses_are_warned_of(p2pfl, ward, change):
    for port in (8470, 8471):
        change("federation.toml", f'address = "127.0.0.1:{port}"', "")
    warnings = report_of(p2pfl("check", ward, "--format", "json"))["warnings"]
    (warning,) = [warning for warning in warnings if "address" in warning]
    assert warning.startswith("neither node0 nor node1 has an address for the other to dial")
    assert "discovery = true in [network]" in warning


@pytest.mark.parametrize("listen", ["0.0.0.0:9471", "127.0.0.1:0"])
def test_a_node_that_listens_at_another_port_than_its_address_is_a_mistake(p2pfl, ward, change, listen):
    """Nobody could dial it: a launch waited for a minute in vain."""
    change("node1/node.toml", 'listen = "127.0.0.1:8471"', f'listen = "{listen}"')
    (mistake,) = report_of(p2pfl("check", ward, "--format", "json"))["mistakes"]
    assert (mistake["file"], mistake["key"]) == (str(ward / "node1" / "node.toml"), "node.listen")
    assert mistake["value"] == listen
    for word in (str(ward / "federation.toml"), "address", "127.0.0.1:8471"):
        assert word in mistake["message"]
    assert "forwarded_port = 8471" in mistake["allowed"]
    assert p2pfl("check", ward).code == 2


def test_the_memory_of_each_node_is_estimated(p2pfl, ward):
    report = report_of(p2pfl("check", ward, "--format", "json"))
    assert report["memory"].keys() == {"node0", "node1", "node2", "node3"}
    model, neighbors = 4 * report["traffic"]["parameters"], 2
    assert report["memory"]["node1"]["model"] == model
    assert report["memory"]["node1"]["replicas"] == 2 * neighbors * model
    assert report["members"][1]["memory_bytes"] == sum(report["memory"]["node1"].values())


def test_a_router_may_pass_another_port_on_if_the_node_file_says_which(p2pfl, ward, change):
    change("federation.toml", "127.0.0.1:8471", "203.0.113.5:9000")
    change("node1/node.toml", 'listen = "127.0.0.1:8471"', 'listen = "0.0.0.0:8471"\nforwarded_port = 9000')
    assert p2pfl("check", ward).code == 0
    change("node1/node.toml", "forwarded_port = 9000", "forwarded_port = 9001")
    (mistake,) = report_of(p2pfl("check", ward, "--format", "json"))["mistakes"]
    assert (mistake["key"], mistake["value"]) == ("node.forwarded_port", 9001)
    assert "203.0.113.5:9000" in mistake["message"]


def test_a_port_by_the_list_of_members_is_looked_up_there(p2pfl, tmp_path):
    p2pfl("new", "ward", "--nodes", "pi1,pi2", "--task", "digits", "--admin")
    p2pfl("member", "set", "ward", "--address", "pi2=127.0.0.1:9000", "--offline")
    (mistake,) = report_of(p2pfl("check", "ward", "--format", "json"))["mistakes"]
    assert str(tmp_path / "ward" / "members.toml") in mistake["message"]
    assert "p2pfl member set" in mistake["allowed"]


def test_the_graph_is_told_with_where_it_is_thin_and_whom_it_bears(p2pfl, ward, change):
    change("federation.toml", 'topology = "ring"', 'topology = "complete"')
    graph = report_of(p2pfl("check", ward, "--format", "json"))["graph"]
    assert (graph["vertex_connectivity"], graph["robustness"], graph["bridges"]) == ([3, 3], [2, 2], 0)
    assert graph["liars_per_node"] == {"mixes": 1, "guaranteed": [0, 0], "at_most": [1, 1]}
    assert graph["certified"] is True


def test_a_bottleneck_is_warned_of_by_name(p2pfl, ward, change):
    change("federation.toml", 'topology = "ring"', 'topology = "path"')
    outcome = p2pfl("check", ward)
    assert outcome.code == 0
    assert "node1-node2" in outcome.out
    assert "bridges" in outcome.out


def test_a_disk_without_room_for_two_snapshots_is_a_warning_and_a_volume_that_is_too_small_a_mistake(
    p2pfl, ward, monkeypatch
):
    monkeypatch.setattr("p2pfl.storage.disk.free_bytes", lambda _: 1000.0)
    outcome = p2pfl("check", ward)
    assert outcome.code == 0
    assert re.search(r"warning: .*state needs [\d,]+ bytes for the state, and there are 1,000", outcome.out)
    monkeypatch.setattr("p2pfl.storage.disk.volume_bytes", lambda _: 2000.0)
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert re.search(r"node\.toml: node\.state_dir: the volume is too small .*2,000 bytes", outcome.err)


def with_privacy(change, table):
    change("federation.toml", "[network]", f"[privacy]\n{table}\n\n[network]")


def test_privacy_is_the_noise_and_the_epsilon_of_each_node_that_is_here(p2pfl, ward, change):
    assert report_of(p2pfl("check", ward, "--format", "json"))["privacy"] is None
    shutil.rmtree(ward / "node3")
    with_privacy(change, 'noise = 1.5\ndelta = 1e-4\naccountant = "rdp"')
    report = report_of(p2pfl("check", ward, "--format", "json"))
    rows = {row["name"]: row for row in report["privacy"]["nodes"]}
    samples = {member["name"]: member["samples"] for member in report["members"] if member["here"]}
    assert rows.keys() == samples.keys() == {"node0", "node1", "node2"}
    for name, row in rows.items():
        spent = Spend(1.5, 16 / samples[name], 800)
        assert (row["noise"], row["sampling_rate"], row["steps"]) == spent
        assert row["epsilon"] == epsilon_of([spent], 1e-4, "rdp") < 10
    shown = p2pfl("check", ward, "--all")
    assert "for 40 rounds of each node, by RDP" in shown.out
    assert "`p2pfl sim run` says what to expect" in shown.out
    assert f"{rows['node0']['epsilon']:.4g}" in shown.out


def test_in_full_it_says_what_a_simulation_as_arrays_takes_or_why_there_is_none(p2pfl, ward, change):
    in_full = "check", ward, "--all", "--format", "json"
    takes = report_of(p2pfl(*in_full))["arrays"]["takes"]
    assert re.fullmatch("about .* of CPU for the rounds, .* MB of memory", takes)
    change("federation.toml", 'rule = "mean"', 'rule = "hampel:b=1"')
    refused = report_of(p2pfl(*in_full))["arrays"]["refused"]
    assert "gossip.rule: arrays cannot simulate this (found 'hampel:b=1'); allowed: mean; or --clock in-step" in refused


def test_check_says_where_a_budget_has_not_begun(p2pfl, ward, change):
    with_privacy(change, 'noise = 1.5\ndelta = 1e-4\naccountant = "rdp"')
    assert f"p2pfl privacy begin {ward}\n" in p2pfl("check", ward).out
    for name in ("node1", "node2"):
        (ward / name / "node.budget").touch()
    assert f"p2pfl privacy begin {ward} --node node0 --node node3\n" in p2pfl("check", ward).out
    for name in ("node0", "node3"):
        (ward / name / "node.budget").touch()
    assert "privacy begin" not in p2pfl("check", ward).out


def test_a_weak_promise_is_warned_of_and_one_that_cannot_be_kept_is_a_mistake(p2pfl, ward, change):
    with_privacy(change, 'noise = 0.3\ndelta = 1e-4\nunit = "member"\naccountant = "rdp"')
    outcome = p2pfl("check", ward)
    assert (outcome.code, "promises little" in outcome.out) == (0, True)
    change("federation.toml", 'delta = 1e-4\nunit = "member"', "delta = 0.1")
    outcome = p2pfl("check", ward, "--format", "json")
    assert outcome.code == 2
    keys = {mistake["key"] for mistake in report_of(outcome)["mistakes"]}
    assert keys == {"privacy.delta"}


@pytest.mark.long
def test_where_no_data_are_here_the_noise_of_members_is_known_and_that_of_rows_is_not(p2pfl, ward, change):
    for index in range(4):
        shutil.rmtree(ward / f"node{index}")
    with_privacy(change, "epsilon = 4.5\ndelta = 1e-4")
    assert "no node's data are here" in p2pfl("check", ward).out
    change("federation.toml", "epsilon = 4.5", 'epsilon = 4.5\nunit = "member"')
    rows = report_of(p2pfl("check", ward, "--format", "json"))["privacy"]["nodes"]
    assert [row["name"] for row in rows] == ["node0", "node1", "node2", "node3"]
    assert {row["samples"] for row in rows} == {None}


def test_without_opacus_check_says_once_what_to_install(p2pfl, ward, change, monkeypatch):
    with_privacy(change, "epsilon = 8.0\ndelta = 1e-4")
    monkeypatch.setattr("p2pfl.learn.privacy.accounting.find_spec", lambda _: None)
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert outcome.err.count("pip install '.[privacy]'") == 1


def test_a_model_that_mixes_rows_is_a_mistake_once_with_what_to_put_in_its_place(p2pfl, ward, change):
    with_privacy(change, 'noise = 1.5\ndelta = 1e-4\naccountant = "rdp"')
    change("task.py", "torch.nn.ReLU()", "torch.nn.BatchNorm1d(32)")
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert outcome.err.count("BatchNorm1d") == outcome.err.count("GroupNorm") == 1


def test_launch_refuses_references_with_privacy_before_anything_starts(p2pfl, ward, change):
    with_privacy(change, "epsilon = 8.0\ndelta = 1e-4")
    outcome = p2pfl("launch", ward, "--references")
    assert outcome.code == 2
    assert "--references" in outcome.err
    assert not (ward / "report.json").exists()


@pytest.mark.parametrize("place", ["federation.toml", "node0/node.toml", "task.py", "graph.txt"])
def test_a_named_pipe_in_place_of_a_file_is_refused_and_not_waited_for(p2pfl, ward, change, place):
    if place == "graph.txt":
        change("federation.toml", '"ring"', '"graph.txt"')
    (ward / place).unlink(missing_ok=True)
    os.mkfifo(ward / place)
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert place in outcome.err


def test_a_state_folder_that_is_a_link_is_refused_with_the_folder_to_name(p2pfl, ward, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (ward / "node0/state").symlink_to(tmp_path / "elsewhere")
    outcome = p2pfl("check", ward)
    assert outcome.code == 2
    assert "node0/state: the state folder is a symbolic link" in outcome.err
    assert str(tmp_path / "elsewhere") in outcome.err


def test_a_state_of_a_newer_version_is_a_mistake(p2pfl, ward):
    with closing(Store.open(ward / "node0/state", durability="snapshot")) as store:
        store.checkpoint(State(header={"format": 99}, arrays={}, blobs={}))
    outcome = p2pfl("check", "ward")
    assert outcome.code == 2
    assert "node0/state: state has format 99, this software reads 3; allowed: the version that wrote it" in outcome.err


def test_of_many_mistakes_the_first_twenty_are_printed_and_the_rest_counted(p2pfl, tmp_path):
    (tmp_path / "federation.toml").write_text('[federation]\nname = "many"\n' + "[[node]]\n" * 30)
    outcome = p2pfl("check", tmp_path / "federation.toml", "--format", "json")
    assert outcome.code == 2
    *shown, last = outcome.err.splitlines()
    assert len(shown) == len(report_of(outcome)["mistakes"]) == 20
    assert last == f"error: and {report_of(outcome)['mistakes_in_all'] - 20} more"


def test_fair_says_when_it_helps(p2pfl, ward, change):
    change("federation.toml", '# method = "variate:beta=0.1"', 'method = "fair:q=1"')
    warnings = report_of(p2pfl("check", ward, "--format", "json"))["warnings"]
    assert any(text.startswith("method fair: helps the worst node where no model suits all") for text in warnings)


def test_frozen_parameters_that_are_sent_in_vain_are_warned_of(p2pfl, ward, change):
    change("task.py", "torch.nn.Linear(64, 32)", "torch.nn.Linear(64, 32).requires_grad_(False)")
    assert "never trained" not in p2pfl("check", ward).out
    change("federation.toml", "share_frozen = false", "share_frozen = true")
    found = report_of(p2pfl("check", ward, "--format", "json"))
    assert (found["traffic"]["parameters"], found["traffic"]["frozen_parameters"]) == (2410, 2080)
    assert any(warning.startswith("2080 of 2410 values that nodes send are never") for warning in found["warnings"])
