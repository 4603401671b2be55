"""`p2pfl watch`: a federation in a terminal of 80 columns, and once in a pipe."""

from __future__ import annotations

import io
import json

import pytest
from pages import KNOWN, ROW, note_address, serving
from rich.console import Console

from p2pfl.console.overview import view

SAID = {"federation": "ward", "node": "node0", "phase": "training", "rounds": 12}


def drawn(known, *, height=90, width=80, **options):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, **options).print(view(known, width=width, height=height))
    return out.getvalue()


def test_everything_fits_into_80_columns():
    many = [{"index": index, "name": "n" * 40 + str(index)} | ROW for index in range(30)]
    long = KNOWN["alarms"][0] | {"text": "x " * 200}
    for known in (KNOWN, KNOWN | {"members": many, "alarms": [long]}):
        assert max(map(len, drawn(known).splitlines())) <= 80


def test_what_is_wrong_comes_first_and_the_rest_is_counted():
    well = [{"index": index, "name": f"w{index}"} | ROW for index in range(4, 60)]
    text = drawn(KNOWN | {"members": KNOWN["members"] + well}, height=7 + 3 + 6 + 5)
    lines = [line.split()[0] for line in text.splitlines() if line.startswith(" node")]
    assert lines[:3] == ["node3", "node1", "node0"]
    assert "and 55 more" in text


def test_an_alarm_says_what_since_when_what_is_done_and_what_to_do():
    text = drawn(KNOWN)
    for part in ("neighbor-lost node3", "for 5 min", "It does that.", "Do so."):
        assert part in text


def test_the_latest_event_comes_first():
    text = drawn(KNOWN)
    assert text.index("neighbor-lost node3  gone") < text.index("started")


def test_of_many_long_events_the_latest_six_are_shown_in_a_line_each():
    many = [{"at": KNOWN["now"] - k, "kind": f"event-{k}", "text": "x " * 100} for k in range(9, -1, -1)]
    shown = [line for line in drawn(KNOWN | {"events": many}).splitlines() if " ago  " in line or "x x" in line]
    assert [line.split()[3] for line in shown] == [f"event-{k}" for k in range(6)]


def test_a_figure_stays_beside_its_unit():
    lines = drawn(KNOWN | {"members": [{"index": 0, "name": "node0"} | ROW]}).splitlines()
    assert lines[1] == "1 training; round 12 of 40"
    assert lines[2] == "accuracy 0.875; sent 1.2 MB, 1.0 kB/s"


def test_on_a_narrow_terminal_words_are_not_columns_of_letters():
    assert "training" in drawn(KNOWN, width=48)


def test_what_came_by_others_has_a_star():
    assert "60 s*" in drawn(KNOWN)


def test_words_of_others_are_no_markup():
    hurt = KNOWN | {"members": [{"index": 0, "name": "[bold]x[/bold]"} | ROW]}
    assert "[bold]x[/bold]" in drawn(hurt)


def test_no_color_is_honored(monkeypatch):
    assert "\x1b[3" in drawn(KNOWN, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in drawn(KNOWN, force_terminal=True)


def test_a_federation_without_words_of_anybody_is_shown():
    nobody = KNOWN | {"members": [{"index": 0, "name": "node0"}], "alarms": [], "events": [], "rounds_to_do": None}
    assert "1 not heard of" in drawn(nobody)


def test_in_a_pipe_it_is_shown_once(p2pfl):
    with serving(SAID, KNOWN) as address:
        outcome = p2pfl("watch", address)
    assert outcome.code == 0
    assert "\x1b" not in outcome.out
    assert "node2" in outcome.out


def test_a_folder_asks_the_first_node_that_answers(p2pfl, tmp_path):
    p2pfl("new", "ward", "--nodes", "4")
    with serving(SAID, KNOWN) as address:
        note_address(tmp_path / "ward", "node0", "127.0.0.1:9")
        note_address(tmp_path / "ward", "node2", address)
        outcome = p2pfl("watch", "ward", "--format", "json")
    assert outcome.code == 0
    assert json.loads(outcome.out) == KNOWN


def test_one_row_for_each_member_as_csv(p2pfl):
    with serving(SAID, KNOWN) as address:
        outcome = p2pfl("watch", address, "--format", "csv")
    assert len(outcome.out.splitlines()) == 5


def test_after_the_end_results_are_shown_by_status(p2pfl, tmp_path):
    p2pfl("new", "ward", "--nodes", "4")
    state = tmp_path / "ward" / "node1" / "state"
    state.mkdir(parents=True)
    (state / "result.json").write_text(
        json.dumps({"federation": "ward", "node": "node1", "rounds": 40, "finished": True})
    )
    assert "`p2pfl status ward` shows results" in p2pfl("watch", "ward").err
    lines = [line.split()[:3] for line in p2pfl("status", "ward").out.splitlines() if line.startswith(" node")]
    assert ["node1", "finished", "40"] in lines


def test_watching_ends_when_the_last_node_here_ends(p2pfl, tmp_path, monkeypatch):
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    p2pfl("new", "ward", "--nodes", "4")
    with serving(SAID, KNOWN) as address:
        note_address(tmp_path / "ward", "node0", address)
        end = (tmp_path / "ward" / "node0" / "state" / "address.json").unlink
        monkeypatch.setattr("p2pfl.features.status.commands.time.sleep", lambda _: end())
        outcome = p2pfl("watch", "ward")
    assert outcome.code == 0
    assert "no node of ward is running" in outcome.err


@pytest.mark.parametrize("target", ["127.0.0.1:9", "ward"])
def test_nobody_there_is_a_failure_in_one_line(p2pfl, target):
    p2pfl("new", "ward", "--nodes", "2")
    outcome = p2pfl("watch", target)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: ")
    assert len(outcome.err.splitlines()) == 1


def test_a_place_that_is_none_is_the_users_mistake(p2pfl):
    assert p2pfl("watch", "nowhere").code == 2


def test_ctrl_c_ends_it_with_130(p2pfl, monkeypatch):
    def press(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setattr("p2pfl.features.status.commands.time.sleep", press)
    with serving(SAID, KNOWN) as address:
        assert p2pfl("watch", address).code == 130


def test_a_private_federation_says_what_is_spent_in_place_of_scores_that_nobody_has():
    told = {"unit": "record", "epsilon": 1.5, "budget": 8.0, "delta": 1e-5, "rounds_left": 9, "state": "open"}
    members = [row | {"main": None, "accuracy": None, "scores": {}, "epsilon": 2.0} for row in KNOWN["members"]]
    for width in (80, 40):
        out = drawn(KNOWN | {"privacy": told, "members": members}, width=width)
        assert "privacy: epsilon 2 of 8 spent" in " ".join(out.split())
        assert "withheld" in out
        assert "accuracy" not in out.split("withheld")[1].split("member")[0]
        assert max(map(len, out.splitlines())) <= width
    members[0]["epsilon"] = None
    out = drawn(KNOWN | {"privacy": told, "members": members}, width=80)
    assert "of each record; not known of 1;" in " ".join(out.split())
    assert "privacy" not in drawn(KNOWN)
