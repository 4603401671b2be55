"""What the doctor concludes from what was sent, heard and answered; and the command, from the outside."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_interface

import pytest

from p2pfl.cli.main import main
from p2pfl.config import load_config
from p2pfl.features.lan import (
    AddressTried,
    Announced,
    Answer,
    AnswerKind,
    Diagnosis,
    Interface,
    Member,
    Patient,
    Tally,
    _cells,
    _member_row,
    _of_members,
    _of_the_lan,
)

ETH0 = Interface(name="eth0", index=2, addresses=(ip_interface("192.168.1.10/24"),))
ANSWERS = Answer(kind=AnswerKind.MEMBER)


@pytest.fixture
def ward(tmp_path):
    folder = tmp_path / "ward"
    with pytest.raises(SystemExit) as made:
        main(["new", str(folder), "--nodes", "3"])
    assert made.value.code == 0
    file = folder / "federation.toml"
    file.write_text(
        file.read_text().replace("# discovery = false", "discovery = true").replace("127.0.0.1", "192.168.1.9")
    )
    return load_config(folder)


def diagnosis(ward, *, discovery=True, answer=ANSWERS, heard=(), skipped=(), **tally):
    """Node 0 is here; node 1 has that answer at its listed address; node 2 is well."""
    first, second, third = ward.members
    patients = [
        Patient(member=first, here=True),
        Patient(member=second, here=False, heard=list(heard)),
        Patient(member=third, here=False),
    ]
    for patient, found in zip(patients[1:], (answer, ANSWERS), strict=True):
        patient.places.append(AddressTried(address=patient.member.address, via=("file",), answer=found))
    tallies = [] if skipped else [Tally(**({"interface": ETH0} | tally))]
    return Diagnosis(
        federation=ward,
        discovery=discovery,
        node="node0",
        tallies=tallies,
        skipped=list(skipped),
        patients=patients,
    )


def of_the_lan(*arguments, **more):
    return [problem.text for problem in _of_the_lan(diagnosis(*arguments, **more))]


def of_members(*arguments, **more):
    return [problem.text for problem in _of_members(diagnosis(*arguments, **more))]


def test_where_others_are_heard_nothing_is_wrong_with_the_lan(ward):
    assert of_the_lan(ward, sent=8, heard_own=8, heard_others=3) == []


def test_who_is_reached_at_an_address_and_not_heard_speaks_for_the_same(ward):
    (text,) = of_the_lan(ward, sent=8, heard_own=8)
    assert text.startswith("eth0: multicast is blocked on the way: sent 8 questions, heard 8 packets of this machine")
    assert text.endswith("but node1, node2 can be reached by address")


def test_who_does_not_hear_even_itself_has_a_firewall(ward):
    (text,) = of_the_lan(ward, sent=8)
    assert "blocked on this machine" in text


def test_who_is_alone_cannot_tell_and_says_so(ward):
    found = diagnosis(ward, sent=8, heard_own=8)
    for patient in found.patients:
        patient.places.clear()
    (problem,) = _of_the_lan(found)
    assert "There is none, or multicast is blocked" in problem.text
    assert "on another machine at the same time" in problem.remedy


def test_a_machine_without_a_usable_interface_is_told_which_there_are(ward):
    skipped = [Interface(name="docker0", index=3, addresses=(), skipped="a bridge")]
    assert of_the_lan(ward, skipped=skipped) == ["no network interface is used: docker0 (a bridge)"]


def test_a_node_that_listens_on_loopback_is_told_why_it_is_alone(ward):
    alone = Interface(name="lo", index=1, addresses=(ip_interface("127.0.0.1/8"),), loopback=True)
    assert of_the_lan(ward, interface=alone) == []
    (text,) = of_the_lan(ward, interface=alone, answer=Answer(kind=AnswerKind.REFUSED))
    assert text.startswith("node0 listens on this machine only")


def test_without_discovery_every_member_needs_an_address(ward):
    assert of_the_lan(ward, discovery=False) == []
    found = diagnosis(ward, discovery=False)
    found.patients[1].member = Member(index=1, name="node1", key=bytes(32), address=None)
    (problem,) = _of_the_lan(found)
    assert problem.text == "discovery is off, and no address is listed for node1"


def test_without_zeroconf_what_to_install_is_said(ward, monkeypatch):
    monkeypatch.setattr("p2pfl.features.lan.doctor.find_spec", lambda _: None)
    (problem,) = _of_the_lan(diagnosis(ward))
    assert "python-zeroconf is not installed" in problem.text
    assert "pip install '.[lan]'" in problem.remedy


def test_a_member_that_answers_is_well(ward):
    assert of_members(ward) == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(kind=AnswerKind.REFUSED), "nothing listens on that port"),
        (Answer(kind=AnswerKind.SILENT, detail="No route to host"), "No route to host"),
        (Answer(kind=AnswerKind.NO_NODE, detail="503"), "something other than p2pfl answers: 503"),
        (Answer(kind=AnswerKind.OTHER_NODE), "not a member"),
        (Answer(kind=AnswerKind.OTHER_MEMBER, detail="2"), "node2 answers there"),
    ],
)
def test_why_a_member_is_not_reached_is_said(ward, answer, said):
    (text,) = of_members(ward, answer=answer)
    assert text.startswith("node1 is not reached: 192.168.1.9:")
    assert said in text


def test_who_has_another_file_is_compared_and_neither_file_is_called_the_right_one(ward):
    differs = Answer(kind=AnswerKind.MEMBER, differences=("training.rounds", "node"))
    (problem,) = _of_members(diagnosis(ward, answer=differs))
    assert "differs in training.rounds, the names or" in problem.text
    assert problem.remedy.startswith(f"compare {ward.path} with the file there, copy the right one over the other")
    here = diagnosis(ward)
    here.patients[0].places = [AddressTried(address="127.0.0.1:8470", via=("state",), answer=differs)]
    (problem,) = _of_members(here)
    assert problem.text.startswith("node0 was started with another federation file than the one here")


def test_a_neighbor_that_has_dialed_this_node_is_not_called_lost(ward):
    found = diagnosis(ward, answer=Answer(kind=AnswerKind.REFUSED))
    found.patients[1].has_session = True
    (problem,) = _of_members(found)
    assert problem.text.startswith("node1 has a session with node0, but is not reached: 192.168.1.9:")
    assert "so that node0 can dial it too" in problem.remedy
    assert _cells(_member_row(found, found.patients[1]))["answers"] == "no, but has a session"
    found.patients[1].places.clear()
    assert list(_of_members(found)) == []


def test_a_member_that_has_moved_is_said_to_be_elsewhere(ward):
    found = diagnosis(ward, answer=Answer(kind=AnswerKind.SILENT, detail="No route to host"))
    found.patients[1].places.append(AddressTried(address="192.168.1.77:8470", via=("eth0",), answer=ANSWERS))
    (problem,) = _of_members(found)
    assert "node1 is not at its listed address" in problem.text
    assert "but at 192.168.1.77:8470" in problem.text


def test_with_a_charter_another_address_is_a_matter_of_the_admin_key(ward):
    ward = replace(ward, admin=(bytes(32),))
    found = diagnosis(ward, answer=Answer(kind=AnswerKind.REFUSED))
    found.patients[1].places.append(AddressTried(address="192.168.1.77:8470", via=("eth0",), answer=ANSWERS))
    (problem,) = _of_members(found)
    assert "p2pfl member set ward --address node1=HOST:PORT" in problem.remedy


def test_a_node_that_hides_behind_its_own_listen_is_not_told_to_change_its_address(ward):
    found = diagnosis(ward)
    own = found.patients[0]
    own.places = [
        AddressTried(address=own.member.address, via=("file",), answer=Answer(kind=AnswerKind.REFUSED)),
        AddressTried(address="127.0.0.1:8470", via=("state",), answer=ANSWERS),
    ]
    own.hides = True
    (problem,) = _of_members(found)
    assert "node0 listens on this machine only" in problem.text
    assert 'listen = "0.0.0.0:' in problem.remedy


def test_a_member_of_which_nobody_knows_where_it_is(ward):
    found = diagnosis(ward)
    found.patients[1].places.clear()
    (problem,) = _of_members(found)
    assert "its address is unknown" in problem.text


@pytest.mark.parametrize(
    ("found", "said"), [(AnswerKind.REFUSED, "is it running?"), (AnswerKind.SILENT, "so it is on")]
)
def test_who_was_heard_and_does_not_answer_may_have_ended_or_has_a_firewall(ward, found, said):
    heard = [Announced(name="x", addresses={"192.168.1.9"}, port=1)]
    (problem,) = _of_members(diagnosis(ward, answer=Answer(kind=found), heard=heard))
    assert said in problem.remedy


def test_the_command_says_the_same_as_json_and_ends_with_1_where_something_is_wrong(ward, capsys):
    file = ward.path
    file.write_text(file.read_text().replace("discovery = true", "").replace("192.168.1.9", "127.0.0.1"))
    with pytest.raises(SystemExit) as ended:
        main(["doctor", str(file), "--node", "node0", "--format", "json"])
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1
    assert [row["member"] for row in said["members"]] == ["node0", "node1", "node2"]
    assert [row["here"] for row in said["members"]] == [True, False, False]
    assert {place["found"] for row in said["members"] for place in row["places"]} == {"refused"}
    assert [problem["text"].split()[0] for problem in said["problems"]] == ["node1", "node2"]
    with pytest.raises(SystemExit):
        main(["doctor", str(file)])
    table = capsys.readouterr().out
    assert "what to do: start node1 there" in table


@pytest.mark.parametrize(
    ("away", "said"),
    [
        (None, "node1 has no address, and the doctor asks a node that runs here"),
        ({}, "no session with node0 at a relay"),
    ],
)
def test_who_has_no_address_is_looked_for_at_relays_by_the_node_that_runs_here_alone(ward, away, said):
    found = diagnosis(replace(ward, relays=("ws://relay:1",)))
    found.patients[1].places.clear()
    found.away = away
    (problem,) = _of_members(found)
    assert said in problem.text
    assert "`p2pfl run -v`" in problem.remedy
