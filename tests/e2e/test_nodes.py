"""Nodes as a user runs them: real processes, real sockets, real files; killed, stopped and started with mistakes."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
from contextlib import ExitStack

import pytest
from ports import free_ports
from pushes_kit import PUSHES, check_nothing_lost
from real_field import DEADLINE_S, P2PFL, Field, processes

from p2pfl.cli.main import main
from p2pfl.config import load_config
from p2pfl.node import replay
from p2pfl.storage import peek

ENDLESS = 100_000
"""rounds: whatever is held up meanwhile, no node ends by itself."""


@pytest.fixture
def federation(tmp_path):
    """What `p2pfl new` makes, with other values for some keys of federation.toml."""

    def federation(nodes, *, task, **values):
        return Field(tmp_path / "ward", nodes, task=task, **{"linger_s": 20.0, **values})

    return federation


@pytest.fixture
def run():
    """Start nodes; none outlives the test."""
    with ExitStack() as stack:
        runs = {}

        def run(field, name):
            if field.folder not in runs:
                runs[field.folder] = stack.enter_context(processes(field))
            return runs[field.folder](name)

        yield run


def rounds_on_disk(field, name):
    return replay(peek(field.state(name))).rounds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compressor", "times"),
    [
        pytest.param("none", 2, marks=pytest.mark.long),
        ("q4", 1),
        pytest.param("fragment:4", 2, marks=pytest.mark.long),
        pytest.param("fragment:4+bf16", 2, marks=pytest.mark.long),
    ],
)
def test_two_of_four_nodes_are_killed_and_nothing_is_lost(federation, run, compressor, times):
    """Low members initiate on their edges, high ones respond: one of each is killed, at points drawn anew.

    Afterwards both ends of every edge hold the same bits, and the weighted sum of all models is that of the beginning.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - replays a failure
    chance = random.Random(seed)
    rounds = 30
    field = federation(
        4,
        task='name = "pushes.py:task"',
        topology="hypercube",
        compressor=compressor,
        rounds=rounds,
        method="plain",
    )
    (field.folder / "pushes.py").write_text(PUSHES, encoding="utf-8")
    names = field.names
    running = {name: run(field, name) for name in names}
    victims = [names[chance.randrange(2)], names[chance.randrange(2, 4)]]
    kills = sorted((chance.uniform(0.1, 0.6) * rounds, victim) for victim in victims * times)
    for at, victim in kills:
        running[victim].until(
            lambda at=at, victim=victim: running[victim].rounds >= at and rounds_on_disk(field, victim) > 0,
            f"round {at}",
        )
        running[victim].kill()
        running[victim] = run(field, victim)
    (field.folder / "go").touch()
    assert [running[name].end() for name in names] == [0] * 4
    for victim in victims:
        assert int(re.search(r"resuming after round (\d+)", running[victim].log)[1]) > 0
    for name in names:
        result = field.result(name)
        assert result["finished"]
        assert result["alarms"].keys() <= {"takes-no-part"}, "on a busy machine a start takes seconds"
        assert result["rounds"] >= rounds
        assert [neighbor["resyncs"] for neighbor in result["neighbors"]] == [0, 0]
    check_nothing_lost(field.folder)


@pytest.fixture
def relay(tmp_path):
    """Start relays that know a token; none outlives the test."""
    started = []

    def relay(port):
        with (tmp_path / f"relay{len(started)}.log").open("w") as log:
            command = [*P2PFL, "relay", "--listen", f"127.0.0.1:{port}", "--token", str(tmp_path / "relay.token")]
            started.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        return started[-1]

    with pytest.raises(SystemExit):
        main(["relay", "--make-token", str(tmp_path / "relay.token")])
    yield relay
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(DEADLINE_S)


@pytest.mark.long
def test_nodes_without_a_port_that_others_reach_lose_nothing_when_their_relay_is_killed(federation, run, relay):
    """Each of two relays is killed once, in turn, and is back before the other one goes."""
    ports, rounds = free_ports(2), 30
    field = federation(4, task='name = "pushes.py:task"', topology="hypercube", rounds=rounds, method="plain")
    (field.folder / "pushes.py").write_text(PUSHES, encoding="utf-8")
    text = re.sub(r"(?m)^address = .*\n", "", field.file.read_text(encoding="utf-8"))
    field.file.write_text(text, encoding="utf-8")
    field.set(relays=[f"ws://127.0.0.1:{port}" for port in ports])
    names = field.names
    for name in names:
        field.set_node(name, listen="127.0.0.1:0")
        with (field.folder / name / "node.toml").open("a", encoding="utf-8") as own:
            own.write('[network]\nrelay_token = "../../relay.token"\n')
    relays = [relay(port) for port in ports]
    running = {name: run(field, name) for name in names}
    for number, at in ((0, 6), (1, 14)):
        running["node0"].until(lambda at=at: min(one.rounds for one in running.values()) >= at, "rounds")
        relays[number].kill()
        relays[number].wait(DEADLINE_S)
        running["node0"].until(lambda at=at: min(one.rounds for one in running.values()) >= at + 5, "rounds")
        relays[number] = relay(ports[number])
        for one in running.values():
            url = f"ws://127.0.0.1:{ports[number]}/p2pfl"
            one.until(lambda one=one, url=url: one.log.count(f"registered at relay {url}") >= 2, "the relay")
    (field.folder / "go").touch()
    assert [running[name].end() for name in names] == [0] * 4
    for name in names:
        result = field.result(name)
        assert result["finished"]
        assert result["alarms"].keys() <= {"takes-no-part", "relay-lost"}, "on a busy machine a start takes seconds"
        assert [neighbor["resyncs"] for neighbor in result["neighbors"]] == [0, 0]
        assert [neighbor["faults"] for neighbor in result["neighbors"]] == [{}, {}]
    check_nothing_lost(field.folder)


