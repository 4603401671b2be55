"""One launcher at a time: a second one writes nothing."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from p2pfl.cli.main import main
from p2pfl.config import load_config, load_node, node_file
from p2pfl.errors import UserError
from p2pfl.fleet import _locked, claimed
from p2pfl.storage import lock_folder


@pytest.fixture
def ward(tmp_path):
    folder = tmp_path / "ward"
    with pytest.raises(SystemExit) as made:
        main(["new", str(folder), "--nodes", "2"])
    assert made.value.code == 0
    return load_config(folder)


def nodes(ward):
    return [load_node(node_file(ward, member.name), ward, member.name) for member in ward.members]


def test_while_one_launches_it_another_does_not(ward):
    with claimed(ward, nodes(ward)), pytest.raises(UserError, match="somebody launches it"), claimed(ward, nodes(ward)):
        pass
    with claimed(ward, nodes(ward)):
        pass


def test_a_node_that_runs_by_itself_is_named(ward):
    held = lock_folder(nodes(ward)[1].state_dir)
    with pytest.raises(UserError, match="node1 run"), claimed(ward, nodes(ward)):
        pass
    os.close(held)
    with claimed(ward, nodes(ward)):
        pass


def test_a_second_launch_touches_neither_report_nor_logs(ward, capsys):
    folder = ward.path.parent
    (folder / "report.json").write_text("of the first")
    (folder / "node0" / "node.log").write_text("of the first")
    with claimed(ward, nodes(ward)), pytest.raises(SystemExit) as refused:
        main(["launch", str(folder)])
    assert refused.value.code == 2
    assert "runs already" in capsys.readouterr().err
    assert (folder / "report.json").read_text() == "of the first"
    assert (folder / "node0" / "node.log").read_text() == "of the first"


def test_a_look_whether_a_node_runs_does_not_keep_it_from_starting(ward, monkeypatch):
    state = nodes(ward)[0].state_dir
    os.close(lock_folder(state))
    look = ExitStack()
    assert _locked(state / "lock", look)
    monkeypatch.setattr("p2pfl.storage.disk.time.sleep", lambda _: look.close())
    os.close(lock_folder(state))
