"""`p2pfl audit`: one table, exit codes, and one clear error for a mistake."""

import json

import pytest

from p2pfl import Federation
from p2pfl.cli.main import main
from sim import Auditor, audit


@pytest.fixture
def ward(tmp_path, monkeypatch):
    """A federation to attack; without an accountant, which takes seconds and is tested elsewhere."""
    monkeypatch.setattr("p2pfl.learn.privacy.plan.noise_for", lambda *_: 2.0)
    monkeypatch.setattr("p2pfl.learn.privacy.plan.epsilon_of", lambda spent, *_: 0.1 * sum(one.steps for one in spent))
    return Federation(task="digits", nodes=3, rounds=1, local_steps=1, options={"hidden": 16}).save(tmp_path / "ward")


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments], command=audit, name="p2pfl audit")
    return ended.value.code


def test_the_table_has_attacks_layers_epsilon_and_accuracy(ward, capsys):
    assert run(ward, "--quick", "--attacks", "rank-one") == 0

    said = capsys.readouterr()
    for text in ("no layer", "q4", "record, epsilon 8", "one row a step, rank one", "(100%)", "accuracy, mean"):
        assert text in said.out
    assert "what neighbors learn of the 479 rows of node0" in said.out
    assert said.err.startswith("  "), "how far it is"


@pytest.mark.long
def test_json_has_every_figure(ward, capsys):
    assert run(ward, "--quick", "--attacks", "rank-one", "--format", "json") == 0

    rows = json.loads(capsys.readouterr().out)["rows"]
    rebuilt = [row for row in rows if row["attack"] == "one row a step, rank one" and row["unit"] == "dB"]
    assert [row["place"] for row in rebuilt] == ["simulator", "real nodes"]
    exact = rebuilt[0]
    assert exact["values"]["no layer"] > 60
    assert exact["values"]["record, epsilon 8"] < 20


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_whole_audit_with_real_nodes_ends_with_a_table(ward, capsys):
    assert run(ward) == 0

    said = capsys.readouterr()
    for text in ("real nodes", "figures told of private rows", "epsilon proven by the canary", "membership, AUC"):
        assert text in said.out


def test_json_goes_to_stdout_and_a_mistake_in_the_mechanism_is_an_error(ward, capsys, monkeypatch):
    monkeypatch.setattr(Auditor, "try_canary", lambda self: self.findings.mistakes.append("too quiet"))

    assert run(ward, "--quick", "--attacks", "canary", "--format", "json", "--quiet") == 1

    said = capsys.readouterr()
    assert json.loads(said.out)["mistakes"] == ["too quiet"]
    assert said.err == "error: too quiet\n"


def test_sums_are_attacked_without_any_data(tmp_path, capsys):
    ward = Federation(task="digits", nodes=4).save(tmp_path / "ward")

    assert run(ward, "--attacks", "sums", "--quick", "--node", "node3", "--format", "json") == 0

    found = json.loads(capsys.readouterr().out)
    assert found["held"] == 1
    assert [row["as promised"] for row in found["rows"]] == ["yes", "-", "-"]
    assert found["rows"][2]["learn"] == "the vector of node3: the sum less their own"

    assert run(ward, "--attacks", "sums", "--quick", "--node", "node3") == 0

    said = capsys.readouterr()
    assert "what members learn of the vector of node3" in said.out
    assert "no coalition of up to 1 that was tried learned more than the sum of the others (promised is 1)" in said.out
    assert said.err.startswith("  sums that nothing disturbs")


@pytest.fixture
def hidden(tmp_path):
    how = {"options": {"partition": "shards:2", "hidden": 16}, "learning_rate": 0.1, "local_steps": 20}
    privacy = {"hide": "models", "colluders": 2}
    return Federation(task="digits", nodes=8, rounds=2, privacy=privacy, **how).save(tmp_path / "w")


def test_before_and_after_are_in_one_table(hidden, capsys):
    assert run(hidden, "--attacks", "differences", "--format", "json") == 0

    found = json.loads(capsys.readouterr().out)
    assert found["layers"] == ["gossip", "hidden, 8 bits", "hidden alone"]
    rows = {row["attack"]: [*row["values"].values()] for row in found["rows"]}
    gossip, group, alone = rows["labels by one round, AUC"]
    assert min(gossip, alone) > 0.9
    assert group < alone - 0.15
    none, left, nothing = rows["labels by one round, 2 colluding, AUC"]
    assert (none, nothing) == (None, None)
    assert group < left < alone
    assert rows["labels by two rounds, AUC"][1] < rows["labels by two rounds, AUC"][2] < alone


def test_differences_are_a_default_of_hidden_models_with_the_promised_colluders(ward, hidden, capsys, monkeypatch):
    tried = []
    monkeypatch.setattr(Auditor, "run", lambda self: tried.append(self.attacks) or self.findings)

    assert (run(ward), run(hidden), run(ward, "--attacks", "differences")) == (0, 0, 0)
    assert ["differences" in attacks for attacks in tried] == [False, True, True]
    assert run(hidden, "--colluders", "4") == 2
    read = capsys.readouterr()
    assert "--colluders: too many (found 4); allowed: 1 to 3: the smallest group has 4 members" in read.err
    assert run(hidden, "--attacks", "sums", "--quick", "--format", "json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["promised"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--attacks", "sums,told"], "--attacks: attacks no rows, but sums (found 'sums'); allowed: sums by itself"),
        (["--attacks", "sums", "--colluders", "2"], "--colluders: too many (found 2); allowed: up to 1 of 3 members"),
        (["--attacks", "sums", "--node", "nobody"], "no such node"),
        (["--colluders", "1"], "--colluders: is for sums (found 1); allowed: with --attacks sums"),
        (
            ["--attacks", "guess"],
            "--attacks: no such attack (found 'guess'); allowed: rank-one, inversion, membership, told, canary, differ",
        ),
        (["--attacks", ""], "--attacks: no such attack"),
        (["--attacks", "steps"], "--attacks: steps is gone: it tries the mechanism, not a federation"),
        (["--simulated"], "--simulated is gone: real nodes, in this process, are attacked in any case"),
        (["--node", "nobody"], "no such node"),
    ],
)
def test_bad_input_is_one_clear_error(ward, capsys, arguments, said):
    assert run(ward, *arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
