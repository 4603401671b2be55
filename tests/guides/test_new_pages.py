"""The tutorials and the pages on upkeep are followed from top to bottom."""

from __future__ import annotations

import json

import page_kit as pages
import pytest


def quicker(script):
    """The same with fewer rounds, for a machine that does other things too."""
    cut = "sed -i 's/^rounds = [0-9]*/rounds = 4/' */federation.toml"
    script = script.replace("p2pfl demo ", "p2pfl demo --rounds 4 --nodes 3 ")
    lines = script.splitlines()
    return "\n".join(f"{line}\n{cut}" if line.startswith("p2pfl new") else line for line in lines)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_first_federation_goes_from_the_demo_to_an_exported_model(tmp_path):
    said = pages.follow("docs/tutorials/first-federation.md", tmp_path, quicker)
    assert said[-1].strip() in {"0", "1", "2"}
    report = json.loads((tmp_path / "ward/report.json").read_text(encoding="utf-8"))
    assert len(report["nodes"]) == 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_own_table_goes_from_three_files_to_scores(tmp_path):
    said = pages.follow("docs/tutorials/own-table.md", tmp_path, quicker)
    assert "log loss" in said[-1]
    assert len((tmp_path / "scores.csv").read_text(encoding="utf-8").splitlines()) == 201


@pytest.mark.long
@pytest.mark.slow
def test_a_node_s_folder_that_is_backed_up_comes_back_with_its_key(tmp_path):
    pages.shell(tmp_path, "p2pfl new ward")
    key = (tmp_path / "ward/node0/node.key").read_bytes()
    (said,) = pages.follow("docs/how-to/upgrade-uninstall-backup.md", tmp_path)
    assert "no mistakes" in said
    assert (tmp_path / "ward/node0/node.key").read_bytes() == key


@pytest.mark.long
@pytest.mark.slow
def test_a_lost_admin_key_is_replaced_as_the_page_says(tmp_path):
    """First by a second key, then, where all are lost, by a new one."""
    pages.shell(
        tmp_path,
        """
        p2pfl new ward --admin
        sed -i "s/^admin = \\[/admin = [\\"$(p2pfl key admin2.key)\\", /" ward/federation.toml
        rm ward/admin.key
        p2pfl member set ward --key admin2.key --rounds 200 --offline
        """,
    )
    assert "200" in pages.shell(tmp_path, "p2pfl check ward | grep rounds")
    said = pages.shell(
        tmp_path,
        """
        rm admin2.key
        new=$(p2pfl key ward/admin.key)
        sed -i "s/^admin = .*/admin = [\\"$new\\"]/" ward/federation.toml
        rm ward/members.toml
        p2pfl member set ward --rounds 300 --offline
        p2pfl check ward
        """,
    )
    assert "no mistakes" in said


def test_the_exit_codes_are_those_that_commands_name():
    table = pages.read("docs/how-to/several-machines.md").partition("## Exit codes")[2]
    codes = [int(row.split("|")[1]) for row in table.splitlines() if row[2:3].isdigit()]
    assert codes == [0, 1, 2, 3, 4, 130]
