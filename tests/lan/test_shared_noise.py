"""Boards on a LAN learn by sums while a cable is pulled and a node is killed: all end with the same model."""

from __future__ import annotations

import pytest
from boards import P2PFL, Boards

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ROUNDS = 60
PRIVACY = '\n[privacy]\nepsilon = 8\nnoise = "shared"\ndelta = 1e-5\ntest_set = "public"\nleast = 4\n'


HIDDEN = '\n[privacy]\nhide = "models"\n'


class PrivateBoards(Boards):
    """Six boards that learn the digits; a round needs four of them."""

    def __init__(self, lan, folder, privacy=PRIVACY, rate=2.0):
        super().__init__(lan, folder, 6, topology="circulant:offsets=1-2", addresses=True, discovery="false")
        for name in self.names:
            file = self.board(name) / "federation.toml"
            text = file.read_text(encoding="utf-8").replace('name = "quadratic"\nstep_s = 0.05', 'name = "digits"')
            text = text.replace("rounds = 100000", f"rounds = {ROUNDS}\nlearning_rate = {rate}")
            file.write_text(text.replace("[network]", f"{privacy}[network]"), encoding="utf-8")
            if "epsilon" not in privacy:
                continue
            done = self.hosts[name].run(*P2PFL, "privacy", "begin", self.board(name), "--node", name)
            assert done.returncode == 0, done.stderr


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
    for name in boards.names:
        boards.wait_for(lambda name=name: boards.processes[name].poll() is not None, f"the end of {name}")
        assert boards.processes[name].returncode == 0, boards.logs()
    results = {name: boards.result(name) for name in boards.names}
    assert {one["rounds"] for one in results.values()} == {ROUNDS}
    assert len({(one["accuracy"], one["test_loss"]) for one in results.values()}) == 1
    assert results["pi1"]["accuracy"] > 0.8
    assert all(one["privacy"]["epsilon"] <= 8 for one in results.values() if privacy == PRIVACY)