@pytest.mark.long
def test_a_signal_ends_a_node_cleanly_with_130_and_a_snapshot_from_which_it_resumes(federation, run):
    field = federation(2, task='name = "quadratic"\nstep_s = 0.02', topology="complete", rounds=ENDLESS)
    first, second = run(field, "node0"), run(field, "node1")
    for process in (first, second):
        process.until_round(3)
    first.popen.send_signal(signal.SIGINT)
    second.popen.send_signal(signal.SIGTERM)
    assert (first.end(), second.end()) == (130, 130)
    stopped = [field.result(name)["rounds"] for name in ("node0", "node1")]
    for name, rounds, process in zip(("node0", "node1"), stopped, (first, second), strict=True):
        assert "Traceback" not in process.log
        assert not field.result(name)["finished"]
        loaded = peek(field.state(name))
        assert (loaded.state.header["rounds"], loaded.records) == (rounds, [])
    more = max(stopped) + 20
    field.set(rounds=more)
    again = [run(field, "node0"), run(field, "node1")]
    assert [process.end() for process in again] == [0, 0]
    for name, rounds, process in zip(("node0", "node1"), stopped, again, strict=True):
        assert f"resuming after round {rounds}\n" in process.log
        result = field.result(name)
        assert result["finished"]
        assert result["rounds"] >= more
        assert [neighbor["resyncs"] for neighbor in result["neighbors"]] == [0]


def answer_of(process, p2pfl, url):
    """What `p2pfl status` prints once the node answers: one that is held up may be asked in vain."""
    asked = []

    def answers():
        asked.append(p2pfl("status", url, "--format", "json"))
        return asked[-1][0] == 0

    process.until(answers, "an answer")
    return json.loads(asked[-1][1])


@pytest.mark.long
def test_a_node_can_be_asked_and_evaluated_while_it_runs_and_evaluated_after_a_kill(federation, run, p2pfl):
    """And no second process can have its state meanwhile."""
    field = federation(2, task='name = "quadratic"\nstep_s = 0.1', topology="complete", rounds=ENDLESS)
    nodes = [run(field, "node0"), run(field, "node1")]
    nodes[0].until(lambda: nodes[0].rounds >= 3 and rounds_on_disk(field, "node0") > 0, "a round on disk")
    url = re.search(r"status: (http://\S+)", nodes[0].log)[1]
    (row,) = answer_of(nodes[0], p2pfl, url)
    assert (row["node"], row["phase"], row["of"], row["alarms"]) == ("node0", "training", ENDLESS, {})
    assert row["round"] >= 3
    second = run(field, "node0")
    assert second.end() == 2
    *_, line = second.log.splitlines()
    assert_names(line, "error: ", field.folder / "node0" / "state", "in use by another process", "allowed: ")
    running = json.loads(p2pfl("evaluate", field.folder / "node0", "--format", "json")[1])
    assert running["rounds"] > 0
    nodes[0].kill()
    killed = json.loads(p2pfl("evaluate", field.folder / "node0", "--format", "json")[1])
    assert killed["rounds"] >= running["rounds"]
    assert p2pfl("status", url)[0] == 1
    nodes[1].popen.send_signal(signal.SIGTERM)
    assert nodes[1].end() == 130


@pytest.fixture
def mistaken(federation, p2pfl):
    """Two nodes of a small task; `text` of node0's run that must fail."""
    field = federation(2, task='name = "quadratic"', topology="complete", start_wait_s=0.1, linger_s=0.1, rounds=2)

    def mistaken():
        code, out, error = p2pfl("run", field.folder, "--node", "node0")
        assert (code, out) == (2, ""), error
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        return error

    mistaken.field = field
    return mistaken


def assert_names(text, *parts):
    for part in parts:
        assert str(part) in text


@pytest.mark.parametrize("key", ["listen", "status_listen"])
def test_a_port_in_use_is_named_with_the_file(mistaken, key):
    file = mistaken.field.folder / "node0" / "node.toml"
    own = int(re.search(r'(?m)^listen = "127.0.0.1:(\d+)"', file.read_text())[1])
    with socket.create_server(("127.0.0.1", own if key == "listen" else 0)) as taken:
        port = taken.getsockname()[1]
        mistaken.field.set_node("node0", **{key: f"127.0.0.1:{port}"})
        assert_names(mistaken(), file, f"node.{key}", port, "allowed: ")
    assert not (mistaken.field.folder / "node0" / "state").exists()


def test_the_key_of_another_node_is_named_with_both_keys(mistaken, p2pfl):
    folder = mistaken.field.folder
    (folder / "node0" / "node.key").write_bytes((folder / "node1" / "node.key").read_bytes())
    text = mistaken()
    assert_names(text, folder / "node0" / "node.key", "public key", "node0")
    for member in load_config(folder).members:
        assert p2pfl("key", folder / member.name / "node.key")[0] == 0
    assert_names(text, p2pfl("key", folder / "node1" / "node.key")[1].strip(), "allowed: ")


def test_a_run_without_the_name_of_its_node_is_a_mistake(mistaken, p2pfl):
    code, out, error = p2pfl("run", mistaken.field.folder)
    assert (code, out) == (2, "")
    assert_names(error, "--node")
    assert "Traceback" not in error
