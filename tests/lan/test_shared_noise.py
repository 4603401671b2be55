"""Boards on a LAN learn by sums while a cable is pulled, a node killed or slow or behind a relay: one model each."""

from __future__ import annotations

import subprocess

import pytest
from boards import P2PFL, Boards

from p2pfl.node import read_learned

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ROUNDS = 60
PRIVACY = '\n[privacy]\nepsilon = 8\nnoise = "shared"\ndelta = 1e-5\ntest_set = "public"\nleast = 4\n'


HIDDEN = '\n[privacy]\nhide = "models"\n'


class PrivateBoards(Boards):
    """Six boards that learn the digits, or another task; a round needs four of them."""

    def __init__(self, lan, folder, privacy=PRIVACY, rate=2.0, *, relay=None, **settings):
        own = {"topology": "circulant:offsets=1-2", "addresses": relay is None, "discovery": "false", "rounds": ROUNDS}
        super().__init__(lan, folder, 6, **own | settings)
        for name in self.names:
            file = self.board(name) / "federation.toml"
            text = file.read_text(encoding="utf-8")
            if "step_s" not in settings:
                text = text.replace('name = "quadratic"\nstep_s = 0.05', 'name = "digits"')
            text = text.replace("[gossip]", f"learning_rate = {rate}\n[gossip]")
            via = "" if relay is None else f'relays = ["ws://{relay.ipv4}:8443"]\n'
            file.write_text(text.replace("[network]", f"{privacy}[network]\n{via}"), encoding="utf-8")
            if "epsilon" not in privacy:
                continue
            done = self.hosts[name].run(*P2PFL, "privacy", "begin", self.board(name), "--node", name)
            assert done.returncode == 0, done.stderr

    def results(self):
        """The results of all, once they have ended, with one model."""
        for name in self.names:
            self.wait_for(lambda name=name: self.processes[name].poll() is not None, f"the end of {name}")
            assert self.processes[name].returncode == 0, self.logs()
        assert len({read_learned(self.board(name) / name).vector.tobytes() for name in self.names}) == 1
        results = {name: self.result(name) for name in self.names}
        assert {one["rounds"] for one in results.values()} == {self.settings["rounds"]}
        return results


@pytest.mark.parametrize(("privacy", "rate"), [(PRIVACY, 2.0), (HIDDEN, 0.1)], ids=["shared noise", "hidden models"])
def test_a_cable_and_a_kill_cost_a_wait_and_all_end_with_one_model(privacy, rate, lan, tmp_path):
    """With hidden models both are of one group, which is left out."""
    boards = PrivateBoards(lan, tmp_path / "ward", privacy, rate)
    boards.start_all()
    boards.wait_for(lambda: boards.rounds("pi1") >= 3, "rounds of all")

    boards.hosts["pi2"].pull()
    boards.processes["pi3"].kill()
    boards.processes["pi3"].wait()
    before = boards.rounds("pi1")
    boards.wait_for(lambda: boards.rounds("pi1") > before + 3, "rounds of the other four")

    boards.hosts["pi2"].plug()
    boards.start("pi3")
    boards.wait_for(lambda: boards.rounds("pi3") > before, "the state of the others at the one that was killed")
    results = boards.results()
    assert len({(one["accuracy"], one["test_loss"]) for one in results.values()}) == 1
    assert results["pi1"]["accuracy"] > 0.8
    assert all(one["privacy"]["epsilon"] <= 8 for one in results.values() if privacy == PRIVACY)


@pytest.mark.parametrize(("slow_s", "is_in"), [(4.5, True), (30.0, False)])
def test_one_half_slower_is_in_all_sums_and_one_ten_times_slower_takes_its_group_out(slow_s, is_in, lan, tmp_path):
    boards = PrivateBoards(lan, tmp_path / "ward", HIDDEN, 0.1, step_s=3.0, rounds=10)
    with (boards.board("pi2") / "pi2" / "node.toml").open("a") as file:
        file.write(f"[data]\nstep_s = {slow_s}\n")
    boards.start_all()
    results = boards.results()
    for name in ("pi1", "pi3", "pi6"):
        assert results[name]["alarms"].get("left-out", 0) == (0 if is_in else 1)
        assert results[name]["features"]["shared_noise"]["members_in_the_latest_sum"] == (6 if is_in else 3)


def test_all_behind_one_relay_end_with_one_model_even_if_it_is_started_again(lan, tmp_path):
    hub, token = lan.host("hub"), tmp_path / "relay.token"
    boards = PrivateBoards(lan, tmp_path / "ward", HIDDEN, 0.1, relay=hub, step_s=0.2, rounds=20)
    assert hub.run(*P2PFL, "relay", "--make-token", token).returncode == 0
    for name in boards.names:
        with (boards.board(name) / name / "node.toml").open("a") as file:
            file.write(f'[network]\nrelay_token = "{token}"\n')

    def serve():
        words = (*P2PFL, "relay", "--listen", "0.0.0.0:8443", "--token", token)
        return hub.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    relay = serve()
    boards.start_all()
    boards.wait_for(lambda: boards.rounds("pi1") >= 3, "rounds of all")
    relay.kill()
    relay.wait()
    serve()
    boards.results()
