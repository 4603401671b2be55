"""Five machines on a LAN sum while one is killed or loses its cable: a sum is that of whom it names, or is refused."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import pytest
from boards import Boards

from p2pfl.features.sums import KeptSums

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

DEADLINE_S = 400.0
"""On a busy machine waits are measured longer, and a sum may take ten of them until it is refused."""
KBIT_PER_S = 20_000
SCRIPT = """
import asyncio, json, sys
sys.path.insert(0, KIT)
import numpy as np
from sum_sessions import open_talk
from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.crypto.identity import Identity
from p2pfl.features.sums.arithmetic import numbers_of
from p2pfl.features.sums.messages import SumDone
from p2pfl.features.sums.sessions import next_life, settings_of
from p2pfl.features.sums.setup import SumSetup

folder, name, salt = sys.argv[1:]
federation = load_config(folder)
node = load_node(node_file(federation, name), federation, name)
names = [member.name for member in federation.members]
masked = SumSetup.masked


def part(name):
    long = np.arange(100_000) % 7 + 10 ** int(name[2:]) + int(salt)
    return {"ones": np.array(10 ** int(name[2:])), "long": long}


def telling(*given):
    vector = masked(*given)
    print(json.dumps({"masked": True}), flush=True)
    return vector


async def main():
    SumSetup.masked = telling
    numbers = numbers_of(part(name), 0, 10**6, len(names))
    settings = settings_of(federation, names.index(name), life=next_life(node.state_dir), sums=2)
    identity = Identity.load(node.key_file)
    door = open_talk(federation, settings, identity, listen=node.listen, folder=node.state_dir, first_wait_s=2.0)
    async with door as talk:
        ended = await talk.sum("x", numbers.encode(part(name)), numbers.terms("x"))
        await talk.farewell(ended.members if isinstance(ended, SumDone) else ())
    if not isinstance(ended, SumDone):
        print(json.dumps({"refused": ended.reason}), flush=True)
        return
    parts, total = [part(names[member]) for member in ended.members], numbers.decode(ended.total, len(ended.members))
    right = all(np.array_equal(total[key], sum(each[key] for each in parts)) for key in ("ones", "long"))
    print(json.dumps({"members": [names[member] for member in ended.members], "right": right}), flush=True)


asyncio.run(main())
""".replace("KIT", repr(str(Path(__file__).parents[1] / "sums")))


class Summing(Boards):
    """Five machines with slow links, so that the vector of a sum is on its way for a while."""

    def __init__(self, lan, folder, topology):
        super().__init__(lan, folder, 5, topology=topology, addresses=True, discovery="false")
        for host in self.hosts.values():
            host.slow(kbit_per_s=KBIT_PER_S)
        self.salt = 0

    def start(self, name):
        path = self.board(name) / f"said-{self.salt}"
        with path.open("ab") as said, (self.board(name) / "log").open("ab") as log:
            command = sys.executable, "-c", SCRIPT, self.board(name), name, self.salt
            self.processes[name] = self.hosts[name].start(*command, stdout=said, stderr=log)

    def sum(self, names=None, *, salt=None):
        """Begin the next sum, of numbers that differ from those of all before it."""
        self.salt = self.salt + 1 if salt is None else salt
        self.processes.clear()
        for name in names or self.names:
            self.start(name)

    def said(self, name):
        text = (self.board(name) / f"said-{self.salt}").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def until_masked(self, name):
        self.wait_for(lambda: any("masked" in each for each in self.said(name)), f"the masked vector of {name}")

    def outcomes(self, names=None):
        """What each got: the members of its sum, which is right, or the text of its one refusal."""
        end, found = time.monotonic() + DEADLINE_S, {}
        for name in names or self.names:
            code = self.processes[name].wait(timeout=max(1.0, end - time.monotonic()))
            last = self.said(name)[-1]
            assert code == 0, self.logs()
            assert last.get("right", True), f"a wrong sum at {name}: {last}"
            found[name] = tuple(last["members"]) if "members" in last else last["refused"]
        for members in found.values():
            if isinstance(members, tuple):
                assert len(members) >= 3
        return found

    def remembers(self, name):
        """How many sums its state folder tells of."""
        return len(KeptSums(self.board(name) / name / "state").past)


@pytest.fixture(params=["ring", "circulant:offsets=1-2"])
def five(lan, tmp_path, request):
    return Summing(lan, tmp_path / "ward", request.param)


def everybody_sums(five):
    """A sum of all, and how long a vector was on its way in it; each remembers one sum more."""
    before = {name: five.remembers(name) for name in five.names}
    five.sum()
    five.until_masked("pi1")
    began = time.monotonic()
    assert five.outcomes() == dict.fromkeys(five.names, tuple(five.names))
    assert {name: five.remembers(name) - before[name] for name in five.names} == dict.fromkeys(five.names, 1)
    return time.monotonic() - began


def one_sum(outcomes):
    """The members of the one sum that came about; None: all were refused."""
    sums = {outcome for outcome in outcomes.values() if isinstance(outcome, tuple)}
    assert len(sums) <= 1, outcomes
    return next(iter(sums), None)


@pytest.mark.parametrize("seed", range(3))
def test_one_that_is_killed_in_the_middle_is_in_the_sum_or_not_and_sums_again(five, seed):
    chance = random.Random(seed)
    wide_s = everybody_sums(five)
    for victim in chance.sample(five.names, 2):
        others = [name for name in five.names if name != victim]
        five.sum()
        five.until_masked(victim)
        time.sleep(chance.random() * wide_s)
        five.kill(victim)
        outcomes = five.outcomes(others)
        members = one_sum(outcomes)
        assert members is None or set(others) <= set(members)
        everybody_sums(five)
    five.sum(five.names[1:], salt=1)
    for name, outcome in five.outcomes(five.names[1:]).items():
        assert "too near to an earlier sum of these data" in outcome, (name, outcome)


def pull_for_a_while(five, victim, chance):
    five.hosts[victim].pull()
    time.sleep(chance.random() * 8)
    five.hosts[victim].plug()


def kill_and_start(five, victim, chance):
    del chance
    five.kill(victim)
    five.start(victim)


@pytest.mark.parametrize("disturb", [pull_for_a_while, kill_and_start])
@pytest.mark.parametrize("seed", range(3))
def test_one_that_is_disturbed_in_the_middle_ends_with_a_sum_or_a_refusal(five, seed, disturb):
    chance = random.Random(seed)
    wide_s = everybody_sums(five)
    victim = chance.choice(five.names)
    five.sum()
    five.until_masked(victim)
    time.sleep(chance.random() * wide_s)
    disturb(five, victim, chance)
    outcomes = five.outcomes()
    if disturb is pull_for_a_while:
        one_sum(outcomes)
    everybody_sums(five)
